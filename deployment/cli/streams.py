"""`finaz stream`: what a stream run committed, which records it did not simply take, and having some judged again."""

import re
from typing import Final

import click

from deployment.cli.output import answer, facts, first, json_option, note, table

ROWS_DEFAULT: Final = 50

_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})\Z")
_STATES: Final = ("consumed", "revised", "late", "filtered", "omitted", "duplicates_skipped")


def _place(text: str) -> tuple[int, int]:
    """`PARTITION:OFFSET` as two numbers."""
    match = _PLACE.match(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no place of a record; expected PARTITION:OFFSET, such as 3:17")
    return int(match[1]), int(match[2])


def _offsets(offsets: dict[str, int]) -> str:
    """Offsets by partition, in the order of the partitions' numbers."""
    return " ".join(
        f"{partition}:{offset}" for partition, offset in sorted(offsets.items(), key=lambda one: int(one[0]))
    )


@click.group()
def stream() -> None:
    """See how a stream run stands, what it committed, omitted, found late; have records retried."""


@stream.command(epilog="Example: finaz stream status run_…")
@click.argument("run_id")
@json_option
def status(run_id: str) -> None:
    """Show how RUN_ID stands: offsets committed and left, its quarantine, and what holds it up, in its last owner's words."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.stream_status(run_id)
    shown = {name: _offsets(value) if isinstance(value, dict) else value for name, value in found.items()}
    answer(found, lambda: facts((name.replace("_", " "), value) for name, value in shown.items() if value != ""))


@stream.command(epilog="Example: finaz stream checkpoints run_… --limit 5 --json")
@click.argument("run_id")
@click.option("--limit", type=click.IntRange(1), default=ROWS_DEFAULT, show_default=True, help="At most so many.")
@json_option
def checkpoints(run_id: str, limit: int) -> None:
    """List the checkpoints of RUN_ID, the newest first."""
    from deployment.cli.connection import api

    with api() as client:
        found = first(client.checkpoints(run_id, limit + 1), limit)
    rows = [
        [
            one["epoch"],
            one["token"],
            one["committed_at"],
            _offsets(one["next_offsets"]),
            one["manifest_hash"],
        ]
        for one in found
    ]
    answer({"items": found}, lambda: table(["epoch", "token", "committed at", "next offsets", "manifest hash"], rows))


@stream.command(epilog="Example: finaz stream quarantine run_… --state omitted")
@click.argument("run_id")
@click.option("--state", type=click.Choice(_STATES), help="Only records whose treatment is this now.")
@click.option("--limit", type=click.IntRange(1), default=ROWS_DEFAULT, show_default=True, help="At most so many.")
@json_option
def quarantine(run_id: str, state: str | None, limit: int) -> None:
    """List the records of RUN_ID that were omitted, late, or retried, by partition and offset."""
    from deployment.cli.connection import api

    with api() as client:
        found = first(client.quarantine(run_id, state, limit + 1), limit)
    rows = [
        [
            f"{one['partition']}:{one['offset']}",
            one["state"],
            "never" if one["terminal"] else one["retries"],
            one["event_id"] or "",
            one["detail"],
        ]
        for one in found
    ]
    answer({"items": found}, lambda: table(["place", "state", "retries", "event id", "detail"], rows))


@stream.command(epilog="Example: finaz stream retry run_… 3:17 3:21")
@click.argument("run_id")
@click.argument("places", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All records that are omitted, instead of naming them.")
@json_option
def retry(run_id: str, places: tuple[str, ...], everything: bool) -> None:
    """Have omitted records of RUN_ID judged again, as arriving at that moment. Needs the scope operate.

    Name them as PARTITION:OFFSET. The run's worker does it at its next commit, or on resume; a record that is no longer omitted is
    left as it is.
    """
    from deployment.cli.connection import api

    if everything == bool(places):
        raise click.UsageError("name records as PARTITION:OFFSET, or give --all")
    wanted = [_place(text) for text in places]
    with api() as client:
        done = client.retry_quarantine(run_id, wanted)
    shown = " ".join(f"{place['partition']}:{place['offset']}" for place in done["requested"]) or "nothing"
    answer(done, lambda: facts([("run", run_id), ("requested", shown), ("position", done["position"])]))
    if len(done["requested"]) < len(wanted):
        note(
            "the others are not omitted, are terminal (a tombstone), or were asked for already: finaz stream quarantine"
        )
