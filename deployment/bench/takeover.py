"""How long after its owner's death a stream run is committed to again: `finaz drill two-owners` carried out, its kill measured.

B2 is killed (SIGKILL) while it works; C, who stood by, must wait until the lease is over, takes the run, restores and commits. The
time beyond the lease's end is ours; the time before it is the lease's (6 seconds in the drill), less what had passed since the
last renewal. Instants are the database's. `scale` changes nothing; a repeat takes about a minute.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from deployment.bench.contenders import TrialFailedError
from deployment.bench.figures import aim, answer, figure
from deployment.brokers.apache import apache_kafka
from deployment.brokers.embedded import embedded_broker
from deployment.brokers.jars import KAFKA_JARS
from deployment.drills import two_owners
from deployment.drills.two_owners_evidence import Phase, expires_at
from domain.instants import parse_instant

AFTER_EXPIRY_SECONDS_MAX: Final = 2.0


class Takeover(NamedTuple):
    """Seconds from the owner's death, and from its lease's end, to the successor's first commit."""

    since_death: float
    since_expiry: float


def run(repeats: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Carry out the drill `repeats` times."""
    measured: list[Takeover] = []
    passed: list[int] = []
    for number in range(repeats):
        evidence = two_owners.drill(
            embedded_broker if KAFKA_JARS.missing() else apache_kafka, lambda text: report(f"takeover: {text}")
        )
        passed.append(two_owners.report(evidence)["passed"])
        measured.append(takeover_of(evidence.kill))
        report(f"takeover {number + 1}/{repeats}: {measured[-1].since_death:.2f} s, {passed[-1]} checks hold")
    since_expiry = [each.since_expiry for each in measured]
    return answer(
        f"A lease of {two_owners.LEASE_TTL_SECONDS:g} s: how long from its owner's death to the successor's first commit?",
        [
            figure("since the death", [each.since_death for each in measured], "s"),
            figure("since the lease's end", since_expiry, "s"),
        ],
        [aim("seconds beyond the lease's end", max(since_expiry), at_most=AFTER_EXPIRY_SECONDS_MAX)],
        [f"Of the drill's checks {min(passed)} held, in the worst of {repeats}. The aim is judged by the slowest."],
        versions={"broker": evidence.broker},
    )


def takeover_of(phase: Phase) -> Takeover:
    """What the evidence of the drill's kill says. Raises `TrialFailedError` if nobody took over."""
    grant, commits = phase.granted(2), phase.checkpoints(2)
    expiry = expires_at(phase, 1, grant["recorded_at"]) if grant else None
    if expiry is None or not commits:
        raise TrialFailedError("nobody took the run over", at="two-owners")
    at = parse_instant(commits[0]["recorded_at"])
    killed = parse_instant(phase.instants["b2_killed"])
    return Takeover((at - killed).total_seconds(), (at - expiry).total_seconds())
