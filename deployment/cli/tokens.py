"""`finaz token`: bearer tokens for the API."""

from typing import Any

import click

from deployment.cli.output import answer, json_option

SCOPES = ("runs:write", "runs:read", "purchases:write", "purchases:read", "operate")


@click.group()
def token() -> None:
    """Make bearer tokens for the API."""


@token.command(epilog="Example: finaz token create --principal ana --scope runs:write --scope runs:read --days 90")
@click.option("--principal", required=True, help="Who its bearer is.")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="What it allows. Default: the two of runs."
)
@click.option("--days", type=click.IntRange(1, 3660), help="How long it is good. Default: for ever.")
@click.option("--label", default="", help="A note in the tokens file.")
@click.option("--file", "file", type=click.Path(dir_okay=False), help="The tokens file. Default: FINAZ_TOKENS_FILE.")
@json_option
def create(principal: str, scopes: tuple[str, ...], days: int | None, label: str, file: str | None) -> None:
    """Make a token, add its digest to the tokens file, and print it: this once, it is stored nowhere.

    A running API takes the changed file up by itself.
    """
    from datetime import UTC, datetime, timedelta
    from pathlib import Path

    from api.auth import Scope, add_token, mint_token
    from deployment.settings import load_settings
    from domain.instants import format_instant

    path = Path(file) if file else load_settings().required_tokens_file()
    expires_at = None if days is None else format_instant(datetime.now(UTC) + timedelta(days=days))
    made, entry = mint_token(
        principal, [Scope(scope) for scope in scopes or SCOPES[:2]], expires_at=expires_at, label=label
    )
    add_token(path, entry)
    document: dict[str, Any] = {
        "token": made,
        "principal": principal,
        "scopes": [scope.value for scope in entry.scopes],
        "expires_at": expires_at,
        "file": str(path),
    }
    answer(document, lambda: click.echo(made))
