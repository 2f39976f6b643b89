"""`finaz drill two-owners`: one stream run, several owners, and never two of them at once.

Real processes, a real broker, a lease of 6 seconds. First phase: A works; B0, an intruder, is refused; A is stopped (SIGSTOP)
until its lease is over and B, who stood by, has taken the run; A wakes as a zombie and must not get anything in. Second phase,
a second run: B2 is killed (SIGKILL), and C, who stood by, takes over. Judged by 36 checks, pure functions of what was gathered
(`two_owners_zombie.py`, `two_owners_kill.py`).

What must stay true: the drill only looks, starts, stops and kills; nothing that it finds is left out of the evidence. A crash
leaves temporary folders at most.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from deployment.brokers.process import BrokerProcess
from deployment.drills.judging import tallied
from deployment.drills.two_owners_evidence import FORMAT, Check, Evidence, Observation, Phase
from deployment.drills.two_owners_kill import KILL_CHECKS
from deployment.drills.two_owners_stage import Player, Stage
from deployment.drills.two_owners_zombie import ZOMBIE_CHECKS
from deployment.embedded import EmbeddedPostgres
from deployment.fixture_files import fixture_path
from deployment.fixture_run import AS_OF, GOLDEN, PRINCIPAL, store_fixture_snapshot
from deployment.migrate import migrate
from deployment.settings import child_environment, without_broker
from domain.canonical import parse
from domain.errors import FinazError
from domain.instants import parse_instant, to_micros
from domain.market.arrivals import ArrivalLog, arrival_log
from domain.market.faults import parse_schedule
from domain.market.records import parse_event
from domain.stream.publication import load_ids, outgoing
from projections.inline import INLINE
from services.adapters.kafka import KafkaBroker
from services.admission import Admissions
from services.broker import Broker
from services.cas import DirectoryBlobStore
from services.requests import parse_run_body
from services.store.application import Log

LEASE_TTL_SECONDS: Final = 6.0
LOADS: Final = 13
PARTITIONS: Final = 4
TOPIC: Final = "finaz-drill.two-owners.v1"
FLOW: Final = "flows/01_A_feature.json"
SCHEDULE: Final = "schedules/fixture.faults.01.json"
SNAPSHOT: Final = "snapshots/fixture.snapshot.01.jsonl"

CHECKPOINT_EVERY: Final = 25
PACE: Final = 20.0
"""Records per second of A and B2: 299 of them take 15 seconds, so that both are caught at work."""

SUCCESSOR_PACE: Final = 60.0

Say = Callable[[str], None]


def drill(make_broker: Callable[[], BrokerProcess], say: Say, *, planted: bool = False) -> Evidence:
    """Carry out the drill on a broker of its own. `planted` is for the drill's own tests: A stays awake, B2 is asked to end."""
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="finaz-")))
        say("starting PostgreSQL and the broker")
        database = stack.enter_context(EmbeddedPostgres())
        migrate(database.dsn())
        process = stack.enter_context(make_broker())
        say(f"the broker is {process.name}")
        environment = without_broker(child_environment()) | {
            "FINAZ_CAS_DIR": str(folder / "cas"),
            "FINAZ_KAFKA_BOOTSTRAP": process.bootstrap,
            "FINAZ_LEASE_TTL_SEC": str(LEASE_TTL_SECONDS),
            "FINAZ_LOG_LEVEL": "debug",
            "FINAZ_LOG_FORMAT": "json",
        }
        log = Log(database.dsn(), INLINE)
        stack.callback(log.close)
        blobs = DirectoryBlobStore(folder / "cas")
        snapshot = store_fixture_snapshot(blobs)
        broker = KafkaBroker(process.bootstrap)
        stack.callback(broker.close)
        say(f"publishing {LOADS} loads of the fixture's arrivals")
        marks = _published(broker, _arrivals(snapshot))
        stage = stack.enter_context(Stage(database.dsn(), environment, folder, log, blobs))
        marks_at = stage.now()
        runs = [asyncio.run(_admitted(log, blobs, snapshot)) for _ in range(2)]
        zombie = _zombie_phase(stage, runs[0], say, planted)
        kill = _kill_phase(stage, runs[1], say, planted)
        return Evidence(
            format=FORMAT,
            broker=process.name,
            topic=TOPIC,
            marks=marks,
            marks_at=marks_at,
            golden=GOLDEN,
            lease_ttl_seconds=LEASE_TTL_SECONDS,
            checkpoint_every=CHECKPOINT_EVERY,
            pace=PACE,
            zombie=zombie,
            kill=kill,
            seconds=round(time.monotonic() - began, 3),
        )


