"""`finaz log`: the log of all events, as an operator reads it."""

from typing import Any

import click

from deployment.cli.output import answer, json_option, table

EVENTS_DEFAULT = 100


@click.command(epilog="Example: finaz log --after 1000 --topic run.failed.v1 --json")
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="Events behind this position.")
@click.option("--topic", "topics", multiple=True, help="Only events of this topic; may be repeated.")
@click.option("--limit", type=click.IntRange(1), default=EVENTS_DEFAULT, show_default=True, help="At most so many.")
@json_option
def log(after: int, topics: tuple[str, ...], limit: int) -> None:
    """Read the log of all events, in order of position. Needs the scope operate."""
    from deployment.cli.connection import api

    with api() as client:
        found = list(client.log(after, topics, limit))
    rows = [_row(event) for event in found]
    answer({"items": found}, lambda: table(("position", "recorded at", "stream", "version", "topic"), rows))


def _row(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["position"], event["recorded_at"], event["stream"], event["version"], event["topic"]
