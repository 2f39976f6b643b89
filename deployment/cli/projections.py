"""`finaz projection`: how far read models and process managers have come, holding one back, making one again from the events."""

from typing import Any, Final

import click

from deployment.cli.output import answer, facts, json_option, note, table

_SWITCHES: Final = ("always", "if_equal", "on_confirmation")


@click.group()
def projection() -> None:
    """See how far the read models are; pause, resume, stop, skip, rebuild one."""


@projection.command(epilog="Example: finaz projection status --json")
@json_option
def status() -> None:
    """Show each projection and process manager: position, lag in events and seconds, last heartbeat, what stopped or paused it."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.projections()
    columns = (
        *("name", "health", "state", "position", "lag_events", "lag_seconds", "events_per_second"),
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


@projection.command(
    name="stop-at", epilog="Example: finaz projection stop-at runs 1042 --reason 'to look at what follows'"
)
@click.argument("name")
@click.argument("position", type=click.IntRange(1))
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept with your name.")
@json_option
def stop_at(name: str, position: int, reason: str) -> None:
    """Have the running projection or process manager NAME pause when it has applied everything up to POSITION.

    Needs the scope operate. It goes on with: finaz projection resume.
    """
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        _show(client.stop_projection_at(name, position, reason))


@projection.command(
    epilog="Example: finaz projection skip runs 1042 --reason 'written by a program that was never released'"
)
@click.argument("name")
@click.argument("position", type=click.IntRange(1))
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept with your name.")
@json_option
def skip(name: str, position: int, reason: str) -> None:
    """Have NAME, which has stopped at the event at POSITION, pass over it. Needs the scope operate.

    Exactly that event, for ever, in rebuilds too. Rows that it should have changed stay as they are.
    """
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        _show(client.skip_event(name, position, reason))


@projection.command(name="log", epilog="Example: finaz projection log runs --json")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="At most so many entries.")
@json_option
def show_log(name: str, limit: int) -> None:
    """List what was done to NAME, by whom, when and why, the newest first, and the events that it passes over."""
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        found = client.projection_log(name, limit)
    columns = ("at", "action", "position", "principal", "reason")
    answer(found, lambda: table(columns, [[one.get(column) for column in columns] for one in found["items"]]))


@projection.command(epilog="Example: finaz projection rebuild runs --switch if_equal")
@click.argument("name")
@click.option(
    "--switch",
    type=click.Choice(_SWITCHES),
    default="always",
    show_default=True,
    help="When the new rows are served: whatever differs, only if nothing does, or when you say so (finaz job confirm).",
)
@click.option("--keep-seconds", type=click.FloatRange(0.0), help="How long the old copy is kept. Default: a day.")
@click.option("--no-wait", is_flag=True, help="Ask for it, and don't wait for its end.")
@json_option
def rebuild(name: str, switch: str, keep_seconds: float | None, no_wait: bool) -> None:
    """Make the rows of the projection NAME again from the first event, beside those served; compare; serve them.

    A job: it goes on when this command is interrupted (finaz job cancel ends it). Exit status 0 only if it SUCCEEDED or waits for
    a confirmation. Needs the scope operate.
    """
    document: dict[str, Any] = {"action": "rebuild", "switch": switch}
    _rebuild(name, document | ({} if keep_seconds is None else {"keep_seconds": keep_seconds}), no_wait)


@projection.command(epilog="Example: finaz projection rollback runs")
@click.argument("name")
@click.option("--no-wait", is_flag=True, help="Ask for it, and don't wait for its end.")
@json_option
def rollback(name: str, no_wait: bool) -> None:
    """Serve the old copy of NAME again, which the last rebuild kept, once it has caught up. Needs the scope operate."""
    _rebuild(name, {"action": "roll_back"}, no_wait)


@projection.command(name="drop-old", epilog="Example: finaz projection drop-old runs")
@click.argument("name")
@click.option("--no-wait", is_flag=True, help="Ask for it, and don't wait for its end.")
@json_option
def drop_old(name: str, no_wait: bool) -> None:
    """Drop the old copy of NAME that the last rebuild kept; nobody can go back to it then. Needs the scope operate."""
    _rebuild(name, {"action": "drop_old"}, no_wait)


def _rebuild(name: str, document: dict[str, Any], no_wait: bool) -> None:
    from deployment.cli.connection import operator_api
    from deployment.cli.jobs import check_held, show_job, watched
    from deployment.problems import RebuildCancelledError

    with operator_api() as client:
        asked = client.request_job("rebuild", name, document)
        note(asked["job_id"])
        ended = asked if no_wait else watched(client, asked["job_id"])
    if ended["state"] == "CANCELLED":
        raise RebuildCancelledError("the rebuild was cancelled; the old rows are served on", at=name)
    show_job(ended)
    if not no_wait:
        check_held(ended)


def _show(view: dict[str, Any]) -> None:
    """One projection as it stands."""
    answer(view, lambda: facts((name.replace("_", " "), value) for name, value in view.items()))
