"""How asking something of a job can be refused. The same rules as in `domain.errors`: codes are for ever."""

from domain.errors import InputError, NotFoundError, RefusedError


class JobNotFoundError(NotFoundError):
    """There is no job of this id."""

    code = "JOB_NOT_FOUND"


class JobKindUnknownError(InputError):
    """There is no such kind of job."""

    code = "JOB_KIND_UNKNOWN"


class JobRunningError(RefusedError):
    """A job of this kind for this target has not ended yet; `context` names it."""

    code = "JOB_RUNNING"


class JobFinishedError(RefusedError):
    """The job has ended; what was asked needs one that hasn't."""

    code = "JOB_FINISHED"


class JobNotAwaitingError(RefusedError):
    """The job does not wait for a confirmation."""

    code = "JOB_NOT_AWAITING"
