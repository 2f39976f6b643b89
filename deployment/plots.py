"""Plots in the terminal: a line or two over time, without colour, so that they look the same on any background and in a log."""

from collections.abc import Mapping, Sequence
from typing import Final

WIDTH_CHARACTERS: Final = 78
HEIGHT_LINES: Final = 14

_MARKERS: Final = ("braille", "dot")


def plot(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """A plot as text: each series a line over the common `labels`, a few of which stand below it; None leaves a gap."""
    import plotext  # type: ignore[import-untyped]

    figure = plotext.figure
    figure.clear()
    figure.plot_size(WIDTH_CHARACTERS, HEIGHT_LINES)
    figure.title(title)
    for (name, values), marker in zip(series.items(), _MARKERS, strict=False):
        points = [(index, value) for index, value in enumerate(values) if value is not None]
        signal = figure.signal([index for index, _ in points], [value for _, value in points], marker=marker)
        signal.label(name)
        signal.lines()
        figure.draw(signal)
    every = max(1, len(labels) // 5)
    ticks = list(range(0, len(labels), every))
    figure.ruler("x").ticks(ticks, [labels[index] for index in ticks])
    text: str = figure.build().string(colorless=True)
    return text
