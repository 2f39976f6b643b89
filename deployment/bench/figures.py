"""The form in which every benchmark answers: figures, and aims with by how much they were missed.

A benchmark's answer is `answer(...)`: plain values, ready for JSON. `question` is one sentence; `figures` a list of `figure`s,
medians over the repeats; `aims` a list of `aim`s; `notes` sentences for the reader; anything else stands beside them as it is.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

REPEATS_MIN: Final = 3
"""Repeats below which a median says nothing; `finaz bench` refuses fewer."""


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value with at least `share` (0 to 1) of all values at or below it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def figure(label: str, values: Sequence[float], unit: str, **more: Any) -> dict[str, Any]:
    """One measured quantity: the median of `values`, one per repeat, and their spread. `more` adds e.g. `ratio=`, `against=`."""
    return {
        "label": label,
        "value": median(values),
        "unit": unit,
        "lowest": min(values),
        "highest": max(values),
        "repeats": len(values),
        **more,
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the repeats of ours to theirs, each pair measured back to back."""
    return median([mine / other for mine, other in zip(ours, theirs, strict=True)])


def aim(what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> dict[str, Any]:
    """A ratio against its aim. `missed_by` is the share of the aim that is lacking or in excess; 0.0 where it is met."""
    if at_least is not None:
        missed_by = max(0.0, (at_least - value) / at_least)
        wanted = f"≥ {at_least:g}"
    elif at_most is not None:
        missed_by = max(0.0, (value - at_most) / at_most)
        wanted = f"≤ {at_most:g}"
    else:
        raise ValueError("an aim needs a bound")
    return {"what": what, "ratio": value, "aim": wanted, "met": missed_by == 0.0, "missed_by": missed_by}


def answer(
    question: str,
    figures: Sequence[Mapping[str, Any]],
    aims: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """What a benchmark returns."""
    return {"question": question, "figures": list(figures), "aims": list(aims), "notes": list(notes), **more}
