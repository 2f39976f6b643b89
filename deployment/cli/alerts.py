"""`finaz alert` and `finaz dead-letter`: what asks for an operator, and saying what became of it."""

from typing import Any, Final

import click

from deployment.cli.output import answer, facts, first, json_option, table

ALERTS_DEFAULT: Final = 50

_STATES: Final = ("FOUND", "ALERTED", "SETTLED")


@click.group()
def alert() -> None:
    """See what asks for an operator, say that it was dealt with."""


@alert.command(name="list", epilog="Example: finaz alert list --json")
@click.option(
    "--state",
    type=click.Choice(_STATES),
    default="ALERTED",
    show_default=True,
    help="ALERTED waits for an operator, FOUND is being repaired, SETTLED is over.",
)
@click.option("--limit", type=click.IntRange(1), default=ALERTS_DEFAULT, show_default=True, help="At most so many.")
@json_option
def list_alerts(state: str, limit: int) -> None:
    """List what asks for an operator, the newest first. Needs the scope operate.

    SOURCE says who raised it, SETTLE WITH the command that settles it: what the reconciler found about a run is resolved here,
    alerts of purchases by `finaz purchase settle`, with the word that fits the purchase's state.
    """
    from deployment.cli.connection import api

    with api() as client:
        found = first(client.alerts(state, limit + 1), limit)
    columns = ("source", "kind", "subject", "found_at", "times_found", "outcome", "settle_with")
    _table(columns, found)


@alert.command(epilog="Example: finaz alert resolve RUN_DIFFERS run_… --note 'rebuilt the projection'")
@click.argument("kind")
@click.argument("run_id")
@click.option("--note", metavar="TEXT", required=True, help="What was done; kept in the log with your name.")
@json_option
def resolve(kind: str, run_id: str, note: str) -> None:
    """Say that the alert KIND about RUN_ID was dealt with. Needs the scope operate.

    Only what the reconciler found, whose SUBJECT is a run; alerts of purchases are settled by `finaz purchase settle`, as the error
    says. If the two still disagree when the reconciler looks again, it finds that again.
    """
    from deployment.cli.connection import api

    with api() as client:
        done = client.resolve_alert(kind, run_id, note)
    answer(done, lambda: facts(done.items()))


@click.group(name="dead-letter")
def dead_letter() -> None:
    """See what process managers could not do; try it again, or don't."""


@dead_letter.command(name="list", epilog="Example: finaz dead-letter list --manager orphan_recovery --json")
@click.option("--manager", help="Only of this process manager.")
@json_option
def list_dead_letters(manager: str | None) -> None:
    """List commands, and events' reactions (`react`), that failed for good, the oldest first. Needs the scope operate."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.dead_letters(manager)
    _table(("manager", "command_id", "name", "key", "attempts", "changed_at", "reason"), found)


@dead_letter.command(epilog="Example: finaz dead-letter show reconciler 0c1d9f0e-5b1e-5c55-8f0b-7b6f5a1f8e11")
@click.argument("manager")
@click.argument("command_id")
@json_option
def show(manager: str, command_id: str) -> None:
    """Show COMMAND_ID of MANAGER whole: its document, why it failed, how often it was tried. Needs the scope operate."""
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        found = client.dead_letter(manager, command_id)
    answer(found, lambda: facts((name.replace("_", " "), value) for name, value in found.items()))


@dead_letter.command(name="revive-all", epilog="Example: finaz dead-letter revive-all reconciler")
@click.argument("manager")
@json_option
def revive_all(manager: str) -> None:
    """Have all dead letters of MANAGER tried again, but for events' reactions (`react`). Needs the scope operate."""
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        done = client.revive_dead_letters(manager)
    answer(done, lambda: facts(done.items()))


@dead_letter.command(epilog="Example: finaz dead-letter revive reconciler 0c1d9f0e-5b1e-5c55-8f0b-7b6f5a1f8e11")
@click.argument("manager")
@click.argument("command_id")
@json_option
def revive(manager: str, command_id: str) -> None:
    """Have COMMAND_ID of MANAGER tried again. Needs the scope operate.

    A `react` is an event, not a command: replay the manager instead (finaz projection replay), then discard it.
    """
    from deployment.cli.connection import api

    with api() as client:
        done = client.revive_dead_letter(manager, command_id)
    answer(done, lambda: facts(done.items()))


@dead_letter.command(
    epilog="Example: finaz dead-letter discard reconciler 0c1d9f0e-5b1e-5c55-8f0b-7b6f5a1f8e11 --reason 'run again by hand'"
)
@click.argument("manager")
@click.argument("command_id")
@click.option("--reason", metavar="TEXT", required=True, help="Why it need not be done; kept with your name.")
@json_option
def discard(manager: str, command_id: str, reason: str) -> None:
    """Have done with COMMAND_ID of MANAGER, for good. Needs the scope operate."""
    from deployment.cli.connection import api

    with api() as client:
        done = client.discard_dead_letter(manager, command_id, reason)
    answer(done, lambda: facts(done.items()))


def _table(columns: tuple[str, ...], found: list[dict[str, Any]]) -> None:
    rows = [[one.get(column) for column in columns] for one in found]
    answer({"items": found}, lambda: table([column.replace("_", " ") for column in columns], rows))
