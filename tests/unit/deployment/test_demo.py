"""The demo's judgement is a pure function of what it fetched: whole evidence passes, and each fault in it fails its own check."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deployment.demo import EMA_LENGTH, Evidence, judge, naive_ema
from deployment.demo_modes import ModeEvidence
from deployment.fixture_run import GOLDEN
from domain.canonical import address_of

GOLDEN_VALUES = [None, None, 2.0, 3.0, 4.0, 5.0]
PRICES = [10.0 + (n * 7) % 13 for n in range(EMA_LENGTH + 20)]


def run_of(run_id: str, values: list[float | None]) -> dict[str, Any]:
    artifact = address_of(["artifact", values])
    result = {"output": "ema", "rows": len(values), "values_hash": address_of(values), "artifact": artifact}
    return {"run_id": run_id, "state": "SUCCEEDED", "results": [result], "attempts": 1}


def events_of(run_id: str, first: int) -> list[dict[str, Any]]:
    topics = [
        ("run", "run.requested.v1"),
        ("lease", "lease.granted.v1"),
        ("run", "run.started.v1"),
        ("run", "run.result_published.v1"),
        ("run", "run.succeeded.v1"),
        ("lease", "lease.released.v1"),
    ]
    versions = {"run": 0, "lease": 0}
    events = []
    for offset, (category, topic) in enumerate(topics):
        versions[category] += 1
        stream = f"{category}/{run_id}"
        position = first + offset
        events.append(
            {
                "position": position,
                "stream": stream,
                "version": versions[category],
                "topic": topic,
                "event_id": f"event {position}",
            }
        )
    return events


def whole() -> dict[str, Any]:
    """Evidence in which everything holds, as plain data."""
    ema = naive_ema(PRICES, EMA_LENGTH)
    modes = {"BATCH": "run_f", "REPLAY": "run_r", "STREAM": "run_s"}
    events = {run_id: events_of(run_id, 1 + 6 * number) for number, run_id in enumerate(("run_a", *modes.values()))}
    return {
        "fixture_run": "run_f",
        "tickers": {"AAPL": "run_a"},
        "runs": [run_of("run_a", ema), *(run_of(run_id, GOLDEN_VALUES) for run_id in modes.values())],
        "values": {"run_a": ema} | {run_id: list(GOLDEN_VALUES) for run_id in modes.values()},
        "events": events,
        "log": [event for each in events.values() for event in each],
        "prices": {"AAPL": [(f"day {n}", price) for n, price in enumerate(PRICES)]},
        "modes": {
            "runs": modes,
            "replay": {"arrivals": 23, "faults": 7},
            "verdict": {
                "verdict": {"kind": "EQUAL_TO_BATCH_GOLDEN"},
                "findings": {"look": "CHECKED", "differing": []},
            },
        },
    }


def broken(evidence: dict[str, Any]) -> set[str]:
    modes = ModeEvidence(**evidence["modes"])
    return {check.name.split()[0] for check in judge(Evidence(**evidence | {"modes": modes})) if not check.held}


def test_without_a_broker_the_other_modes_hold() -> None:
    """There is no STREAM run then, and nothing that is said of one."""
    evidence = whole()
    del evidence["modes"]["runs"]["STREAM"]
    evidence["modes"]["verdict"] = None
    assert broken(evidence) == set()


def test_whole_evidence_holds() -> None:
    """Nothing altered: every check holds, and the golden is the address of the fixture's values."""
    assert broken(whole()) == set()
    assert address_of(GOLDEN_VALUES) == GOLDEN


def _state(evidence: dict[str, Any]) -> None:
    evidence["runs"][0]["state"] = "FAILED"


def _lost_run(evidence: dict[str, Any]) -> None:
    del evidence["runs"][0]


def _twice_published(evidence: dict[str, Any]) -> None:
    evidence["events"]["run_a"][2]["topic"] = "run.result_published.v1"


def _other_hash(evidence: dict[str, Any]) -> None:
    evidence["runs"][0]["results"][0]["values_hash"] = GOLDEN


def _bent_average(evidence: dict[str, Any]) -> None:
    values = evidence["values"]["run_a"]
    values[-1] *= 1.000001
    evidence["runs"][0]["results"][0]["values_hash"] = address_of(values)


def _gap(evidence: dict[str, Any]) -> None:
    del evidence["log"][2]


def _event_not_in_the_log(evidence: dict[str, Any]) -> None:
    evidence["events"]["run_f"][2]["event_id"] = "another"


def _version_twice(evidence: dict[str, Any]) -> None:
    evidence["log"][3]["version"] = 2


def _not_golden(evidence: dict[str, Any]) -> None:
    values = evidence["values"]["run_f"]
    values[-1] = 6.0
    evidence["runs"][1]["results"][0]["values_hash"] = address_of(values)


def _other_artifact(evidence: dict[str, Any]) -> None:
    evidence["runs"][3]["results"][0]["artifact"] = address_of("another")


def _lost_fault(evidence: dict[str, Any]) -> None:
    evidence["modes"]["replay"]["faults"] = 6


def _lost_arrival(evidence: dict[str, Any]) -> None:
    evidence["modes"]["replay"]["arrivals"] = 22


def _no_replay(evidence: dict[str, Any]) -> None:
    evidence["modes"]["replay"] = {}


def _differs(evidence: dict[str, Any]) -> None:
    evidence["modes"]["verdict"]["verdict"]["kind"] = "DIFFERS_BY_INPUT"


def _not_looked(evidence: dict[str, Any]) -> None:
    evidence["modes"]["verdict"]["findings"]["look"] = "COULD_NOT_CHECK"


def _topic_disagrees(evidence: dict[str, Any]) -> None:
    evidence["modes"]["verdict"]["findings"]["differing"] = ["fixture.event.0.0"]


def _no_verdict(evidence: dict[str, Any]) -> None:
    evidence["modes"]["verdict"] = None


def _stream_not_golden(evidence: dict[str, Any]) -> None:
    values = evidence["values"]["run_s"]
    values[-1] = 6.0
    evidence["runs"][3]["results"][0]["values_hash"] = address_of(values)


@pytest.mark.parametrize(
    ("alter", "fails"),
    [
        (_other_artifact, {"modes"}),
        (_lost_fault, {"7"}),
        (_lost_arrival, {"7"}),
        (_no_replay, {"7"}),
        (_differs, {"verdict"}),
        (_not_looked, {"verdict"}),
        (_topic_disagrees, {"verdict"}),
        (_no_verdict, {"verdict"}),
        (_stream_not_golden, {"the"}),
        (_state, {"every"}),
        (_lost_run, {"every"}),
        (_twice_published, {"one"}),
        (_other_hash, {"values"}),
        (_bent_average, {"every"}),
        (_gap, {"events"}),
        (_event_not_in_the_log, {"events"}),
        (_version_twice, {"events"}),
        (_not_golden, {"the"}),
    ],
)
def test_each_fault_fails_its_check(alter: Callable[[dict[str, Any]], None], fails: set[str]) -> None:
    """One thing altered in whole evidence: the check that is about it fails, and no other."""
    evidence = msgspec.json.decode(msgspec.json.encode(whole()))
    alter(evidence)
    assert broken(evidence) == fails
