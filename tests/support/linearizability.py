"""A linearizability checker for leases, after Wing and Gong: is there one order of the operations, that respects which of them
ended before which began, in which a single lease, used by one client at a time, would have given the same answers?

Each operation judges the lease at one instant between its call and its return, by the database's clock. An accepted one did so
when the log says it was recorded (it becomes visible a moment later, so the order of overlapping ones is free). A refused one
did so at some instant at which the model must refuse it in the same way. One whose caller died may never have happened; if the
log has it, it did when the log says.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Literal

HELD, STALE, UNKNOWN = "LEASE_HELD", "STALE_FENCE", "UNKNOWN"


@dataclass(frozen=True)
class Operation:
    """One operation as its client saw it. `answer`: the token that an accepted one had, an error's code, or `UNKNOWN`."""

    kind: Literal["acquire", "renew", "release", "effect"]
    owner: str
    token: int
    called_at: datetime
    returned_at: datetime
    answer: int | str
    recorded_at: datetime | None = None


@dataclass(frozen=True)
class LeaseModel:
    """A lease as the table of the specification has it."""

    ttl: timedelta
    owner: str = ""
    token: int = 0
    expires_at: datetime | None = None

    def is_live(self, at: datetime) -> bool:
        return self.expires_at is not None and at < self.expires_at

    def step(self, operation: Operation, at: datetime) -> "tuple[int | str, LeaseModel]":
        """What the operation would answer at the instant, and the lease afterwards."""
        if operation.kind == "acquire":
            if not self.is_live(at):
                return self.token + 1, LeaseModel(self.ttl, operation.owner, self.token + 1, at + self.ttl)
            if self.owner != operation.owner:
                return HELD, self
            return self.token, LeaseModel(self.ttl, self.owner, self.token, at + self.ttl)
        if not self.is_live(at) or (self.owner, self.token) != (operation.owner, operation.token):
            return STALE, self
        if operation.kind == "renew":
            return self.token, LeaseModel(self.ttl, self.owner, self.token, at + self.ttl)
        if operation.kind == "release":
            return self.token, LeaseModel(self.ttl, self.owner, self.token, None)
        return self.token, self


def linearizable(history: list[Operation], ttl: timedelta) -> bool:
    """Whether such an order exists."""
    operations = tuple(history)
    everything = frozenset(range(len(operations)))

    @cache
    def search(left: frozenset[int], lease: LeaseModel) -> bool:
        if all(operations[i].answer == UNKNOWN for i in left):
            return True
        first_return = min(operations[i].returned_at for i in left)
        candidates = [i for i in left if operations[i].called_at <= first_return]
        for index in sorted(candidates, key=lambda i: operations[i].recorded_at or operations[i].called_at):
            operation = operations[index]
            if operation.answer == UNKNOWN and search(left - {index}, lease):
                return True  # it never happened
            for at in _instants(operation, lease):
                answer, after = lease.step(operation, at)
                if operation.answer in (UNKNOWN, answer) and search(left - {index}, after):
                    return True
        return False

    return search(everything, LeaseModel(ttl))


def _instants(operation: Operation, lease: LeaseModel) -> list[datetime]:
    """The instants that matter: when it was recorded; else when it was called, and as soon as the lease has run out."""
    if operation.recorded_at is not None:
        return [operation.recorded_at]
    instants = [operation.called_at]
    if lease.expires_at is not None and operation.called_at < lease.expires_at <= operation.returned_at:
        instants.append(lease.expires_at)
    return instants
