"""How staging can fail. The same rules as in `domain.errors`: codes are for ever."""

from domain.errors import InfrastructureError, RefusedError, RowsRefusedError


class StagingOffError(RefusedError):
    """There is no ClickHouse in the settings, so nothing is staged."""

    code = "STAGING_OFF"


class StagingUnavailableError(InfrastructureError):
    """ClickHouse is away, or refuses what is asked of it; trying again later may help."""

    code = "STAGING_UNAVAILABLE"


class StagingFolderTakenError(StagingUnavailableError):
    """Another process owns the folder of the embedded ClickHouse; a folder has one owner."""

    code = "STAGING_FOLDER_TAKEN"


class StagingIncompleteError(StagingUnavailableError):
    """ClickHouse no longer holds rows that were staged: it was emptied or damaged from outside, and is to be filled again."""

    code = "STAGING_INCOMPLETE"


class ArtifactUnusableError(RowsRefusedError):
    """A published artifact is missing, corrupt, or not what its publication says; staging stops there until it is repaired."""

    code = "ARTIFACT_UNUSABLE"
