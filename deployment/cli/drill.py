"""`finaz drill`: kill real processes on embedded services, and see that nothing is lost and nothing done twice."""

from pathlib import Path
from typing import Any, Final

import click

from deployment.cli.lazy import LazyGroup, Place
from deployment.cli.output import EXIT_FAILED, answer, facts, json_option, table, wants_json

_HERE: Final = "deployment.cli.drill:"

DRILLS: Final = {
    "kill-worker": Place(_HERE + "kill_worker", "Kill the worker of runs in flight; another takes over."),
    "two-owners": Place(_HERE + "two_owners", "Stop and kill the owners of a stream run; others take over."),
    "purchases": Place(_HERE + "purchases", "Kill every process while buyers buy under a gateway that misbehaves."),
    "soak": Place(_HERE + "soak", "Kill every process in turn under continuous load."),
}


@click.group(cls=LazyGroup, places=DRILLS)
def drill() -> None:
    """Kill real processes on purpose, and judge by the log.

    Everything is started in a temporary folder and removed at the end. Exit status 0 only if all that was checked held.
    """


@click.command(epilog="Example: finaz drill kill-worker --runs 60 --json")
@click.option("--runs", type=click.IntRange(1, 1000), default=20, show_default=True, help="Runs in flight.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the instant of the kill.")
@json_option
def kill_worker(runs: int, seed: int) -> int:
    """Kill the worker of runs in flight; another takes over.

    `kill -9` at a random instant in the middle of a batch. All runs must end SUCCEEDED, none lost, none published twice, and each
    orphan be started again within two seconds of its dead lease's expiry.
    """
    from deployment.drills import kill_worker as drilling

    return _told(drilling.report(drilling.drill(runs, seed, _say)))


@click.command(epilog="Example: finaz drill soak --minutes 10 --json")
@click.option("--rounds", type=click.IntRange(0, 10_000), default=5, show_default=True, help="Kills, at the least.")
@click.option("--minutes", type=click.FloatRange(0, 1440), default=0.0, show_default=True, help="Time, at the least.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the instants of the kills.")
@json_option
def soak(rounds: int, minutes: float, seed: int) -> int:
    """Kill every process in turn under continuous load.

    Worker, projector, process manager, API and PostgreSQL, one a round. At the end every acknowledged run must have ended, nothing
    been published twice, and no alert or dead letter be there.
    """
    from deployment.drills import soak as drilling

    return _told(drilling.report(drilling.soak(rounds, minutes, seed, _say)))


@click.command(epilog="Example: finaz drill two-owners --broker kafka --json")
@click.option(
    "--broker",
    type=click.Choice(("embedded", "kafka")),
    default="embedded",
    show_default=True,
    help="The embedded broker, or Apache Kafka (a JDK and Maven are needed).",
)
@click.option(
    "--evidence", type=click.Path(dir_okay=False, path_type=Path), help="Keep here what was gathered, as JSON."
)
@click.option(
    "--plant", is_flag=True, hidden=True, help="Plant faults: A is not stopped, B2 is asked instead of killed."
)
@json_option
def two_owners(broker: str, evidence: Path | None, plant: bool) -> int:
    """Stop and kill the owners of a stream run; others take over.

    An intruder is refused, a sleeper that wakes gets nothing in, a successor loses nothing: 36 checks, each with its observation,
    its source and its instant. Takes about a minute.
    """
    from deployment.brokers.apache import apache_kafka
    from deployment.brokers.embedded import embedded_broker
    from deployment.cli.documents import write_out
    from deployment.drills import two_owners as drilling
    from deployment.drills.two_owners_evidence import evidence_document
    from domain.canonical import canonical

    gathered = drilling.drill(apache_kafka if broker == "kafka" else embedded_broker, _say, planted=plant)
    if evidence is not None:
        write_out(canonical(evidence_document(gathered)) + b"\n", str(evidence), binary=True)
    report = drilling.report(gathered)
    answer(report, lambda: _show_checks(report))
    return 0 if report["ok"] else EXIT_FAILED


@click.command(epilog="Example: finaz drill purchases --buyers 100 --kills 30 --seed 7 --json")
@click.option("--buyers", type=click.IntRange(4, 1000), default=50, show_default=True, help="Buyers of one show.")
@click.option(
    "--kills", type=click.IntRange(0, 40), default=14, show_default=True, help="Kills; one of each, at least."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For wishes, behaviours, kills and jumps.")
@click.option(
    "--evidence", type=click.Path(dir_okay=False, path_type=Path), help="Keep here what was gathered, as JSON."
)
@json_option
def purchases(buyers: int, kills: int, seed: int, evidence: Path | None) -> int:
    """Kill every process while buyers buy under a gateway that misbehaves.

    A real sandbox gateway that declines, times out, charges late and tells twice; API, managers, projector, gateway and PostgreSQL
    killed at random moments; jumps of business time; an outage that is left to operators. Then one story must be told by charges,
    refunds, ledger, seats, notices, mails and status: named checks, each with what it found wrong.
    """
    from deployment.cli.documents import write_out
    from deployment.drills import purchases as drilling
    from deployment.drills.purchases_evidence import evidence_document
    from domain.canonical import canonical

    gathered = drilling.drill(buyers, kills, seed, _say)
    if evidence is not None:
        write_out(canonical(evidence_document(gathered)) + b"\n", str(evidence), binary=True)
    report = drilling.report(gathered)
    answer(report, lambda: _show_purchases(report))
    return 0 if report["ok"] else EXIT_FAILED


def _show_purchases(report: dict[str, Any]) -> None:
    rows = [(c["id"], "yes" if c["pass"] else f"NO: {'; '.join(c['wrong'])}", c["what"]) for c in report["checks"]]
    table(("check", "held", "what"), rows)
    facts((name, value) for name, value in report.items() if name not in ("ok", "checks"))


def _show_checks(report: dict[str, Any]) -> None:
    table(
        ("check", "held", "what", "at"),
        [(c["id"], "yes" if c["pass"] else f"NO: {c['seen']}", c["what"], c["at"]) for c in report["checks"]],
    )
    facts((name, report[name]) for name in ("broker", "seconds", "passed", "failed"))


def _told(report: dict[str, Any]) -> int:
    answer(report, lambda: facts((name.replace("_", " "), value) for name, value in report.items()))
    return 0 if report["ok"] else EXIT_FAILED


def _say(text: str) -> None:
    if not wants_json():
        click.echo(text, err=True)
