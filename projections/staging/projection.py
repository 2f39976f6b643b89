"""What is to be staged: one delivery for each output of each run that is published.

What must stay true: a delivery says all that is needed to make its rows again (which artifact, which output, how many rows), so
that rows in ClickHouse are a function of the log and of CAS. The same event again is the same delivery; a second publication of
one output is an event that cannot be, and stops the projection. Pure: a crash leaves nothing.
"""

from typing import Final, TypeAlias

import msgspec

from domain.errors import IllegalTransitionError
from domain.events import Event, Recorded
from domain.runs.messages import ResultPublished
from projections.folding import ReadModel

NAME: Final = "staging"

StagingKey: TypeAlias = tuple[str, str]
"""run_id and output name."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An output to be staged: `rows` of `artifact`, published at `position`."""

    run_id: str
    output: str
    artifact: str
    rows: int
    position: int

    @property
    def key(self) -> StagingKey:
        return (self.run_id, self.output)


def key_of(event: Event) -> StagingKey | None:
    """The output that the event publishes, or None."""
    return (event.run_id, event.result.output) if isinstance(event, ResultPublished) else None


def apply(row: Delivery | None, recorded: Recorded) -> Delivery:
    """The delivery of a publication. Raises `IllegalTransitionError` for an output that was published at another position."""
    event = recorded.event
    assert isinstance(event, ResultPublished)
    if row is not None and row.position != recorded.position:
        raise IllegalTransitionError(
            f"output {event.result.output!r} was published before, at position {row.position}",
            at=event.run_id,
            expected="one publication per output",
        )
    return Delivery(
        run_id=event.run_id,
        output=event.result.output,
        artifact=event.result.artifact,
        rows=event.result.rows,
        position=recorded.position,
    )


MODEL: Final = ReadModel[StagingKey, Delivery](NAME, ("run",), key_of, apply)
