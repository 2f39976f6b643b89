"""The drills' judgement is worth something: each kind of damage in the evidence is seen."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deployment.drills import kill_worker, soak
from domain.instants import format_instant

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)


def event(position: int, stream: str, topic: str, seconds: float, **fields: Any) -> dict[str, Any]:
    """An event as the API shows it."""
    return {
        "position": position,
        "stream": stream,
        "topic": topic,
        "recorded_at": format_instant(NOW + timedelta(seconds=seconds)),
        "event": fields,
    }


def story(run_id: str) -> list[dict[str, Any]]:
    """A run whose first worker was killed at second 1, and which another worker finished."""
    run, lease = f"run/{run_id}", f"lease/{run_id}"
    result = {"output": "ema"}
    steps: list[tuple[str, str, float, dict[str, Any]]] = [
        (run, "run.requested.v1", 0.0, {}),
        (lease, "lease.granted.v1", 0.5, {"token": 1, "ttl_seconds": 3.0}),
        (run, "run.started.v1", 0.5, {"token": 1}),
        (run, "run.requeued.v1", 3.6, {"token": 1, "reason": "ORPHANED"}),
        (lease, "lease.granted.v1", 3.7, {"token": 2, "ttl_seconds": 3.0}),
        (run, "run.started.v1", 3.7, {"token": 2}),
        (run, "run.result_published.v1", 3.8, {"token": 2, "result": result}),
        (run, "run.succeeded.v1", 3.8, {"token": 2}),
        (lease, "lease.released.v1", 3.8, {"token": 2}),
    ]
    return [event(n, stream, topic, at, **fields) for n, (stream, topic, at, fields) in enumerate(steps, 1)]


def killed(log: list[dict[str, Any]]) -> dict[str, Any]:
    """The report of a kill drill with this log."""
    killed_at = (NOW + timedelta(seconds=1),)
    return kill_worker.report(
        kill_worker.Evidence(submitted=("run_a",), killed_at=killed_at, log=tuple(log), seconds=1.0)
    )


def soaked(log: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """The report of a soak with this log."""
    fields: dict[str, Any] = {
        "acknowledged": ("run_a",),
        "unanswered": 0,
        "kills": {"worker-1": 1},
        "settled": True,
        "alerts": (),
        "dead_letters": (),
        "log": tuple(log),
        "seconds": 1.0,
    }
    return soak.report(soak.Evidence(**(fields | changes)))


def test_a_good_story_is_good() -> None:
    """What held is said to have held, with the times of the recovery."""
    report = killed(story("run_a"))
    assert report["ok"]
    assert (report["succeeded"], report["lost"], report["published_twice"], report["orphaned"]) == (1, 0, 0, 1)
    assert report["recovered_after_seconds"] == 2.7
    assert report["restarted_after_expiry_seconds"] == 0.2
    assert soaked(story("run_a"))["ok"]


def altered(kind: str) -> list[dict[str, Any]]:
    """The good story with one thing wrong."""
    log = copy.deepcopy(story("run_a"))
    match kind:
        case "lost":
            del log[7]
        case "failed":
            log[7]["topic"] = "run.failed.v1"
        case "published twice":
            log.insert(7, copy.deepcopy(log[6]))
        case "ended twice":
            log.append(copy.deepcopy(log[7]))
        case "late effect":
            log[6]["event"]["token"] = 1
        case "nothing orphaned":
            log[3]["event"]["reason"] = "HANDED_BACK"
        case "slow":
            for late in log[4:6]:
                late["recorded_at"] = format_instant(NOW + timedelta(seconds=9))
    return log


@pytest.mark.parametrize(
    "kind", ["lost", "failed", "published twice", "ended twice", "late effect", "nothing orphaned", "slow"]
)
def test_each_kind_of_damage_fails_the_kill_drill(kind: str) -> None:
    """A check that cannot fail proves nothing."""
    assert not killed(altered(kind))["ok"]


@pytest.mark.parametrize("kind", ["lost", "published twice", "ended twice", "late effect"])
def test_each_kind_of_damage_fails_the_soak(kind: str) -> None:
    """The same judgement, and a log with a hole."""
    log = altered(kind)
    for position, entry in enumerate(log, 1):
        entry["position"] = position
    assert not soaked(log)["ok"]


@pytest.mark.parametrize(
    "changes",
    [
        {"settled": False},
        {"alerts": (("RUN_DIFFERS", "run_a", "rebuild it"),)},
        {"dead_letters": (("reconciler", "verify", "run_a", "no idea"),)},
        {"audit_findings": ("ROW_DIFFERENT runs run_a: state='QUEUED'",)},
        {"acknowledged": ()},
        {"acknowledged": ("run_a", "run_b")},
    ],
)
def test_what_else_fails_the_soak(changes: dict[str, Any]) -> None:
    """Not settled, an alert, a dead letter, a finding, no load at all, an acknowledged run that is not there."""
    assert not soaked(story("run_a"), **changes)["ok"]


def test_a_hole_in_the_log_fails_the_soak() -> None:
    """Positions are contiguous from 1."""
    assert not soaked(story("run_a")[1:])["ok"]
