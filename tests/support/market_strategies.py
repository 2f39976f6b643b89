"""Random market data for property tests: events, histories of revisions, flows, and ways to cut a sequence."""

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

from hypothesis import strategies as st

from domain.market.records import MarketEvent

START = 1_767_603_600_000_000
"""2026-01-05T09:00:00Z in microseconds."""

T = TypeVar("T")

PRICES = st.none() | st.floats(0.01, 1e6) | st.sampled_from([1.0, 2.0, 100.0, 0.1])
ANY_VALUES = st.none() | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), min_size=1, max_size=12).map(
    lambda text: unicodedata.normalize("NFC", text)
)


@st.composite
def events(
    draw: st.DrawFn,
    *,
    instruments: Sequence[str] = ("A", "B"),
    columns: Sequence[str] = ("close",),
    values: st.SearchStrategy[float | None] = PRICES,
    revisions_max: int = 0,
    step_micros: int = 1_000_000,
    size_max: int = 40,
) -> list[MarketEvent]:
    """Events of some instruments, some with revisions; ids fix instrument and time; several may share a time."""
    made = []
    for number in range(draw(st.integers(0, size_max))):
        instrument = draw(st.sampled_from(instruments))
        time = START + draw(st.integers(0, 50)) * step_micros + draw(st.sampled_from([0, 1, 250_000]))
        made += [
            MarketEvent(
                event_id=f"{instrument}.{number}",
                instrument=instrument,
                event_time=time,
                available_at=time + draw(st.integers(0, 10_000_000)),
                revision=revision,
                values={column: draw(values) for column in columns},
            )
            for revision in range(draw(st.integers(0, revisions_max)) + 1)
        ]
    return made


def flow(
    op: str = "ema", columns: Sequence[str] = ("close",), instruments: Sequence[str] = ("A",), **more: Any
) -> dict[str, Any]:
    """A flow with one node and one output per instrument."""
    several = len(instruments) > 1
    clock = more.pop("clock", {"kind": "event"})
    return {
        "version": 1,
        "name": "made",
        "source": {"instruments": list(instruments)},
        "clock": clock,
        "nodes": [
            {
                "id": f"n{index}",
                "op": op,
                "inputs": [{"column": column} | ({"instrument": instrument} if several else {}) for column in columns],
                "parameters": {"length": 3, **more},
            }
            for index, instrument in enumerate(instruments)
        ],
        "outputs": [{"name": f"out{index}", "node": f"n{index}"} for index in range(len(instruments))],
    }


@st.composite
def cuts(draw: st.DrawFn, items: Sequence[T]) -> list[Sequence[T]]:
    """The items in order, cut into pieces at random, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(items)), max_size=6)))
    bounds = [0, *places, len(items)]
    return [items[start:end] for start, end in pairwise(bounds)]
