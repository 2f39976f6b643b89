"""What an audit's report says in words: up to where it can vouch for the log, and what it could never have noticed. Pure."""

from typing import Final

from domain.instants import format_instant
from services.audit.findings import AuditedSeals

FORGED: Final = (
    "A forged event that was appended by the append function itself is an event like any other: the chain shows that a row was"
    " appended, not that it was true."
)

READ_MODELS: Final = (
    "Rows of read models and blobs were compared with the log, not with anything outside: where the log itself was rewritten, they"
    " agree with what was written."
)

BOOKKEEPING: Final = (
    "Which copies are served, how far they are and which events they were to pass over is taken from the tables projections and"
    " projection_skips as they stand: whoever changes those as well can have a read model left out, or a row excused."
)

UNCOMPARED: Final = (
    "Not compared: commands of process managers (an operator may have discarded or replayed them), old copies and copies that are"
    " being built (nobody is served from them), reservations of runs (a hint), mail addresses (outside the log, so that they can be"
    " erased), staged rows whose artifact is lost (nothing is left to compare them with)."
)


def vouches(seals: AuditedSeals, position: int) -> str:
    """Up to where, and by what."""
    if not seals.checked:
        return (
            f"The log is consistent in itself up to position {position}, unless differences say otherwise; no seal was looked at,"
            " so nothing vouches that it is what was once appended."
        )
    if seals.vouched_seal is None or seals.vouched_at is None:
        return f"No seal vouches for any position; the log reaches to {position}."
    return (
        f"Up to position {seals.vouched_position} of {position}, the log is what {seals.vouched_seal} sealed at"
        f" {format_instant(seals.vouched_at)}: every row hashes into the sealed chain value."
    )


def cannot_exclude(seals: AuditedSeals, position: int) -> tuple[str, ...]:
    """What somebody with the database alone, or with more, could have done without being found."""
    behind = seals.vouched_position
    if behind < position:
        unsealed = (
            f"Whoever can write to the database past its triggers could have changed, added or removed events behind position"
            f" {behind} and computed their hashes anew: no seal covers them yet."
        )
    else:
        unsealed = (
            "Whoever can write to the database past its triggers could have changed what was appended between two seals before the"
            " second was made."
        )
    return (
        unsealed,
        FORGED,
        "Whoever holds the key of the seals, or can replace seals and their noted number together, can seal another past.",
        READ_MODELS,
        BOOKKEEPING,
        UNCOMPARED,
    )
