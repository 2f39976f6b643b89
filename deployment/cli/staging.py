"""`finaz staging`: published features by run, instrument and time, out of ClickHouse; and how staging is doing."""

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from deployment.cli.output import answer, facts, first, json_option, table

if TYPE_CHECKING:
    from deployment.staging_client import StagingClient

ROWS_DEFAULT: Final = 100

_COLUMNS: Final = ("event_time", "event_id", "instrument", "output", "value", "run_id")


@click.group()
def staging() -> None:
    """Read published features by run, instrument and time; see how staging is doing."""


@staging.command(epilog="Example: finaz staging values --run-id run_… --output ema --format arrow --to-file ema.arrow")
@click.option("--run-id", help="Of this run.")
@click.option("--output", help="Of this output.")
@click.option("--instrument", help="Of this instrument; a run, an instrument or both must be given.")
@click.option("--from", "time_from", metavar="INSTANT", help="Ticks at or after this instant.")
@click.option("--to", "time_to", metavar="INSTANT", help="Ticks before this instant.")
@click.option("--position", type=click.IntRange(0), default=0, help="Wait until this position of the log is staged.")
@click.option("--limit", type=click.IntRange(1), default=ROWS_DEFAULT, show_default=True, help="At most so many rows.")
@click.option("--format", "form", type=click.Choice(["csv", "arrow"]), help="All rows as a file instead.")
@click.option("--to-file", type=click.Path(dir_okay=False), help="Where to; by default standard output.")
@json_option
def values(limit: int, form: str | None, to_file: str | None, **asked: Any) -> None:
    """Show staged values in clock order, or download all of them as CSV or Arrow."""
    filters = _filters(asked)
    with _api() as client:
        if form is not None:
            _download(client, filters, form, to_file)
            return
        if to_file is not None:
            raise click.UsageError("--to-file goes with --format", click.get_current_context())
        found = first(client.staged_values(filters, limit + 1), limit)
    rows = [[one[column] for column in _COLUMNS] for one in found]
    answer({"items": found}, lambda: table([column.replace("_", " ") for column in _COLUMNS], rows))


@staging.command(epilog="Example: finaz staging status --json")
@json_option
def status() -> None:
    """Show which process stages, how far it is, and how much is staged. Needs the scope operate."""
    with _api() as client:
        found = client.staging_status()
    answer(found, lambda: facts((name.replace("_", " "), value) for name, value in found.items()))


def _download(client: "StagingClient", filters: dict[str, Any], form: str, file: str | None) -> None:
    from deployment.cli.documents import write_lines

    if file is not None:
        write_lines(client.download(filters, form), file)
        return
    if form == "arrow" and sys.stdout.isatty():
        raise click.UsageError("binary data is not written to a terminal; give --to-file FILE")
    for piece in client.download(filters, form):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def _filters(asked: dict[str, Any]) -> dict[str, Any]:
    names = {"time_from": "from", "time_to": "to"}
    return {names.get(name, name): value for name, value in asked.items() if value}


def _api() -> "StagingClient":
    from deployment.settings import load_client_settings
    from deployment.staging_client import StagingClient

    settings = load_client_settings()
    return StagingClient(settings.api_url, settings.token)
