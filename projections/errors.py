"""How working on projections can be refused. The same rules as in `domain.errors`: codes are for ever."""

from domain.errors import RefusedError


class CodeVersionError(RefusedError):
    """A copy of a projection was made by another version of its code than this process has."""

    code = "CODE_VERSION_DIFFERS"


class NotStoppedThereError(RefusedError):
    """The projection does not stand at that event; only the one at which it stopped can be skipped."""

    code = "NOT_STOPPED_THERE"


class PositionPassedError(RefusedError):
    """The projection is at that position already or beyond, or does not run."""

    code = "POSITION_PASSED"


class CopyGoneError(RefusedError):
    """The copy of a projection that an operator has confirmed is no longer there: another one is not served in its place unseen."""

    code = "COPY_GONE"


class NoOldCopyError(RefusedError):
    """There is no old copy of the projection that could be served again."""

    code = "NO_OLD_COPY"
