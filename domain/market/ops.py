"""The registry of ops: what a flow may name, with which inputs and parameters, and the fold that computes it.

An op is frozen once published: another formula is another `version`, beside the old one, so that a flow's address keeps meaning
the same values. Every op knows `gap: reject`, the only gap rule of version 1: a GAP gives null and the op starts over.

What must stay true: the state after n ticks is a function of those ticks alone, however they were cut into folds and wherever it
was written out and restored; `state_document` of equal states is equal to the byte.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from domain.market import ops_averages as averages
from domain.market import ops_changes as changes
from domain.market.compiled import Floats
from domain.market.errors import StateInvalidError

LENGTH_MAX: Final = 1_000_000
"""Ticks that a window may span: bounds the memory of an op (16 MB) and the size of its checkpoint."""

GAP_RULES: Final = ("reject",)

Parameter = int | str
Parameters = Mapping[str, Parameter]
Fold = Callable[[Floats, int, float, tuple[Floats, ...], Floats], None]


@dataclass(frozen=True)
class IntegerParameter:
    """An integer in a closed range; `default` None means that the flow must give it."""

    least: int
    most: int
    default: int | None = None


@dataclass(frozen=True)
class ChoiceParameter:
    """One of a few words."""

    choices: tuple[str, ...]
    default: str


@dataclass(frozen=True)
class Op:
    """One op in one version.

    `inputs` names its columns in order; `fold(state, n, p, columns, out)` computes; the first `integers` scalars of a state are
    counters, of which the first counts ticks since the start up to `full(n)` and, where `blocks`, the second is the place in the
    ring; `blocks` rings of `n` slots follow the scalars, each with `sentinels` slots that stay zero, the last `tail_blocks` of
    them written only when a block is turned.
    """

    name: str
    version: int
    inputs: tuple[str, ...]
    parameters: Mapping[str, IntegerParameter | ChoiceParameter]
    fold: Fold
    scalars: int
    integers: int
    blocks: int = 0
    sentinels: int = 0
    tail_blocks: int = 0
    constant: Callable[[Parameters], float] = lambda parameters: 0.0
    seen_beyond_length: int = 0

    def length(self, parameters: Parameters) -> int:
        """Ticks in the op's window."""
        length = parameters["length"]
        assert isinstance(length, int)
        return length

    def slots(self, parameters: Parameters) -> int:
        """Floats in a state."""
        return self.scalars + self.blocks * (self.length(parameters) + self.sentinels)


class OpState:
    """An op at work: its parameters and the state between two ticks. Not shared between threads."""

    def __init__(self, op: Op, parameters: Parameters) -> None:
        self.op = op
        self._n = op.length(parameters)
        self._p = op.constant(parameters)
        self._state: Floats = np.zeros(op.slots(parameters), dtype=np.float64)

    def fold(self, columns: tuple[Floats, ...]) -> Floats:
        """The results for the next ticks, given one contiguous float64 column per input (NaN is null, in and out)."""
        out: Floats = np.empty(len(columns[0]), dtype=np.float64)
        self.op.fold(self._state, self._n, self._p, columns, out)
        return out

    def state_document(self) -> dict[str, Any]:
        """The state as JSON: op, version, and the live floats, exactly."""
        state = self._state.copy()
        self._bury(state)
        return {"op": self.op.name, "state": state.tolist(), "version": self.op.version}

    def restore(self, document: Any) -> None:
        """Take over a state written by `state_document`. `StateInvalidError` if it isn't one of this op, version and length."""
        op = self.op
        if not isinstance(document, dict) or (document.get("op"), document.get("version")) != (op.name, op.version):
            raise StateInvalidError("the state is of another op", at="op", expected=f"{op.name} version {op.version}")
        slots = document.get("state")
        if not isinstance(slots, list) or len(slots) != len(self._state):
            raise StateInvalidError("wrong number of slots", at="state", expected=f"{len(self._state)} numbers")
        if not all(type(slot) is float and math.isfinite(slot) for slot in slots):
            raise StateInvalidError("a slot is no finite float", at="state", expected="finite floats")
        state = np.array(slots, dtype=np.float64)
        self._check_counters(state)
        self._state = state

    def _check_counters(self, state: Floats) -> None:
        """Refuse counters that would make a kernel read or write outside its ring."""
        counters = state[: self.op.integers]
        limits = [self._n + self.op.seen_beyond_length, self._n - 1, self._n][: self.op.integers]
        for counter, limit in zip(counters.tolist(), limits, strict=True):
            if not (0 <= counter <= limit and counter == int(counter)):
                raise StateInvalidError(f"a counter is {counter}", at="state", expected=f"an integer in 0..{limit}")

    def _bury(self, state: Floats) -> None:
        """Zero the ring slots that were not written since the op last started: what they hold reaches no result."""
        if self.op.blocks and state[0] < self._n:
            width = self._n + self.op.sentinels
            for block in range(self.op.blocks):
                start = self.op.scalars + block * width
                live = int(state[1]) if block < self.op.blocks - self.op.tail_blocks else 0
                state[start + live : start + width] = 0.0


