"""Admission: an idempotency key is claimed once, by one body.

What must stay true: the same key with the same body is the same admission however often it is asked; with another body it is
refused; a claim is never undone while what it admitted exists. The claim and the run's request are one append, so a crash
leaves both or neither.
"""

from typing import Final

import msgspec

from domain.admission.messages import ClaimKey, KeyClaimed
from domain.errors import IdempotencyKeyReusedError
from domain.events import Event
from domain.transitions import AggregateState, TransitionTable


class AdmissionState(AggregateState):
    """Whether the key is taken."""

    ABSENT = "ABSENT"
    CLAIMED = "CLAIMED"


ADMISSION_TRANSITIONS: Final = TransitionTable[AdmissionState](
    "admission", {(AdmissionState.ABSENT, KeyClaimed): AdmissionState.CLAIMED}
)


class Admission(msgspec.Struct, frozen=True):
    """State of one key in its scope."""

    state: AdmissionState = AdmissionState.ABSENT
    body_hash: str = ""
    subject_ids: tuple[str, ...] = ()


def decide(admission: Admission, command: ClaimKey) -> tuple[Event, ...]:
    """`(KeyClaimed,)` for a free key; `()` for a repeat of the same body; `IdempotencyKeyReusedError` for another body."""
    if admission.state is AdmissionState.CLAIMED:
        if admission.body_hash != command.body_hash:
            raise IdempotencyKeyReusedError(
                "the idempotency key was used with another body",
                at="Idempotency-Key",
                expected="a new key, or the same body",
            )
        return ()
    return (
        KeyClaimed(
            principal=command.principal,
            operation=command.operation,
            key=command.key,
            body_hash=command.body_hash,
            subject_ids=command.subject_ids,
        ),
    )


def evolve(admission: Admission, event: Event) -> Admission:
    """The admission after an event."""
    state = ADMISSION_TRANSITIONS.next_state(admission.state, type(event))
    assert isinstance(event, KeyClaimed)
    return Admission(state, event.body_hash, event.subject_ids)
