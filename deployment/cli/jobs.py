"""`finaz job`: rebuilds and other long work of operators; see how far it is, confirm it, cancel it."""

from collections.abc import Iterator
from typing import Any, Final

import click

from deployment.cli.output import answer, facts, first, json_line, json_option, note, table, wants_json

JOBS_DEFAULT: Final = 50

_STATES: Final = ("QUEUED", "RUNNING", "AWAITING", "SUCCEEDED", "FAILED", "CANCELLED")
_COLUMNS: Final = ("job_id", "kind", "target", "state", "position", "total", "rate", "left_seconds", "requested_at")


@click.group()
def job() -> None:
    """See rebuilds and other long work of operators; confirm, cancel."""


@job.command(name="list", epilog="Example: finaz job list --state AWAITING")
@click.option("--state", type=click.Choice(_STATES), help="Only in this state; AWAITING waits for an operator.")
@click.option("--kind", help="Only of this kind: rebuild, …")
@click.option("--limit", type=click.IntRange(1), default=JOBS_DEFAULT, show_default=True, help="At most so many.")
@json_option
def list_jobs(state: str | None, kind: str | None, limit: int) -> None:
    """List jobs, the newest first. Needs the scope operate."""
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        found = first(client.jobs(state, kind, limit + 1), limit)
    rows = [[one.get(column) for column in _COLUMNS] for one in found]
    answer({"items": found}, lambda: table([column.replace("_", " ") for column in _COLUMNS], rows))


@job.command(epilog="Example: finaz job show job_… --events")
@click.argument("job_id")
@click.option("--events", is_flag=True, help="What has happened to it, instead of how it stands.")
@click.option("--report", is_flag=True, help="Of a rebuild: which rows differ, column by column, instead.")
@json_option
def show(job_id: str, events: bool, report: bool) -> None:
    """Show JOB_ID: how far it is, what it found, what it waits for, what became of it. Needs the scope operate."""
    from deployment.cli.connection import operator_api

    if events and report:
        raise click.UsageError("--events or --report", click.get_current_context())
    with operator_api() as client:
        if report:
            _show_report(client, job_id)
            return
        if not events:
            show_job(client.job(job_id))
            return
        found = client.job_history(job_id)
    columns = ("position", "recorded_at", "topic", "principal")
    answer({"items": found}, lambda: table(columns, [[one.get(column) for column in columns] for one in found]))


@job.command(epilog="Example: finaz job watch job_… && echo done")
@click.argument("job_id")
@json_option
def watch(job_id: str) -> None:
    """Watch JOB_ID until it ends or waits for a confirmation; exit status 0 only if it SUCCEEDED or waits. Needs the scope operate.

    With --json, one document each time that it has moved.
    """
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        ended = watched(client, job_id, every=json_line if wants_json() else None)
    if not wants_json():
        show_job(ended)
    check_held(ended)


@job.command(epilog="Example: finaz job confirm job_…")
@click.argument("job_id")
@json_option
def confirm(job_id: str) -> None:
    """Have JOB_ID go on, which waits for that. Read its report first: finaz job show JOB_ID --report. Needs the scope operate."""
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        show_job(client.confirm_job(job_id))


@job.command(epilog="Example: finaz job cancel job_…")
@click.argument("job_id")
@json_option
def cancel(job_id: str) -> None:
    """Ask that JOB_ID end without an effect; it does so at its next border. Needs the scope operate."""
    from deployment.cli.connection import operator_api

    with operator_api() as client:
        show_job(client.cancel_job(job_id))


def show_job(found: dict[str, Any]) -> None:
    """One job as it stands, and what can be done about it."""
    answer(found, lambda: facts(_facts(found)))
    differs = (found.get("error") or {}).get("code") == "ROWS_DIFFER"
    if found["state"] == "AWAITING" or differs:
        note(f"which rows differ: finaz job show {found['job_id']} --report")
    if found["state"] == "AWAITING":
        note(f"it waits for you: finaz job confirm {found['job_id']}, or finaz job cancel")


def _show_report(client: Any, job_id: str) -> None:
    """The rows of a rebuild's report that differ: a line for each column. Raises `NotHeldError` where there is no report."""
    from deployment.problems import NotHeldError
    from domain.canonical import parse

    address = client.job(job_id).get("report")
    document = None if address is None else parse(client.artifact(address))
    if document is None or "difference" not in document:
        raise NotHeldError("NOT_FOUND", "the job has no report on rows", at=job_id, expected="a rebuild that compared")
    rows = [row for sample in document["difference"]["samples"] for row in _differing(sample)]
    answer(document, lambda: table(("row", "what", "column", "served", "rebuilt"), rows))


def _differing(sample: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    served, rebuilt = sample["served"] or {}, sample["rebuilt"] or {}
    key = " ".join(map(str, sample["key"].values()))
    if not (served and rebuilt):
        yield key, sample["kind"], None, None, None
        return
    for name in sorted(served.keys() | rebuilt.keys()):
        if served.get(name) != rebuilt.get(name):
            yield key, sample["kind"], name, served.get(name), rebuilt.get(name)


def watched(client: Any, job_id: str, every: Any = None) -> dict[str, Any]:
    """The job when it has ended or waits; its progress on the side."""
    from deployment.progress import Progress

    found: dict[str, Any] = {}
    with Progress("positions", quiet=wants_json()) as progress:
        for found in client.watch_job(job_id):
            if every is not None:
                every(found)
            progress.reached(found["position"], found["total"] or None)
    return found


def check_held(found: dict[str, Any]) -> None:
    """Raise `NotHeldError` unless the job SUCCEEDED or waits for an operator, with what it failed with."""
    from deployment.problems import NotHeldError

    if found["state"] in ("SUCCEEDED", "AWAITING"):
        return
    error = found.get("error") or {"code": "JOB_CANCELLED", "message": f"cancelled by {found['cancelled_by']}"}
    raise NotHeldError(
        error["code"], f"the job ended {found['state']}: {error['message']}", at=found["job_id"], expected="SUCCEEDED"
    )


def _facts(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and values, those of nested documents each by itself."""
    made: list[tuple[str, Any]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            made += [(f"{name} {inner}".replace("_", " "), item) for inner, item in value.items()]
        else:
            made.append((name.replace("_", " "), value))
    return made
