"""How a topic, its broker, and the journal of a stream can be wrong. The same rules as in `domain.errors`: codes are for ever."""

from domain.errors import FinazError, InfrastructureError, LeaseHeldError, RefusedError, StaleFenceError


class BrokerUnavailableError(InfrastructureError):
    """The broker cannot be reached or did not answer in time; whoever waits and asks again may go on where it was."""

    code = "BROKER_UNAVAILABLE"


class BrokerRefusedError(RefusedError):
    """The broker said no for a reason that asking again does not change: a setting, a size, a right."""

    code = "BROKER_REFUSED"


class TopicMissingError(RefusedError):
    """The topic does not exist. Nothing here creates one by asking for it: create it, then start again."""

    code = "TOPIC_MISSING"
    status = 404


class TopicExistsError(RefusedError):
    """A topic of that name exists already; it was left as it is."""

    code = "TOPIC_EXISTS"


class PartitionsChangedError(RefusedError):
    """The topic has another number of partitions than the journal knows: keys may have moved, so no order can be promised."""

    code = "PARTITIONS_CHANGED"


class RecoveryBlockedError(RefusedError):
    """The broker no longer has (retention), or never again will have (it lost data), the offsets from which to go on."""

    code = "RECOVERY_BLOCKED"


class StreamLeaseHeldError(LeaseHeldError):
    """Another live owner holds the stream run's lease; nothing was read, nothing was written."""

    code = "STREAM_LEASE_OCUPADO"


class StreamFenceStaleError(StaleFenceError):
    """This owner of a stream run was overtaken, or its lease ran out; what it was about to commit was not written."""

    code = "STREAM_FENCE_OBSOLETO"


class CheckpointInvalidError(FinazError):
    """A checkpoint does not fit: another plan, another schema of state, a hash that does not match. It is never guessed around."""

    code = "CHECKPOINT_INVALID"


class QuarantineFullError(RefusedError):
    """More records of a stream run are set aside than one run may hold; mend the reader or the source, and retry them."""

    code = "QUARANTINE_FULL"
