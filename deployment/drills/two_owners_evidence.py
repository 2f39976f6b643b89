"""What the drill of two owners gathers, as one plain document: what its checks are pure functions of.

Everything stands as its source gave it: events as the log has them, lines as the processes wrote them, emits as they lie in
their files, instants by the database's clock. What must stay true: nothing is judged here; a document written out and read
again gives the same checks.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

import domain.vocabulary  # noqa: F401 -- registers every topic
from domain.canonical import canonical
from domain.errors import FinazError
from domain.events import Recorded, decode
from domain.folds import fold_of, key_of
from domain.instants import parse_instant

FORMAT: Final = "FINAZ_TWO_OWNERS_V1"


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its owner id, how it ended (a negative status is the signal), the code of its error, its emit, its lines."""

    name: str
    owner: str
    pid: int
    exit_status: int | None
    code: str
    emit: dict[str, Any] | None
    lines: tuple[dict[str, Any], ...]

    def said(self, event: str, after: int = 0) -> list[dict[str, Any]]:
        """Its lines of that event, from the line number on."""
        return [line for line in self.lines[after:] if line.get("event") == event]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One run with its owners. `log` has the events of the run, its lease, journal and checkpoints by position.

    `manifests` are the committed checkpoints' manifests by address; `instants` are by the database's clock (RFC 3339); `facts` what
    else was seen, under names that the checks know.
    """

    run_id: str
    actors: dict[str, Actor]
    log: tuple[dict[str, Any], ...]
    manifests: dict[str, dict[str, Any]]
    instants: dict[str, str]
    facts: dict[str, Any]

    def events(self, topic: str) -> list[dict[str, Any]]:
        """The events of one topic, by position."""
        return [event for event in self.log if event["topic"] == topic]

    def granted(self, token: int) -> dict[str, Any] | None:
        """The grant of a token."""
        return next((e for e in self.events("lease.granted.v1") if e["event"]["token"] == token), None)

    def checkpoints(self, token: int) -> list[dict[str, Any]]:
        """The checkpoints that the owner of a token committed."""
        return [e for e in self.events("checkpoint.committed.v1") if e["event"]["token"] == token]


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a check saw, whether that is as it must be, and when it was so."""

    passed: bool
    seen: Any
    at: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check: a pure function of the evidence. `source` says where what it looks at comes from."""

    id: str
    what: str
    source: str
    judge: "Callable[[Evidence], Observation]"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `marks` are [low, high] of each partition of the topic, as the broker said after publication."""

    format: str
    broker: str
    topic: str
    marks: dict[str, tuple[int, int]]
    marks_at: str
    golden: str
    lease_ttl_seconds: float
    checkpoint_every: int
    pace: float
    zombie: Phase
    kill: Phase
    seconds: float


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """As plain data."""
    document: dict[str, Any] = msgspec.to_builtins(evidence)
    return document


def evidence_of(document: dict[str, Any]) -> Evidence:
    """From plain data. Raises `msgspec.ValidationError`."""
    return msgspec.convert(document, Evidence)


def expires_at(phase: Phase, token: int, as_of: str) -> datetime | None:
    """When the lease of the token ends by what was recorded up to an instant; None if it was not granted by then."""
    found = None
    for event in phase.log:
        if event["topic"] in ("lease.granted.v1", "lease.renewed.v1") and event["event"]["token"] == token:
            at = parse_instant(event["recorded_at"])
            if at <= parse_instant(as_of):
                found = at + timedelta(seconds=event["event"]["ttl_seconds"])
    return found


def wholeness(phase: Phase) -> list[str]:
    """What is wrong with the run's streams by the rules of an audit: versions, transitions, and what no table can say."""
    found: list[str] = []
    states: dict[str, Any] = {}
    versions: dict[str, int] = {}
    for row in phase.log:
        stream, version = row["stream"], row["version"]
        if version != versions.get(stream, 0) + 1:
            found.append(f"{stream} goes from version {versions.get(stream, 0)} to {version}")
        versions[stream] = version
        try:
            fold = fold_of(stream)
            recorded = _recorded(row)
            state = states[stream] if stream in states else fold.initial(key_of(stream))
            problem = fold.problem(state, recorded.event)
            if problem is not None:
                found.append(f"{stream} version {version}: {problem}")
            states[stream] = fold.evolve(state, recorded)
        except FinazError as error:
            found.append(f"{stream} version {version}: {error}")
    return found


def _recorded(row: dict[str, Any]) -> Recorded:
    return Recorded(
        position=row["position"],
        stream=row["stream"],
        version=row["version"],
        event_id=UUID(int=row["position"]),
        recorded_at=parse_instant(row["recorded_at"]),
        event=decode(row["topic"], canonical(row["event"])),
    )
