"""`finaz demo`: the whole way, from a file of real prices to published results, judged at the end."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from deployment.cli.output import EXIT_FAILED, json_line, json_option, table, wants_json

if TYPE_CHECKING:
    from deployment.demo import Evidence, Report


@click.group(invoke_without_command=True, epilog="Example: finaz demo --json")
@click.pass_context
@json_option
def demo(context: click.Context) -> int:
    """Show the whole way, from real prices to published results.

    In a temporary folder: starts the database, a broker and every component, imports five tickers' prices, submits one EMA run per
    ticker and the fixture in BATCH, REPLAY (with seven faults) and STREAM over HTTP, watches them, prints results and plots. Exit
    status 0 only if every check at the end held.
    """
    if context.invoked_subcommand is not None:
        return 0
    from deployment.demo import show

    report = show(say=_say, quiet=wants_json())
    if wants_json():
        json_line(_document(report))
    else:
        _print(report)
    return 0 if report.held else EXIT_FAILED


@demo.command(name="purchase", epilog="Example: finaz demo purchase --json")
@json_option
def demo_purchase() -> int:
    """Tell three stories of purchases (paid, declined, timed out but charged) and the counter-example, step by step.

    In a temporary folder: starts the database and every component, a sandbox gateway and a mail server; business time is moved, not
    waited for. Exit status 0 only if every story ended as it should and the books of all agree.
    """
    from deployment.demo_purchase import tell_stories

    found = tell_stories(_say)
    held = all(story.held for story in found)
    if wants_json():
        told = [{"name": story.name, "held": story.held, "found": story.found} for story in found]
        json_line({"ok": held, "stories": told})
    else:
        for story in found:
            click.echo(f"{'ok     ' if story.held else 'BROKEN '} {story.name}: {story.found}")
    return 0 if held else EXIT_FAILED


def _say(text: str) -> None:
    if not wants_json():
        click.echo(text, err=True)


def _document(report: "Report") -> dict[str, Any]:
    evidence = report.evidence
    names = _names(evidence)
    return {
        "ok": report.held,
        "values_hash": report.values_hash,
        "golden": report.golden,
        "runs": [
            {
                "run_id": run["run_id"],
                "name": names[run["run_id"]],
                "mode": run["mode"],
                "state": run["state"],
                "results": run["results"],
                "events": len(evidence.events[run["run_id"]]),
            }
            for run in evidence.runs
        ],
        "events": len(evidence.log),
        "snapshots": dict(report.snapshots),
        "checks": [{"name": check.name, "held": check.held, "found": check.found} for check in report.checks],
        "seconds": report.seconds,
    }


def _print(report: "Report") -> None:
    from deployment.demo import EMA_LENGTH
    from deployment.plots import plot

    evidence = report.evidence
    names = _names(evidence)
    for ticker, run_id in evidence.tickers.items():
        dates = [date for date, _ in evidence.prices[ticker]]
        lines: dict[str, Sequence[float | None]] = {
            "price": [price for _, price in evidence.prices[ticker]],
            f"EMA({EMA_LENGTH})": list(evidence.values.get(run_id, ())),
        }
        click.echo(plot(f"{ticker}: adjusted close and EMA({EMA_LENGTH})", dates, lines))
    rows = [_row(names[run["run_id"]], run, evidence.values.get(run["run_id"], ())) for run in evidence.runs]
    table(("run of", "mode", "state", "rows", "last value", "values hash", "attempts"), rows)
    for check in report.checks:
        click.echo(f"{'ok     ' if check.held else 'BROKEN '} {check.name}{'' if check.held else ': ' + check.found}")
    click.echo(f"{len(evidence.log)} events read back, {report.seconds:.1f} seconds")
    if report.held:
        click.echo(f"golden OK {report.values_hash}")
    else:
        broken = ", ".join(check.name for check in report.checks if not check.held)
        click.echo(f"golden NOT OK: {broken}")


def _names(evidence: "Evidence") -> dict[str, str]:
    """What each run is of: a ticker or the fixture."""
    tickers = {run_id: ticker for ticker, run_id in evidence.tickers.items()}
    return {run["run_id"]: tickers.get(run["run_id"], "fixture") for run in evidence.runs}


def _row(name: str, run: Mapping[str, Any], values: Sequence[float | None]) -> tuple[Any, ...]:
    result = run["results"][0] if run["results"] else None
    last = next((value for value in reversed(values) if value is not None), None)
    return (
        name,
        run["mode"],
        run["state"],
        result and result["rows"],
        None if last is None else f"{last:.4f}",
        result and result["values_hash"],
        run["attempts"],
    )
