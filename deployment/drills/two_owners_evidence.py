"""What the drill of two owners gathers, as one plain document: what its checks are pure functions of.

Everything stands as its source gave it: events as the log has them, lines as the processes wrote them, emits as they lie in
their files, instants by the database's clock. What must stay true: nothing is judged here; a document written out and read
again gives the same checks.
"""

from typing import Any, Final

import msgspec

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

    `instants` are by the database's clock (RFC 3339); `facts` what else was seen, under names that the checks know.
    """

    run_id: str
    actors: dict[str, Actor]
    log: tuple[dict[str, Any], ...]
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