def _parameters(
    least: int, **more: IntegerParameter | ChoiceParameter
) -> Mapping[str, IntegerParameter | ChoiceParameter]:
    gap = ChoiceParameter(GAP_RULES, "reject")
    return MappingProxyType({"length": IntegerParameter(least, LENGTH_MAX), "gap": gap, **more})


def _alpha(parameters: Parameters) -> float:
    return 2.0 / (int(parameters["length"]) + 1)


def _wilder(parameters: Parameters) -> float:
    return 1.0 / int(parameters["length"])


def _weights(parameters: Parameters) -> float:
    n = int(parameters["length"])
    return n * (n + 1) / 2


_OPS: Final = (
    Op("ema", 1, ("x",), _parameters(1), averages.ema_fold, 3, 1, constant=_alpha),
    Op("sma", 1, ("x",), _parameters(1), averages.sma_fold, 3, 2, blocks=1, sentinels=1),
    Op("wma", 1, ("x",), _parameters(1), averages.wma_fold, 4, 2, blocks=1, sentinels=1, constant=_weights),
    Op("vwap", 1, ("price", "volume"), _parameters(1), averages.vwap_fold, 4, 2, blocks=2, sentinels=1),
    Op(
        "returns",
        1,
        ("x",),
        MappingProxyType(
            {
                "length": IntegerParameter(1, LENGTH_MAX, default=1),
                "gap": ChoiceParameter(GAP_RULES, "reject"),
                "kind": ChoiceParameter(("simple", "log"), "simple"),
            }
        ),
        changes.returns_fold,
        2,
        2,
        blocks=1,
        constant=lambda parameters: 1.0 if parameters["kind"] == "log" else 0.0,
    ),
    Op("rsi", 1, ("x",), _parameters(1), changes.rsi_fold, 4, 1, constant=_wilder, seen_beyond_length=1),
    Op(
        "atr",
        1,
        ("high", "low", "close"),
        _parameters(1),
        changes.atr_fold,
        3,
        1,
        constant=_wilder,
        seen_beyond_length=1,
    ),
    Op(
        "zscore",
        1,
        ("x",),
        _parameters(2, ddof=IntegerParameter(0, 1, default=1)),
        changes.zscore_fold,
        7,
        3,
        blocks=2,
        sentinels=1,
        tail_blocks=1,
        constant=lambda parameters: float(parameters["ddof"]),
    ),
)

OPS: Final[Mapping[tuple[str, int], Op]] = MappingProxyType({(op.name, op.version): op for op in _OPS})
"""Every op by name and version."""

LATEST: Final[Mapping[str, int]] = MappingProxyType(
    {op.name: op.version for op in sorted(_OPS, key=lambda op: op.version)}
)
"""The version that a flow means when it names none. It is written into the flow's canonical body."""


def warm_up() -> None:
    """Compile every kernel, or load it from the cache, so that the first run doesn't wait for it (seconds, without a cache)."""
    for op in _OPS:
        parameters = {name: spec.default if spec.default is not None else 2 for name, spec in op.parameters.items()}
        OpState(op, parameters).fold(tuple(np.ones(1, dtype=np.float64) for _ in op.inputs))
