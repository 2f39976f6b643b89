"""What the log says about the runs of a drill, and what its checks come to.

Pure functions of its events, so that each can be seen to fail on altered ones.

Events are as the API shows them: `stream`, `topic`, `recorded_at` (RFC 3339) and the fact in `event`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from domain.instants import parse_instant

Events = Sequence[Mapping[str, Any]]

ENDS = {"run.succeeded.v1": "SUCCEEDED", "run.failed.v1": "FAILED", "run.cancelled.v1": "CANCELLED"}


class Recovery(msgspec.Struct, frozen=True):
    """One orphan: when its lease ran out, when it was put back, and when another worker started it."""

    run_id: str
    lease_expired_at: datetime
    requeued_at: datetime
    restarted_at: datetime | None


def tallied(checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A report's judged checks with how many passed and failed; `ok` if all did."""
    passed = sum(bool(check["pass"]) for check in checks)
    return {"ok": passed == len(checks), "checks": checks, "passed": passed, "failed": len(checks) - passed}


def by_run(log: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The events of each run and of its leases, in order."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for event in log:
        category, _, key = event["stream"].partition("/")
        if category in ("run", "lease"):
            runs.setdefault(key, []).append(event)
    return runs


def end_of(events: Events) -> str | None:
    """How the run ended, by its own stream; None if it has not."""
    return next((ENDS[event["topic"]] for event in reversed(events) if event["topic"] in ENDS), None)


def lost(acknowledged: Iterable[str], runs: Mapping[str, Events]) -> list[str]:
    """Runs that the API acknowledged and that did not end."""
    return [run_id for run_id in acknowledged if end_of(runs.get(run_id, ())) is None]


def published_twice(runs: Mapping[str, Events]) -> list[str]:
    """Runs with an output that was published more than once, or that ended more than once."""
    found = []
    for run_id, events in runs.items():
        outputs = [e["event"]["result"]["output"] for e in events if e["topic"] == "run.result_published.v1"]
        ends = [e for e in events if e["topic"] in ENDS]
        if len(outputs) != len(set(outputs)) or len(ends) > 1:
            found.append(run_id)
    return found


def late_effects(runs: Mapping[str, Events]) -> list[str]:
    """Runs with an event of an owner after a higher token existed."""
    found = []
    for run_id, events in runs.items():
        highest = 0
        for event in events:
            token = event["event"].get("token", 0)
            if event["topic"] == "lease.granted.v1":
                highest = max(highest, token)
            elif token and token < highest:
                found.append(run_id)
                break
    return found


def recoveries(runs: Mapping[str, Events]) -> list[Recovery]:
    """Every orphan that was put back, and what became of it."""
    found = []
    for run_id, events in runs.items():
        for index, event in enumerate(events):
            if event["topic"] == "run.requeued.v1" and event["event"]["reason"] == "ORPHANED":
                started = [e for e in events[index:] if e["topic"] == "run.started.v1"]
                found.append(
                    Recovery(
                        run_id,
                        _expiry(events[:index]),
                        parse_instant(event["recorded_at"]),
                        parse_instant(started[0]["recorded_at"]) if started else None,
                    )
                )
    return found


def _expiry(events: Events) -> datetime:
    last = [e for e in events if e["topic"] in ("lease.granted.v1", "lease.renewed.v1")][-1]
    return parse_instant(last["recorded_at"]) + timedelta(seconds=last["event"]["ttl_seconds"])
