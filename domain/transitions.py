"""Transition tables: which event may happen in which state, and what state follows.

Each aggregate has exactly one table. The code interprets it (`next_state`), the diagrams in `docs/` are drawn from it
(`mermaid`), tests walk it. If a new state needs an `if` outside, the table is wrong.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from domain.errors import IllegalTransitionError
from domain.events import Event


class AggregateState(Enum):
    """Base of the states in a table. Equal is the same member, so its hash is its identity: tables are asked for every event that
    is folded, and `Enum` has a hash that is written in Python.
    """

    __hash__ = object.__hash__


S = TypeVar("S", bound=AggregateState)


class TransitionTable(Generic[S]):
    """`rows[(state, event type)]` is the state that follows; what has no row is refused."""

    def __init__(self, name: str, rows: Mapping[tuple[S, type[Event]], S]) -> None:
        self.name = name
        self.rows = dict(rows)

    def allows(self, state: S, event_type: type[Event]) -> bool:
        """Whether the event may happen in the state."""
        return (state, event_type) in self.rows

    def next_state(self, state: S, event_type: type[Event]) -> S:
        """The state after the event. Raises `IllegalTransitionError` where the table has no row."""
        try:
            return self.rows[(state, event_type)]
        except KeyError:
            allowed = sorted(t.topic for s, t in self.rows if s is state)
            raise IllegalTransitionError(
                f"{event_type.topic} cannot happen to a {self.name} that is {state.name}",
                at=f"{self.name}.{state.name}",
                expected=f"one of {allowed}" if allowed else "nothing: the state is final",
            ) from None

    def final_states(self) -> set[S]:
        """States that no event leaves for another one."""
        states = {s for s, _ in self.rows} | set(self.rows.values())
        return {s for s in states if all(after is s for (before, _), after in self.rows.items() if before is s)}

    def mermaid(self) -> str:
        """The table as a Mermaid state diagram, in a stable order."""
        lines = ["stateDiagram-v2"]
        for (state, event_type), after in self.rows.items():
            lines.append(f"    {_label(state)} --> {_label(after)}: {event_type.topic}")
        lines += [f"    {state.name} --> [*]" for state in sorted(self.final_states(), key=lambda s: s.name)]
        return "\n".join(lines)


def _label(state: Enum) -> str:
    return "[*]" if state.name == "ABSENT" else state.name
