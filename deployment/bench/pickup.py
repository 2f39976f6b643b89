"""Idle pick-up: how long a job waits that comes alone into an idle system, with one worker that listens.

Two spans per job: from the acknowledgement of its submission to the start of its work, and from the call that submits it. The
aim is stated for the first; the second holds the cost of submitting, too.
"""

from typing import Any, Final

from deployment.bench.contenders import RAW_NOTIFY, Contender, Trial, python_of, trial
from deployment.bench.figures import aim, answer, figure, percentile, ratio
from deployment.bench.own import OWN
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres

JOBS: Final = 200
"""Jobs of one trial at scale 1."""

JOBS_MIN: Final = 5

PAUSE_SECONDS: Final = 0.02
"""Between an acknowledgement and the next submission."""

RATIO_AIM: Final = 3.0
"""Ours may take so many times what the raw loop takes, at the median."""


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of ours and of a raw loop that is notified, interleaved; see `registry.py`."""
    return compare((OWN, RAW_NOTIFY), repeats, scale, report)


def compare(contenders: tuple[Contender, ...], repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Trials of the contenders, interleaved; the last is what the others are compared with."""
    jobs = max(JOBS_MIN, round(JOBS * scale))
    trials: dict[str, list[Trial]] = {contender.name: [] for contender in contenders}
    with EmbeddedPostgres() as server:
        for repeat in range(repeats):
            for contender in contenders:
                done = trial(contender, python_of(contender, report), server, jobs, pause_seconds=PAUSE_SECONDS)
                trials[contender.name].append(done)
                waited = percentile(done.since_acknowledged, 0.5) * 1000
                report(f"pickup {repeat + 1}/{repeats}: {contender.name} p50 {waited:.2f} ms")
    yardstick = contenders[-1].name
    medians = {name: [percentile(done.since_acknowledged, 0.5) for done in each] for name, each in trials.items()}
    return answer(
        f"{jobs} jobs submitted one by one into an idle system, {repeats} repeats: how long until the work starts?",
        [figure for name, each in trials.items() for figure in _figures(name, each)],
        [
            aim(f"idle pick-up p50, {name} to {yardstick}", ratio(each, medians[yardstick]), at_most=RATIO_AIM)
            for name, each in medians.items()
            if name != yardstick
        ],
        jobs=jobs,
        pause_seconds=PAUSE_SECONDS,
        versions={name: dict(each[0].versions) for name, each in trials.items()},
    )


def _figures(name: str, trials: list[Trial]) -> list[dict[str, Any]]:
    return [
        figure(
            f"{name}, {percent} since {since}",
            [percentile(getattr(done, f"since_{since}"), share) * 1000 for done in trials],
            "ms",
        )
        for since in ("acknowledged", "called")
        for percent, share in (("p50", 0.5), ("p99", 0.99))
    ]
