"""`finaz projection`: how far the read models have come, and rebuilding one from the events."""

import click

from deployment.cli.output import answer, facts, json_option, table, wants_json


@click.group()
def projection() -> None:
    """See how far the read models are, rebuild one."""


@projection.command(epilog="Example: finaz projection status --json")
@json_option
def status() -> None:
    """Show each projection: position, how far behind in events and seconds, last heartbeat, what stopped it."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.projections()
    columns = ("name", "health", "state", "position", "lag_events", "lag_seconds", "heartbeat_at", "error")
    rows = [[one.get(column) for column in columns] for one in found]
    answer({"items": found}, lambda: table([column.replace("_", " ") for column in columns], rows))


@projection.command(epilog="Example: FINAZ_POSTGRES_DSN=postgresql://… finaz projection rebuild runs")
@click.argument("name")
@json_option
def rebuild(name: str) -> None:
    """Make the rows of the projection NAME again from the first event, beside the old ones, and serve them when they are caught up.

    Works on the database of FINAZ_POSTGRES_DSN. Ctrl-C cancels it, and the old rows are served on.
    """
    from deployment.rebuilding import rebuilt

    made = rebuilt(name, quiet=wants_json())
    answer(made, lambda: facts(made.items()))
