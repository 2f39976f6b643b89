"""How flows, snapshots, market records and imports can be wrong. The same rules as in `domain.errors`: codes are for ever."""

from domain.errors import FinazError, InputError, RunFailedError


class FlowInvalidError(RunFailedError):
    """A flow does not have the form that its version demands: a field, a type, a parameter, a reference, a cycle."""

    code = "FLOW_INVALID"


class UnknownOpError(FlowInvalidError):
    """A flow names an op, or a version of one, that this version of the code does not have."""

    code = "OP_UNKNOWN"


class SnapshotInvalidError(RunFailedError):
    """A snapshot's manifest or chunk is not what it claims to be."""

    code = "SNAPSHOT_INVALID"


class ScheduleInvalidError(RunFailedError):
    """A fault schedule names an event that isn't there, contradicts itself, or lacks the form that its version demands."""

    code = "SCHEDULE_INVALID"


class ColumnUnknownError(RunFailedError):
    """A flow asks for a column that the snapshot does not have."""

    code = "COLUMN_UNKNOWN"


class InstrumentUnknownError(RunFailedError):
    """A flow asks for an instrument that the snapshot does not have."""

    code = "INSTRUMENT_UNKNOWN"


class ValueUnreadableError(RunFailedError):
    """A value column of a market record holds something that is neither a number nor missing."""

    code = "VALUE_UNREADABLE"


class RecordInvalidError(RunFailedError):
    """A market record lacks a field, or has one of the wrong type, beside its value columns."""

    code = "RECORD_INVALID"


class ClockGapTooLongError(RunFailedError):
    """More consecutive cells of an interval clock are empty than the flow allows."""

    code = "CLOCK_GAP_TOO_LONG"


class RunTooLargeError(RunFailedError):
    """A run would need more ticks or events than one run may hold."""

    code = "RUN_TOO_LARGE"


class ClockOrderError(FinazError):
    """An event was given to a clock that has already released its place; whoever judges lateness let it through."""

    code = "CLOCK_ORDER_VIOLATED"


class StateInvalidError(RunFailedError):
    """A stored state does not fit the op, the clock or the flow that it should be restored into."""

    code = "STATE_INVALID"


class ImportInvalidError(InputError):
    """A file to be imported cannot be read as market events; nothing was written that anyone can see."""

    code = "IMPORT_INVALID"
    status = 422