def report(evidence: Evidence) -> dict[str, Any]:
    """The drill's report, a pure function of its evidence; `ok` tells whether all 36 checks held."""
    checks = [_judged(check, evidence) for check in (*ZOMBIE_CHECKS, *KILL_CHECKS)]
    return {
        "broker": evidence.broker,
        "lease_ttl_seconds": evidence.lease_ttl_seconds,
        "checkpoint_every": evidence.checkpoint_every,
        "pace": evidence.pace,
        "seconds": evidence.seconds,
        **tallied(checks),
    }


def _judged(check: Check, evidence: Evidence) -> dict[str, Any]:
    """A check's line of the report. Evidence that lacks what the check looks at fails it."""
    try:
        found = check.judge(evidence)
    except (KeyError, IndexError, TypeError, ValueError, FinazError) as error:
        found = Observation(passed=False, seen=f"{type(error).__name__}: {error}", at=evidence.marks_at)
    return {
        "id": check.id,
        "what": check.what,
        "pass": found.passed,
        "seen": found.seen,
        "source": check.source,
        "at": found.at,
    }


# ------------------------------------------------------------------------------------------------ the phases


def _zombie_phase(stage: Stage, run_id: str, say: Say, planted: bool) -> Phase:
    instants: dict[str, str] = {}
    facts: dict[str, Any] = {}
    say("zombie phase: A works, B stands by")
    a = _started(stage, "A", run_id, PACE)
    stage.wait("A's first checkpoint", lambda: bool(_of(stage, run_id, "checkpoint.committed.v1")), a)
    b = _started(stage, "B", run_id, SUCCESSOR_PACE, "--standby")
    say("B0, an intruder, asks for the run")
    instants["intruder_started"] = stage.now()
    b0 = _started(stage, "B0", run_id, SUCCESSOR_PACE)
    b0.ended()
    instants["intruder_ended"] = stage.now()
    stage.wait("B standing by", lambda: b.said("stream.waiting"), b)
    if not planted:
        a.signal(signal.SIGSTOP)
        stage.wait("A's stop", lambda: a.state() == "T", a)
        instants["a_stopped"] = stage.now()
        say("A is stopped; its lease runs out")
    facts["a_state"] = a.state()
    # An awake A (planted) finishes the run instead; then A and B end in any order.
    stage.wait("B's lease or the end of A or B without it", lambda: _taken(stage, run_id) or a.is_over() or b.is_over())
    facts["a_lines_asleep"] = len(a.actor().lines)
    instants["b_seen"] = stage.now()
    a.signal(signal.SIGCONT)
    instants["a_woken"] = stage.now()
    say("B has the run; A wakes")
    a.ended()
    instants["a_ended"] = stage.now()
    b.ended()
    instants["b_ended"] = stage.now()
    say("A and B have ended")
    return _phase(stage, run_id, (a, b0, b), instants, facts)


