"""`finaz projection`: how far the read models have come, and rebuilding one from the events."""

import click

from deployment.cli.output import answer, facts, json_option, note, table


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


@projection.command(epilog="Example: finaz projection rebuild runs")
@click.argument("name")
@json_option
def rebuild(name: str) -> None:
    """Empty the projection NAME and fold it again from the first event."""
    from deployment.cli.connection import api

    note(f"rebuilding {name}")
    with api() as client:
        found = client.rebuild(name)
    answer(found, lambda: facts(found.items()))
