"""Publications: one row for each output of each run that is visible.

What must stay true: a row never changes once it exists (publish-if-absent is decided by the run's stream; a second publication of
one output is an event that cannot be, and stops the projection rather than replace what somebody may have read).
"""

from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.runs.messages import ResultPublished
from projections.folding import ReadModel

NAME: Final = "publications"

PublicationKey: TypeAlias = tuple[str, str]
"""run_id and output name."""


class PublicationRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A published result: `ResultRef` with the token of the owner that published it, when, and at which position."""

    run_id: str
    output: str
    artifact: str
    values_hash: str
    rows: int
    schema: str
    flow: str
    inputs: tuple[str, ...]
    fence_token: int
    published_at: datetime
    position: int


def key_of(event: Event) -> PublicationKey | None:
    """The output that the event publishes, or None."""
    return (event.run_id, event.result.output) if isinstance(event, ResultPublished) else None


def apply(row: PublicationRow | None, recorded: Recorded) -> PublicationRow:
    """The row of a publication. Raises `IllegalTransitionError` for an output that is published already."""
    event = recorded.event
    assert isinstance(event, ResultPublished)
    if row is not None:
        raise IllegalTransitionError(
            f"output {event.result.output!r} was published before, at position {row.position}",
            at=event.run_id,
            expected="one publication per output",
        )
    result = event.result
    return PublicationRow(
        run_id=event.run_id,
        output=result.output,
        artifact=result.artifact,
        values_hash=result.values_hash,
        rows=result.rows,
        schema=result.schema,
        flow=result.flow,
        inputs=result.inputs,
        fence_token=event.token,
        published_at=recorded.recorded_at,
        position=recorded.position,
    )


MODEL: Final = ReadModel[PublicationKey, PublicationRow](NAME, ("run",), key_of, apply)
