"""`finaz bench`: run the benchmarks and show what came out, with each aim and by how much it was missed.

Progress goes to standard error. The exit status tells whether everything could be measured, not whether every aim was met.
"""

from collections.abc import Mapping
from typing import Any

import click

from deployment.bench.figures import REPEATS_MIN
from deployment.bench.registry import BENCHMARKS, run_benchmarks
from deployment.cli import output


@click.command("bench", epilog="Example: finaz bench --only runs --repeats 5 --json")
@click.option("--only", default=",".join(BENCHMARKS), show_default=True, help="Benchmarks, separated by commas.")
@click.option(
    "--repeats", default=REPEATS_MIN, show_default=True, type=click.IntRange(min=1), help="Medians are over so many."
)
@click.option(
    "--scale", default=1.0, show_default=True, type=click.FloatRange(0.0, min_open=True), help="Multiplies the work."
)
@output.json_option
def bench(only: str, repeats: int, scale: float) -> int:
    """Measure, side by side with comparable systems.

    Everything runs on an embedded server in a temporary folder. The peers' environments are made below .bench in the current
    folder at the first time, pinned by hash; that needs a package index.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown or not names:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}", param_hint="--only")
    answers = run_benchmarks(names, repeats, scale, lambda sentence: click.echo(sentence, err=True))
    output.answer(answers, lambda: show(answers))
    return output.EXIT_FAILED if answers["failed"] else 0


def show(answers: Mapping[str, Any]) -> None:
    """The answers as tables: figures and ratios of each benchmark, then all aims with their verdicts."""
    machine = answers["machine"]
    click.echo(
        f"{answers['measured_at']}, {machine['cores']} cores, {machine['processor']}, Python {machine['python']}, "
        f"{answers['repeats']} repeats, scale {answers['scale']:g}"
    )
    for benchmark, each in answers["benchmarks"].items():
        if "error" in each:
            click.echo(f"\n{benchmark} could not be measured: {each['error']}")
            continue
        output.table(
            ("what", "median", "lowest", "highest", "unit", "ratio"),
            [figure_row(figure) for figure in each.get("figures", ())],
            title=f"\n{benchmark}: {each.get('question', '')}",
        )
        for name, versions in each.get("versions", {}).items():
            parts = {"": versions} if isinstance(versions, str) else versions
            click.echo(f"  {name}: {', '.join(f'{part} {version}'.strip() for part, version in parts.items())}")
        for note in each.get("notes", ()):
            click.echo(f"  {note}")
    aims = [aim for each in answers["benchmarks"].values() for aim in each.get("aims", ())]
    output.table(
        ("aim of", "ratio", "aim", "verdict"),
        [(aim["what"], number(aim["ratio"]), aim["aim"], verdict(aim)) for aim in aims],
        title="\naims",
    )
    click.echo(f"{answers['aims_met']} aims met, {answers['aims_missed']} missed, in {answers['seconds']:g} s")


def figure_row(figure: Mapping[str, Any]) -> tuple[str, ...]:
    """A figure's cells; what a benchmark doesn't give stays empty."""
    numbers = (number(figure.get(key)) for key in ("value", "lowest", "highest"))
    return (str(figure.get("label", "")), *numbers, str(figure.get("unit", "")), number(figure.get("ratio")))


def verdict(aim: Mapping[str, Any]) -> str:
    """Whether the aim was met, else by which share of it it was missed."""
    return "met" if aim["met"] else f"missed by {aim['missed_by']:.0%}"


def number(value: float | None) -> str:
    """A measured number to about three digits, thousands grouped; empty for None."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