def _kill_phase(stage: Stage, run_id: str, say: Say, planted: bool) -> Phase:
    instants: dict[str, str] = {}
    facts: dict[str, Any] = {}
    say("kill phase: B2 works, C stands by")
    b2 = _started(stage, "B2", run_id, PACE)
    stage.wait("B2's first checkpoint", lambda: bool(_of(stage, run_id, "checkpoint.committed.v1")), b2)
    c = _started(stage, "C", run_id, SUCCESSOR_PACE, "--standby")
    stage.wait("C standing by", lambda: c.said("stream.waiting"), c)
    pid = b2.pid
    b2.signal(signal.SIGTERM if planted else signal.SIGKILL)
    b2.ended()
    instants["b2_killed"] = stage.now()
    facts["b2_state"] = b2.state()
    facts["b2_pid"] = pid
    facts["c_lines_at_kill"] = len(c.actor().lines)
    stage.wait("the end of B2's sessions", lambda: stage.sessions("B2") == 0)
    instants["b2_sessions_gone"] = stage.now()
    facts["b2_sessions"] = stage.sessions("B2")
    say("B2 is killed; its lease runs out")
    c.ended()
    instants["c_ended"] = stage.now()
    say("C has ended")
    return _phase(stage, run_id, (b2, c), instants, facts)


def _started(stage: Stage, name: str, run_id: str, pace: float, *options: str) -> Player:
    every = ("--checkpoint-every", str(CHECKPOINT_EVERY), "--checkpoint-seconds", "3600", "--pace", str(pace))
    return stage.start(name, run_id, TOPIC, FLOW, *every, *options)


def _of(stage: Stage, run_id: str, topic: str) -> list[dict[str, Any]]:
    return [event for event in stage.log(run_id) if event["topic"] == topic]


def _taken(stage: Stage, run_id: str) -> bool:
    """Whether a second owner has the run."""
    return len(_of(stage, run_id, "lease.granted.v1")) > 1


def _phase(
    stage: Stage, run_id: str, players: tuple[Player, ...], instants: dict[str, str], facts: dict[str, Any]
) -> Phase:
    instants["gathered"] = stage.now()
    log = stage.log(run_id)
    manifests = {e["event"]["manifest"] for e in log if e["topic"] == "checkpoint.committed.v1"}
    return Phase(
        run_id=run_id,
        actors={player.name: player.actor() for player in players},
        log=tuple(log),
        manifests={address: stage.manifest(address) for address in sorted(manifests)},
        instants=instants,
        facts=facts,
    )


# ------------------------------------------------------------------------------------------------ what they work on


def _arrivals(snapshot: str) -> ArrivalLog:
    events = [parse_event(line) for line in fixture_path(SNAPSHOT).read_bytes().splitlines()]
    schedule = parse_schedule(parse(fixture_path(SCHEDULE).read_bytes()))
    return arrival_log(events, to_micros(parse_instant(AS_OF)), schedule, snapshot)


def _published(broker: Broker, log: ArrivalLog) -> dict[str, tuple[int, int]]:
    """The marks of the topic after the loads of the log were published."""
    broker.topics().create(TOPIC, PARTITIONS, {"cleanup.policy": "delete"})
    publisher = broker.publisher()
    for sent in outgoing(log.arrivals, load_ids("drill", LOADS), PARTITIONS, {}):
        publisher.send(TOPIC, sent.partition, sent.key, sent.value, sent.headers)
    publisher.flush(60.0)
    publisher.close()
    source = broker.source(TOPIC)
    marks = {str(partition): (mark.low, mark.high) for partition, mark in sorted(source.marks().items())}
    source.close()
    return marks


async def _admitted(log: Log, blobs: DirectoryBlobStore, snapshot: str) -> str:
    body = {
        "mode": "STREAM",
        "flow": parse(fixture_path(FLOW).read_bytes()),
        "topic": TOPIC,
        "snapshot": snapshot,
        "as_of": AS_OF,
        "tags": ["drill"],
    }
    submitted = await Admissions(log, blobs).submit_run(PRINCIPAL, uuid4().hex, parse_run_body(body))
    return submitted.run_id
