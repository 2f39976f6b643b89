"""`finaz projection`: how far read models and process managers have come, holding one back, making one again from the events."""

from typing import Any

import click

from deployment.cli.output import answer, facts, json_option, table, wants_json


@click.group()
def projection() -> None:
    """See how far the read models are, pause, resume, rebuild one."""


@projection.command(epilog="Example: finaz projection status --json")
@json_option
def status() -> None:
    """Show each projection and process manager: position, lag in events and seconds, last heartbeat, what stopped or paused it."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.projections()
    columns = (
        *("name", "health", "state", "position", "lag_events", "lag_seconds"),
        *("heartbeat_at", "error", "pause_reason", "paused_by"),
    )
    rows = [[one.get(column) for column in columns] for one in found]
    answer({"items": found}, lambda: table([column.replace("_", " ") for column in columns], rows))


@projection.command(epilog="Example: finaz projection pause reconciler --reason 'the blob folder is being moved'")
@click.argument("name")
@click.option("--reason", metavar="TEXT", required=True, help="Why; shown with your name until it goes on.")
@json_option
def pause(name: str, reason: str) -> None:
    """Have the projection or process manager NAME stay where it is. Needs the scope operate.

    Nothing is lost: it goes on from its position. One that has stopped by itself stays stopped.
    """
    from deployment.cli.connection import api

    with api() as client:
        _show(client.pause_projection(name, reason))


@projection.command(epilog="Example: finaz projection resume reconciler")
@click.argument("name")
@json_option
def resume(name: str) -> None:
    """Let the projection or process manager NAME go on, also one that stopped at an event. Needs the scope operate."""
    from deployment.cli.connection import api

    with api() as client:
        _show(client.resume_projection(name))


@projection.command(epilog="Example: finaz projection replay reconciler")
@click.argument("name")
@json_option
def replay(name: str) -> None:
    """Have the paused process manager NAME fold the log again from its beginning, once it is resumed. Needs the scope operate.

    What it issued before is not issued again; events whose reaction had failed are reacted to.
    """
    from deployment.cli.connection import api

    with api() as client:
        _show(client.replay_process_manager(name))


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


def _show(view: dict[str, Any]) -> None:
    """One projection as it stands."""
    answer(view, lambda: facts((name.replace("_", " "), value) for name, value in view.items()))
