"""The documents that the API gives, and their JSON schemas for the OpenAPI document.

Answers are the services' own views wherever they fit; what stands here is the rest. What must stay true: a schema is derived from
the type that is encoded, or stands beside it and is held to it by the schemathesis test.
"""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from api.name_pattern import name_pattern
from api.purchase_schemas import PURCHASE_ANSWERS
from api.run_schemas import FLOW, SCHEDULE
from domain.errors import FinazError
from domain.events import Recorded
from services.alerts import AlertView, DeadLetter
from services.inspected import AggregateState, EventChain, InspectedPage, StateDifference, StreamPage
from services.jobs import JobView
from services.parity import ParityReport
from services.projection_operations import LogEntry, Skip
from services.provenance import DeterminismContract, ReplayView
from services.read_models import ProjectionView
from services.runs import PublishedResult, RunView
from services.staging import StagingStatus, ValuesPage
from services.stream_parity import Judgement
from services.stream_records import CheckpointRow, RecordRow, RetryAnswer, StreamStatus

RUN_ID_PATTERN: Final = "^run_[0-9a-f]{64}$"
SWEEP_ID_PATTERN: Final = "^sweep_[0-9a-f]{64}$"


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A run was admitted: its id, the position of its request in the log, and the address of the typed body."""

    run_id: str
    position: int
    body_hash: str


class SweepAdmitted(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep was admitted: its id, its runs in the order flows × instruments × parameters, and the position in the log."""

    sweep_id: str
    run_ids: tuple[str, ...]
    position: int


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, newest first; `position` is how far into the log it looks. The last page's `next_cursor` is null."""

    items: tuple[RunView, ...]
    next_cursor: str | None
    position: int


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One event: its place in the whole log and in its stream, when the database recorded it, why, for whom, and the fact."""

    position: int
    stream: str
    version: int
    topic: str
    event_id: UUID
    recorded_at: datetime
    causation_id: UUID | None
    correlation_id: str | None
    principal: str | None
    event: dict[str, Any]


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """A run's history: the events of the run and of its leases, by position."""

    items: tuple[EventView, ...]


class ProjectionList(msgspec.Struct, frozen=True, kw_only=True):
    """Every projection, by name."""

    items: tuple[ProjectionView, ...]


class AlertList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of alerts, newest first; `position` is how far into the log it looks. The last page's `next_cursor` is null."""

    items: tuple[AlertView, ...]
    next_cursor: str | None
    position: int


class AlertResolved(msgspec.Struct, frozen=True, kw_only=True):
    """The alert is resolved, by the event at this position of the log."""

    kind: str
    run_id: str
    position: int


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of jobs, newest first; `position` is how far into the log it looks. The last page's `next_cursor` is null."""

    items: tuple[JobView, ...]
    next_cursor: str | None
    position: int


class ProjectionLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a projection, newest first, and the events that it passes over. The last page's `next_cursor` is null."""

    items: tuple[LogEntry, ...]
    skipped: tuple[Skip, ...]
    next_cursor: str | None


class DeadLettersRevived(msgspec.Struct, frozen=True, kw_only=True):
    """So many dead letters of the process manager are tried again."""

    manager: str
    revived: int


class DeadLetterList(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, the oldest first; so many at most that those behind them come into view as these are dealt with."""

    items: tuple[DeadLetter, ...]


class DeadLetterChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a dead letter: `pending` (it is tried again) or `discarded`."""

    manager: str
    command_id: UUID
    state: str


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of checkpoints, newest first; `position` is how far into the log it looks."""

    items: tuple[CheckpointRow, ...]
    next_cursor: str | None
    position: int


class RecordList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of records by partition and offset; `position` is how far into the log it looks."""

    items: tuple[RecordRow, ...]
    next_cursor: str | None
    position: int


class ResultList(msgspec.Struct, frozen=True, kw_only=True):
    """The published results of a run."""

    run_id: str
    items: tuple[PublishedResult, ...]


class ArtifactStored(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes are stored under the address."""

    address: str
    size_bytes: int


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that readiness depends on."""

    ok: bool
    detail: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the process can serve, and each thing that this depends on."""

    status: str
    checks: dict[str, Check] = {}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An RFC 9457 problem document. Further members are the error's own."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    at: str | None | msgspec.UnsetType = msgspec.UNSET
    expected: str | None | msgspec.UnsetType = msgspec.UNSET


_ANSWERS: Final = (
    *PURCHASE_ANSWERS,
    Admitted,
    AggregateState,
    AlertList,
    AlertResolved,
    ArtifactStored,
    CheckpointList,
    DeadLetter,
    DeadLetterChanged,
    DeadLetterList,
    DeadLettersRevived,
    DeterminismContract,
    EventChain,
    EventList,
    Health,
    InspectedPage,
    JobList,
    JobView,
    Judgement,
    ParityReport,
    Problem,
    ProjectionList,
    ProjectionLog,
    ProjectionView,
    RecordList,
    ReplayView,
    ResultList,
    RetryAnswer,
    RunList,
    RunView,
    StagingStatus,
    StreamStatus,
    StateDifference,
    StreamPage,
    SweepAdmitted,
    ValuesPage,
)


def view_event(recorded: Recorded) -> EventView:
    """The document of a recorded event."""
    return EventView(
        position=recorded.position,
        stream=recorded.stream,
        version=recorded.version,
        topic=recorded.event.topic,
        event_id=recorded.event_id,
        recorded_at=recorded.recorded_at,
        causation_id=recorded.metadata.causation_id,
        correlation_id=recorded.metadata.correlation_id,
        principal=recorded.metadata.principal,
        event=msgspec.to_builtins(recorded.event),
    )


def reference(answer: type[msgspec.Struct]) -> dict[str, Any]:
    """A reference to the schema of an answer."""
    return {"$ref": f"#/components/schemas/{answer.__name__}"}


def components() -> dict[str, Any]:
    """Every named schema."""
    _, schemas = msgspec.json.schema_components(_ANSWERS, ref_template="#/components/schemas/{name}")
    schemas["Problem"]["properties"]["code"] = {"type": "string", "enum": sorted(error_codes())}
    schemas["Problem"]["properties"]["status"] = {"type": "integer", "minimum": 400, "maximum": 599}
    name = {
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "pattern": name_pattern(),
        "description": (
            "A name made by a user: NFC, 1 to 255 bytes of UTF-8, no control characters. The pattern leaves out combining"
            " characters; where they have no composed form, they are accepted too."
        ),
    }
    return {**schemas, "FaultSchedule": SCHEDULE, "Flow": FLOW, "Name": name}


def error_codes(base: type[FinazError] = FinazError) -> set[str]:
    """The codes of an error class and of all below it."""
    return {base.code}.union(*(error_codes(kind) for kind in base.__subclasses__()))
