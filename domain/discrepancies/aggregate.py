"""A discrepancy: found, then repaired or alerted about, then gone; it may come back.

What must stay true: a discrepancy that lasts is recorded once, however often the reconciler looks; every one that was found
ends repaired or as an alert that somebody resolved. An artifact that is lost for good can be written off: resolved, it is not
raised again while it stays just as it was. A crash between finding and repairing leaves FOUND, and looking again goes on from
there.
"""

from typing import Final, TypeAlias

import msgspec

from domain.discrepancies.messages import (
    DiscrepancyAlertRaised,
    DiscrepancyAlertResolved,
    DiscrepancyFound,
    DiscrepancyKind,
    DiscrepancyRepaired,
    RaiseAlert,
    RecordDiscrepancy,
    RecordRepair,
    ResolveAlert,
)
from domain.errors import BodyInvalidError, IllegalTransitionError
from domain.events import Event
from domain.transitions import AggregateState, TransitionTable

NOTE_CHARACTERS_MAX: Final = 2000
"""Characters of an operator's note."""

TEXT_CHARACTERS_MAX: Final = 2000
"""Characters of `expected`, `actual` and `reason`; longer ones are cut, since the whole stands in the stream they name."""


WRITTEN_OFF: Final = frozenset({DiscrepancyKind.ARTIFACT_MISSING, DiscrepancyKind.ARTIFACT_CORRUPT})
"""What an operator's word can settle though it is still so. A read model can always be rebuilt: it is raised until it agrees."""


class DiscrepancyState(AggregateState):
    """How far it has got. `SETTLED` may be left again: the same two things can disagree a second time."""

    ABSENT = "ABSENT"
    FOUND = "FOUND"
    ALERTED = "ALERTED"
    SETTLED = "SETTLED"


DISCREPANCY_TRANSITIONS: Final = TransitionTable[DiscrepancyState](
    "discrepancy",
    {
        (DiscrepancyState.ABSENT, DiscrepancyFound): DiscrepancyState.FOUND,
        (DiscrepancyState.FOUND, DiscrepancyRepaired): DiscrepancyState.SETTLED,
        (DiscrepancyState.FOUND, DiscrepancyAlertRaised): DiscrepancyState.ALERTED,
        (DiscrepancyState.ALERTED, DiscrepancyRepaired): DiscrepancyState.SETTLED,
        (DiscrepancyState.ALERTED, DiscrepancyAlertResolved): DiscrepancyState.SETTLED,
        (DiscrepancyState.SETTLED, DiscrepancyFound): DiscrepancyState.FOUND,
        (DiscrepancyState.SETTLED, DiscrepancyRepaired): DiscrepancyState.SETTLED,
    },
)

DiscrepancyCommand: TypeAlias = RecordDiscrepancy | RecordRepair | RaiseAlert | ResolveAlert


class Discrepancy(msgspec.Struct, frozen=True):
    """State of one (kind, subject). `accepted`: an operator has written it off as it was found, and it may still be there."""

    state: DiscrepancyState = DiscrepancyState.ABSENT
    kind: DiscrepancyKind | None = None
    subject: str = ""
    expected: str = ""
    actual: str = ""
    accepted: bool = False


def decide(discrepancy: Discrepancy, command: DiscrepancyCommand) -> tuple[Event, ...]:
    """The events of the command; `()` for what is recorded already. Raises `IllegalTransitionError`, `BodyInvalidError`."""
    if isinstance(command, RecordDiscrepancy):
        return _found(discrepancy, command)
    if isinstance(command, RaiseAlert) and discrepancy.state is DiscrepancyState.ALERTED:
        return ()
    kind, subject = discrepancy.kind, discrepancy.subject
    if kind is None:
        raise IllegalTransitionError("no such discrepancy was found", at="discrepancy", expected="one that was found")
    event: Event
    match command:
        case RecordRepair():
            event = DiscrepancyRepaired(kind=kind, subject=subject, repair=command.repair)
        case RaiseAlert():
            event = DiscrepancyAlertRaised(kind=kind, subject=subject, reason=command.reason[:TEXT_CHARACTERS_MAX])
        case ResolveAlert():
            note = _checked_note(command.note)
            event = DiscrepancyAlertResolved(kind=kind, subject=subject, principal=command.principal, note=note)
    DISCREPANCY_TRANSITIONS.next_state(discrepancy.state, type(event))
    return (event,)


def evolve(discrepancy: Discrepancy, event: Event) -> Discrepancy:
    """The discrepancy after an event."""
    state = DISCREPANCY_TRANSITIONS.next_state(discrepancy.state, type(event))
    if isinstance(event, DiscrepancyFound):
        return Discrepancy(state, event.kind, event.subject, event.expected, event.actual)
    accepted = isinstance(event, DiscrepancyAlertResolved) and event.kind in WRITTEN_OFF
    return msgspec.structs.replace(discrepancy, state=state, accepted=accepted)


def _found(discrepancy: Discrepancy, command: RecordDiscrepancy) -> tuple[Event, ...]:
    if discrepancy.state in (DiscrepancyState.FOUND, DiscrepancyState.ALERTED):
        return ()
    expected, actual = command.expected[:TEXT_CHARACTERS_MAX], command.actual[:TEXT_CHARACTERS_MAX]
    if discrepancy.accepted and (expected, actual) == (discrepancy.expected, discrepancy.actual):
        return ()
    return (DiscrepancyFound(kind=command.kind, subject=command.subject, expected=expected, actual=actual),)


def _checked_note(note: str) -> str:
    if not note.strip() or len(note) > NOTE_CHARACTERS_MAX:
        raise BodyInvalidError(
            "an alert is resolved with a note", at="$.note", expected=f"1 to {NOTE_CHARACTERS_MAX} characters"
        )
    return note
