"""The demo's three modes: the fixture in BATCH, in REPLAY with its seven faults, and as a STREAM through a broker.

What must stay true: the checks are pure functions of what was fetched, so each can be seen to fail on altered evidence; without a
broker there is no STREAM, and that is said, not passed over.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deployment.api_client import ApiBlobStore, ApiClient
from deployment.fixture_files import fixture_path
from deployment.fixture_run import AS_OF, fixture_body
from domain.canonical import parse
from domain.instants import parse_instant, to_micros
from domain.market.faults import parse_schedule, schedule_body
from domain.stream.publication import DEFAULT_TOPIC
from services.replay import made_log
from services.replay_publishing import ReplayRequest, publish

SCHEDULE_FILE: Final = "schedules/fixture.faults.01.json"
ARRIVALS: Final = 23
FAULTS: Final = 7
TAGS: Final = ("demo", "fixture")
EQUAL: Final = "EQUAL_TO_BATCH_GOLDEN"


@dataclass(frozen=True)
class ModeEvidence:
    """Run ids of the fixture by mode, what the replay did, and the verdict on the stream (None: there was no broker)."""

    runs: Mapping[str, str] = field(default_factory=dict)
    replay: Mapping[str, Any] = field(default_factory=dict)
    verdict: Mapping[str, Any] | None = None


def submitted_modes(client: ApiClient, snapshot: str, bootstrap: str | None) -> dict[str, str]:
    """Submit the fixture in each mode that can be had; run ids by mode."""
    schedule = parse_schedule(parse(fixture_path(SCHEDULE_FILE).read_bytes()))
    bodies = {
        "BATCH": fixture_body(snapshot, TAGS),
        "REPLAY": fixture_body(snapshot, TAGS) | {"mode": "REPLAY", "schedule": schedule_body(schedule)},
    }
    if bootstrap is not None:
        _publish(client, snapshot, bootstrap)
        bodies["STREAM"] = fixture_body(snapshot, TAGS) | {"mode": "STREAM", "topic": DEFAULT_TOPIC}
    return {mode: client.submit_run(body, f"demo-fixture-{mode}")["run_id"] for mode, body in bodies.items()}


def fetched_modes(client: ApiClient, runs: Mapping[str, str], succeeded: Iterable[str]) -> ModeEvidence:
    """What there is to be known of the runs that succeeded."""
    done = set(succeeded)
    replay = client.replay(runs["REPLAY"]) if runs["REPLAY"] in done else {}
    stream = runs.get("STREAM")
    return ModeEvidence(runs, replay, client.verdict(stream) if stream in done and stream is not None else None)


def _publish(client: ApiClient, snapshot: str, bootstrap: str) -> None:
    from services.adapters.kafka import KafkaBroker

    schedule = parse_schedule(parse(fixture_path(SCHEDULE_FILE).read_bytes()))
    log = made_log(ApiBlobStore(client), snapshot, to_micros(parse_instant(AS_OF)), schedule)
    broker = KafkaBroker(bootstrap)
    try:
        publish(broker, log, ReplayRequest(topic=DEFAULT_TOPIC))
    finally:
        broker.close()


# ------------------------------------------------------------------------------------------------ judging


def parted_modes(evidence: ModeEvidence, runs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Modes whose artifact is not that of BATCH."""
    artifacts = {run["run_id"]: [result["artifact"] for result in run["results"]] for run in runs}
    reference = artifacts.get(evidence.runs.get("BATCH", ""))
    for mode, run_id in evidence.runs.items():
        if not artifacts.get(run_id) or artifacts[run_id] != reference:
            yield f"{mode}: {artifacts.get(run_id)}"


def lost_faults(evidence: ModeEvidence) -> Iterable[str]:
    """What the replay did not record as it should."""
    found = (evidence.replay.get("arrivals"), evidence.replay.get("faults"))
    if found != (ARRIVALS, FAULTS):
        yield f"{found[0]} arrivals, {found[1]} faults"


def other_verdict(evidence: ModeEvidence) -> Iterable[str]:
    """What the verdict on the stream should not be."""
    if "STREAM" not in evidence.runs:
        return
    found = evidence.verdict or {"verdict": {"kind": "none"}, "findings": {"look": "none", "differing": ()}}
    kind, findings = found["verdict"]["kind"], found["findings"]
    if kind != EQUAL or findings["look"] != "CHECKED" or findings["differing"]:
        yield f"{kind}, topic {findings['look']}"
