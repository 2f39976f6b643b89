"""How looking at the log, moving it and sealing it can be refused. The same rules as in `domain.errors`: codes are for ever."""

from domain.errors import Fault, FinazError, InputError, NotFoundError, RefusedError


class StreamNotFoundError(NotFoundError):
    """The stream has no event (or none as early as was asked for)."""

    code = "STREAM_NOT_FOUND"


class EventNotFoundError(NotFoundError):
    """No event of the log has this id."""

    code = "EVENT_NOT_FOUND"


class AggregateUnknownError(NotFoundError):
    """Nothing is known of how streams of this category become a state."""

    code = "AGGREGATE_UNKNOWN"


class ExportInvalidError(InputError):
    """A file is no export of a log, or not the whole of one, or its events do not give the hashes that it states."""

    code = "EXPORT_INVALID"


class LogNotEmptyError(RefusedError):
    """An import needs a store in which nothing has happened yet."""

    code = "LOG_NOT_EMPTY"


class LogDamagedError(FinazError):
    """The log is not what it was: its rows do not give its hashes. An audit names what is wrong."""

    code = "LOG_DAMAGED"
    fault = Fault.REFUSED
    status = 409


class SchemaMissingError(FinazError):
    """The database lacks a table or a function that this version needs: it was not migrated, or it is another one."""

    code = "SCHEMA_MISSING"
    status = 503


class SealInvalidError(InputError):
    """A seal cannot be read, is not signed by the key, or does not follow the one before."""

    code = "SEAL_INVALID"


class SealKeyInvalidError(InputError):
    """A file does not hold a key that seals are signed or verified with."""

    code = "SEAL_KEY_INVALID"


class SealTakenError(RefusedError):
    """Another process has written the seal of this number."""

    code = "SEAL_TAKEN"
