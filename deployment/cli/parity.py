"""`finaz parity`: are results equal to the bit, in whatever mode, and where do they part?"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from deployment.cli.connection import blobs as blobs_of
from deployment.cli.connection import via_option
from deployment.cli.output import answer, facts, json_option, note, table

if TYPE_CHECKING:
    from services.broker import Broker

MODES: Final = ("BATCH", "REPLAY", "STREAM")
DEADLINE_SECONDS_DEFAULT: Final = 300

EXIT_DIFFERS: Final = 1
EXIT_NOT_CHECKED: Final = 2


@click.command(
    epilog="Example: finaz parity --flow flow.json --snapshot sha256:… --as-of 2026-01-06T00:00:00Z --schedule faults.json"
)
@click.argument("runs", nargs=-1, metavar="[RUN_ID RUN_ID...]")
@click.option("--flow", metavar="FILE|ADDRESS", help="Execute this flow in several modes, instead of comparing runs.")
@click.option("--snapshot", metavar="ADDRESS", help="The snapshot's address, sha256:…")
@click.option("--as-of", metavar="INSTANT", help="Take what was available then (RFC 3339).")
@click.option("--schedule", metavar="FILE|ADDRESS", help="The faults of REPLAY and STREAM. Default: none.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODES),
    help="May be given again; the first is the reference. Default: BATCH, REPLAY, and STREAM if a broker is known.",
)
@click.option("--bootstrap", metavar="HOST:PORT", help="The broker of STREAM. Default: FINAZ_KAFKA_BOOTSTRAP.")
@click.option(
    "--deadline",
    type=click.IntRange(1, 604_800),
    default=DEADLINE_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="How long each run may take.",
)
@via_option
@json_option
def parity(runs: tuple[str, ...], flow: str | None, via: str, **given: Any) -> int:
    """Compare results to the bit: of runs, or of one flow in several modes.

    Exit status 0: equal; 1: they differ, and where they part is shown; 2: it could not be checked.
    """
    from deployment.problems import ProblemError, problem_of, sentence
    from domain.errors import FinazError

    if bool(runs) == (flow is not None) or len(runs) == 1:
        raise click.UsageError("two or more run ids, or --flow", click.get_current_context())
    try:
        found = _of_runs(runs) if flow is None else _of_modes(flow, via, **given)
    except (FinazError, ProblemError, OSError) as error:
        problem = problem_of(error)
        answer({"equal": None, "problem": problem}, lambda: click.echo(f"could not be checked: {sentence(problem)}"))
        return EXIT_NOT_CHECKED
    answer(found, lambda: _show(found))
    verdict = found.get("verdict")
    if not found["equal"] or (verdict is not None and verdict["verdict"]["kind"] == "DIVERGED"):
        return EXIT_DIFFERS
    return 0


def _of_runs(runs: tuple[str, ...]) -> dict[str, Any]:
    from deployment.cli.connection import api
    from deployment.parity_runs import compared_runs

    with api() as client:
        return compared_runs(client, runs)


def _of_modes(
    flow: str,
    via: str,
    snapshot: str | None,
    as_of: str | None,
    schedule: str | None,
    modes: tuple[str, ...],
    bootstrap: str | None,
    deadline: int,
) -> dict[str, Any]:
    from deployment.cli.connection import api
    from deployment.cli.documents import flow_argument
    from deployment.parity_runs import Question, compared_modes
    from domain.market.faults import NO_FAULTS
    from services.schedules import known_schedule, load_schedule

    if snapshot is None or as_of is None:
        raise click.UsageError("--flow needs --snapshot and --as-of", click.get_current_context())
    document = None if schedule is None else flow_argument(schedule)
    with api() as client, blobs_of(via) as blobs, _broker(bootstrap, modes) as broker:
        faults = NO_FAULTS
        if document is not None:
            given = isinstance(document, str)
            faults = load_schedule(blobs, document) if given else known_schedule(document).schedule
        if not modes and broker is None:
            note("STREAM is left out: no broker is known (--bootstrap, or FINAZ_KAFKA_BOOTSTRAP)")
        question = Question(
            flow=flow_argument(flow),
            snapshot=snapshot,
            as_of=as_of,
            schedule=faults,
            modes=modes or (MODES if broker is not None else MODES[:2]),
            deadline_seconds=deadline,
        )
        return compared_modes(client, question, lambda: blobs, broker, note)


@contextmanager
def _broker(bootstrap: str | None, modes: tuple[str, ...]) -> "Iterator[Broker | None]":
    """The broker, if one is known or needed. Raises `SettingsError` where STREAM is asked for without one."""
    from deployment.settings import load_settings

    settings = load_settings()
    known = bootstrap or settings.kafka_bootstrap
    if known is None and "STREAM" in modes:
        known = settings.required_kafka_bootstrap()
    if known is None or (modes and "STREAM" not in modes):
        yield None
        return
    from deployment.broker_wiring import configured_broker

    broker = configured_broker(settings, known)
    try:
        yield broker
    finally:
        broker.close()


def _show(found: dict[str, Any]) -> None:
    rows = [
        (
            run["mode"],
            run["run_id"],
            output["output"],
            output["rows"],
            output["values_hash"],
            " ".join(f"{name}={count}" for name, count in run["counts"].items() if count),
        )
        for run in found["runs"]
        for output in run["outputs"]
    ]
    table(("mode", "run", "output", "rows", "values hash", "counts"), rows)
    for comparison in found["comparisons"]:
        for output in comparison["outputs"]:
            if not output["equal"]:
                _show_difference(comparison["other"], output)
        for side in ("only_in_reference", "only_in_other"):
            if comparison[side]:
                click.echo(f"{side.replace('_', ' ')}: {', '.join(comparison[side])}")
    verdict = found.get("verdict")
    if verdict is not None:
        kind, stream = verdict["verdict"]["kind"], verdict["run_id"]
        click.echo(f"verdict on the stream: {kind}; topic {verdict['findings']['look']}")
        if kind == "DIFFERS_BY_INPUT":
            click.echo(f"which records make the difference: finaz run verdict {stream}")
    click.echo("equal" if found["equal"] else "NOT equal")


def _show_difference(other: dict[str, Any], output: dict[str, Any]) -> None:
    first = output["first"]
    click.echo(f"{other['mode']} {other['run_id']}, output {output['output']}:")
    facts(
        (
            ("missing", output["missing"]),
            ("extra", output["extra"]),
            ("mismatched", output["mismatched"]),
            ("first", f"{first['kind']}: {first['event_id']} at {first['event_time']}"),
            ("reference", _value(first["reference"])),
            ("other", _value(first["other"])),
        )
    )


def _value(value: float | None) -> str:
    return "null or none" if value is None else repr(value)
