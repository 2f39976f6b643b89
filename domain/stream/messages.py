"""Commands and events of a STREAM run's journal: what its records became that later readers must know.

The journal's events stand in the append of the checkpoint that they belong to (but for an operator's `RetryRequested`), so a
record is late, omitted or retried exactly if the cut that made it so was committed. Partitions are numbers; where they are keys
of a map they are text, as in checkpoints. An event has at most `ITEMS_MAX` items; more are several events.
"""

from datetime import datetime
from enum import Enum
from typing import ClassVar, Final

import msgspec

from domain.events import Event, registered
from domain.stream.treatment import Treatment

ITEMS_MAX: Final = 500
"""Items of one event, so that no event grows beyond some hundred kilobytes."""

DETAIL_CHARACTERS_MAX: Final = 300
"""Characters kept of the reason why a record was omitted."""


class Pressure(Enum):
    """How a stream worker stands to its source."""

    FLOWING = "FLOWING"
    SOURCE_PAUSED = "SOURCE_PAUSED"
    PROCESS_PAUSED = "PROCESS_PAUSED"
    RECOVERY_BLOCKED = "RECOVERY_BLOCKED"


class Place(msgspec.Struct, frozen=True, kw_only=True, order=True, gc=False):
    """One offset of the run's topic."""

    partition: int
    offset: int


class OmittedItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record that was set aside. `quarantine` addresses its bytes; None for a terminal one, whose bytes nobody will need."""

    partition: int
    offset: int
    detail: str
    terminal: bool
    quarantine: str | None


class LateItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record that came too late for this run; later snapshots take it into account."""

    partition: int
    offset: int
    event_id: str
    revision: int
    event_time: datetime


class RetriedItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record that was omitted, and what it is now; `detail` says why, if it is omitted still."""

    partition: int
    offset: int
    treatment: Treatment
    detail: str = ""


class DifferingItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A copy that was skipped although its content is another than that of the record that was taken."""

    partition: int
    offset: int
    event_id: str
    revision: int


class RequestRetry(msgspec.Struct, frozen=True, kw_only=True):
    """An operator asks that records be judged again, after a fix of the reader, say. No items: all that are omitted."""

    principal: str
    items: tuple[Place, ...]


@registered
class SourceOpened(Event, frozen=True, kw_only=True):
    """The run reads its topic from these offsets on; `marks` are the high-water marks at which a bounded run ends.

    `source_identity` is what the broker calls this very topic, empty where it gives topics no identity.
    """

    topic: ClassVar[str] = "journal.source_opened.v1"
    run_id: str
    source: str
    partitions: int
    start_offsets: dict[str, int]
    marks: dict[str, int] | None
    owner: str
    token: int
    source_identity: str = ""


@registered
class RecordsOmitted(Event, frozen=True, kw_only=True):
    """Records that could not be taken; those that are not terminal are in the quarantine and can be retried."""

    topic: ClassVar[str] = "journal.records_omitted.v1"
    run_id: str
    epoch: int
    items: tuple[OmittedItem, ...]


@registered
class RecordsLate(Event, frozen=True, kw_only=True):
    """Records that came behind their partition's watermark."""

    topic: ClassVar[str] = "journal.records_late.v1"
    run_id: str
    epoch: int
    items: tuple[LateItem, ...]


@registered
class RecordsRetried(Event, frozen=True, kw_only=True):
    """Omitted records were judged again, as arriving at that moment."""

    topic: ClassVar[str] = "journal.records_retried.v1"
    run_id: str
    epoch: int
    items: tuple[RetriedItem, ...]


@registered
class CopiesDiffered(Event, frozen=True, kw_only=True):
    """Copies of one identity had different contents; the first won. Somebody should ask the source."""

    topic: ClassVar[str] = "journal.copies_differed.v1"
    run_id: str
    epoch: int
    items: tuple[DifferingItem, ...]


@registered
class PressureEntered(Event, frozen=True, kw_only=True):
    """The worker paused its source, went on, or found that what it needs is gone."""

    topic: ClassVar[str] = "journal.pressure_entered.v1"
    run_id: str
    token: int
    state: Pressure
    reason: str


@registered
class BoundedSourceEnded(Event, frozen=True, kw_only=True):
    """Every partition was read to the marks captured at the start: there is nothing more, and the rest was released."""

    topic: ClassVar[str] = "journal.bounded_source_ended.v1"
    run_id: str
    epoch: int
    token: int
    marks: dict[str, int]


@registered
class RetryRequested(Event, frozen=True, kw_only=True):
    """An operator asked that these omitted records be judged again."""

    topic: ClassVar[str] = "journal.retry_requested.v1"
    run_id: str
    principal: str
    items: tuple[Place, ...]


@registered
class StreamHandedOff(Event, frozen=True, kw_only=True):
    """The manifest of a handoff: from whom to whom, and from which cut the new owner goes on.

    `epoch` 0 with an empty manifest means that nothing was committed yet; `next_offsets` are the start's then.
    """

    topic: ClassVar[str] = "journal.stream_handed_off.v1"
    run_id: str
    previous_owner: str
    previous_token: int
    owner: str
    token: int
    epoch: int
    manifest: str
    manifest_hash: str
    next_offsets: dict[str, int]
