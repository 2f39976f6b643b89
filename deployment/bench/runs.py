"""Runs end to end: no-op runs through ours, a raw loop and three peers, from the first submission to the last seen done.

Ours does more in that time than the others: it claims the idempotency key, stores every event, takes a lease and checks its
token in each append, computes, stores the artifact in the content-addressed store and publishes a result. The raw loop in
batches of 50 does nothing but mark rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deployment.bench.contenders import (
    PEERS,
    RAW,
    RAW_SINGLE,
    Contender,
    Trial,
    python_of,
    trial,
)
from deployment.bench.figures import aim, answer, figure, ratio
from deployment.bench.own import OWN
from deployment.bench.peers.environments import PeerUnavailableError
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres

JOBS: Final = 2000
"""Jobs of one trial at scale 1."""

JOBS_MIN: Final = 10

RATIO_TO_RAW_AIM: Final = 0.5
"""Half of the raw loop, which stores nothing that ours stores."""


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of ours, the raw loop and the peers, interleaved; see `registry.py`."""
    return compare((OWN, RAW, RAW_SINGLE, *PEERS), repeats, scale, report)


def compare(contenders: Sequence[Contender], repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of the contenders, which name ours and the raw loop; a peer that can't be had is left out and noted."""
    jobs = max(JOBS_MIN, round(JOBS * scale))
    pythons, notes = _environments(contenders, report)
    present = [contender for contender in contenders if contender.name in pythons]
    trials: dict[str, list[Trial]] = {contender.name: [] for contender in present}
    with EmbeddedPostgres() as server:
        for repeat in range(repeats):
            for contender in present:
                done = trial(contender, pythons[contender.name], server, jobs)
                trials[contender.name].append(done)
                report(f"runs {repeat + 1}/{repeats}: {contender.name} {done.jobs_per_second:.0f}/s")
    return answer(
        f"{jobs} no-op jobs with a dedup key, {repeats} repeats, one worker process: how many per second, "
        "from the first submission to the last one done?",
        [_figure(name, each, trials[RAW.name]) for name, each in trials.items()],
        _aims(trials),
        notes,
        jobs=jobs,
        submitted=[
            figure(name, [done.submitted_per_second for done in each], "jobs/s") for name, each in trials.items()
        ],
        worker_cpu=[
            figure(name, [done.worker_cpu_seconds * 1000 / done.jobs for done in each], "ms/job")
            for name, each in trials.items()
        ],
        versions={name: dict(each[0].versions) for name, each in trials.items()},
    )


def _environments(contenders: Sequence[Contender], report: Report) -> tuple[dict[str, Path], list[str]]:
    pythons, notes = {}, []
    for contender in contenders:
        try:
            pythons[contender.name] = python_of(contender, report)
        except PeerUnavailableError as error:
            notes.append(f"{contender.name} was not measured: {error}")
    return pythons, notes


def _rates(trials: Sequence[Trial]) -> list[float]:
    return [done.jobs_per_second for done in trials]


def _figure(name: str, trials: Sequence[Trial], raw: Sequence[Trial]) -> dict[str, Any]:
    return figure(name, _rates(trials), "jobs/s", ratio=ratio(_rates(trials), _rates(raw)), against=RAW.name)


def _aims(trials: dict[str, list[Trial]]) -> list[dict[str, Any]]:
    if OWN.name not in trials:
        return []
    own = _rates(trials[OWN.name])
    peers = [peer.name for peer in PEERS if peer.name in trials]
    return [
        aim(f"runs end to end, ours to {RAW.name}", ratio(own, _rates(trials[RAW.name])), at_least=RATIO_TO_RAW_AIM),
        *(aim(f"runs end to end, ours to {name}", ratio(own, _rates(trials[name])), at_least=1.0) for name in peers),
    ]
