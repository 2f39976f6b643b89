"""An attempt to stage an output, as PostgreSQL knows it, and what else about it is a value. Pure."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from projections.staging.projection import Delivery, StagingKey


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt: what it stages, and for which generation."""

    attempt: UUID
    generation: int
    run_id: str
    output: str
    instrument: str
    artifact: str
    rows: int
    position: int

    @property
    def key(self) -> StagingKey:
        return (self.run_id, self.output)

    @property
    def delivery(self) -> Delivery:
        """What it stages."""
        return Delivery(
            run_id=self.run_id, output=self.output, artifact=self.artifact, rows=self.rows, position=self.position
        )


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How much is staged: outputs and rows that readers see; attempts begun, and abandoned ones not yet deleted."""

    outputs: int
    rows: int
    begun: int
    abandoned: int


def attempt_of(row: Sequence[Any]) -> Attempt:
    """An attempt from a row of any of the statements that find some, which give its fields in order."""
    return Attempt(**dict(zip(Attempt.__struct_fields__, row, strict=True)))
