"""Is everything there that events point to, and what those blobs point to in turn? Each address once: present, and hashing to it.

What must stay true: what a publication was computed from and what a stream would be restored from are followed to the last blob;
a blob counts as right only if its bytes were read and hashed; a store that is away is no finding but the end
of the audit (`InfrastructureError`): it could not check. Holds the addresses of one part of the streams.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from domain.canonical import parse
from domain.checkpoints.manifest import parse_checkpoint
from domain.checkpoints.messages import CheckpointCommitted
from domain.errors import BlobCorruptError, BlobMissingError, FinazError
from domain.events import Event, Recorded
from domain.folds import key_of
from domain.jobs.messages import JobAwaitsConfirmation, JobFailed, JobSucceeded
from domain.runs.aggregate import Run
from domain.runs.messages import ResultPublished
from domain.stream.messages import RecordsOmitted
from services.audit.findings import FindingKind, Findings
from services.ports import BlobStore

NAMING: Final[frozenset[type[Event]]] = frozenset(
    {ResultPublished, CheckpointCommitted, RecordsOmitted, JobSucceeded, JobFailed, JobAwaitsConfirmation}
)
"""The events that name blobs."""

_SNAPSHOT: Final = "snapshot"
_CHECKPOINT: Final = "manifest"
_STATE: Final = "stream's state"
_SEGMENT: Final = "stream's segment"
"""Roles of blobs that name others."""


class _Link(msgspec.Struct, gc=False):
    """What of a segment of a stream's sink is looked at: the one before it."""

    previous: str | None = None


_LINK: Final = msgspec.json.Decoder(_Link)


def addresses_of(event: Event, state: Any) -> Iterator[tuple[str, str]]:
    """(role, address) of what an event says is there for somebody to read.

    A run that was only asked for may name a snapshot that nobody has: it ends FAILED, and that is as it should be. One that has
    published has read it, so it must be there.
    """
    match event:
        case ResultPublished():
            yield "artifact", event.result.artifact
            yield "flow", event.result.flow
            if isinstance(state, Run) and state.spec is not None:
                yield _SNAPSHOT, state.spec.snapshot
            for address in event.result.inputs:
                yield "input", address
        case CheckpointCommitted():
            yield _CHECKPOINT, event.manifest
        case RecordsOmitted():
            for item in event.items:
                yield "quarantined record", item.quarantine or ""
        case JobSucceeded() | JobFailed() | JobAwaitsConfirmation():
            yield "report", event.report or ""


def named_by(role: str, data: bytes) -> Iterator[tuple[str, str]]:
    """(role, address) of what a blob of this role names; nothing for bytes that are no such document (their reader will say so)."""
    try:
        if role == _SNAPSHOT:
            for chunk in parse(data)["chunks"]:
                yield "snapshot's chunk", chunk["address"]
        elif role == _CHECKPOINT:
            manifest = parse_checkpoint(data, role)
            yield _STATE, manifest.state
            yield from (("side input", address) for address in manifest.side_inputs)
            yield _SEGMENT, manifest.sink.head or ""
        elif role == _STATE:
            for identities in parse(data)["identities"]:
                yield from (("block of identities", address) for address in identities["blocks"])
        elif role == _SEGMENT:
            yield _SEGMENT, _LINK.decode(data).previous or ""
    except (FinazError, msgspec.DecodeError, msgspec.ValidationError, LookupError, TypeError):
        return


class BlobsCheck:
    """Fed events with the states of their streams; then reads every address that they name.

    `accepted` are the runs whose lost artifact an operator has written off: those are told apart. `named` are the addresses that
    were found wrong, by this part or one before: each is named once.
    """

    def __init__(self, findings: Findings, blobs: BlobStore, accepted: frozenset[str], named: set[str]) -> None:
        self._findings = findings
        self._named = named
        self._accepted = accepted
        self._blobs = blobs
        self._wanted: dict[str, tuple[str, Recorded]] = {}
        self._followed: set[str] = set()
        self.written_off = Findings()
        self.checked = 0

    @property
    def wanted(self) -> int:
        """Addresses that are to be read."""
        return len(self._wanted)

    def event(self, recorded: Recorded, state: Any) -> None:
        """Remember what an event of `NAMING` names. `state` is its stream's after it, None if that went wrong."""
        for role, address in addresses_of(recorded.event, state):
            if address and address not in self._wanted:
                self._wanted[address] = (role, recorded)

    def check(self) -> Iterator[int]:
        """Read and hash each, and what they name; how many are done, now and then."""
        for address, (role, recorded) in self._wanted.items():
            waiting = [(role, address)]
            while waiting:
                role, address = waiting.pop()
                data = self._read(address, role, recorded)
                for further in named_by(role, data) if data is not None else ():
                    if further[1] and further[1] not in self._wanted and further[1] not in self._followed:
                        self._followed.add(further[1])
                        waiting.append(further)
                yield self.checked
        self._wanted.clear()
        self._followed.clear()

    def _read(self, address: str, role: str, recorded: Recorded) -> bytes | None:
        self.checked += 1
        try:
            return self._blobs.get(address)
        except BlobMissingError:
            kind, actual = FindingKind.BLOB_MISSING, "nothing is stored"
        except BlobCorruptError:
            kind, actual = FindingKind.BLOB_CORRUPT, "the stored bytes do not hash to it"
        if address in self._named:
            return None
        self._named.add(address)
        lost = role == "artifact" and key_of(recorded.stream) in self._accepted
        (self.written_off if lost else self._findings).add(
            kind,
            address,
            f"the {role} that {recorded.stream} version {recorded.version} names or needs",
            actual,
            position=recorded.position,
            version=recorded.version,
        )
        return None
