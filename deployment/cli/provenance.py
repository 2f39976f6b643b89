"""`finaz run contract|replay|replay-log`: where a run's result comes from; all through the API."""

from typing import Any, Final

import click

from deployment.cli.output import answer, facts, json_option, plain, table


@click.command(epilog="Example: finaz run contract run_…")
@click.argument("run_id")
@json_option
def contract(run_id: str) -> None:
    """Show what decides a run's result: flow, code, ops, inputs, seed."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.contract(run_id)
    ops = ", ".join(f"{one['node']}: {one['op']} version {one['version']}" for one in found["ops"])
    shown = {
        name: ", ".join(value) if isinstance(value, list) else value for name, value in (found | {"ops": ops}).items()
    }
    answer(found, lambda: facts((name.replace("_", " "), value or None) for name, value in shown.items()))


@click.command(epilog="Example: finaz run replay run_… --json")
@click.argument("run_id")
@json_option
def replay(run_id: str) -> None:
    """Show what a REPLAY run made of its snapshot: arrivals, treatments, and every fault with what it did."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.replay(run_id)
    answer(found, lambda: _show(found))


@click.command("replay-log", epilog="Example: finaz run replay-log run_… --output arrivals.jsonl")
@click.argument("run_id")
@click.option(
    "--output", "file", type=click.Path(dir_okay=False), help="Write to this file instead of standard output."
)
@json_option
def replay_log(run_id: str, file: str | None) -> None:
    """Fetch the arrival log of a REPLAY run, as JSON Lines; it is hashed again before it is handed out."""
    from deployment.api_client import ApiBlobStore
    from deployment.cli.connection import api
    from deployment.cli.documents import write_out

    with api() as client:
        data = ApiBlobStore(client).get(client.replay(run_id)["log"])
    write_out(data, file, binary=False)


@click.command(epilog="Example: finaz run verdict run_… --json")
@click.argument("run_id")
@json_option
def verdict(run_id: str) -> int:
    """Judge a STREAM run that has ended, by a second look at its topic.

    Exit status 0: equal to BATCH over its source (or over what it accepted, if the source is not known); 1: not equal, or the topic
    holds something else than the run recorded; 2: the topic could not be read again.
    """
    from deployment.cli.connection import api

    with api() as client:
        found = client.verdict(run_id)
    answer(found, lambda: _show_verdict(found))
    kind, findings = found["verdict"]["kind"], found["findings"]
    if kind not in ("EQUAL_TO_BATCH_GOLDEN", "EQUAL_TO_ACCEPTED") or findings["differing"] or findings["unexplained"]:
        return EXIT_DIFFERS
    return 0 if findings["look"] == "CHECKED" else EXIT_NOT_CHECKED


COMMANDS: Final = (contract, replay, replay_log, verdict)

EXIT_DIFFERS: Final = 1
EXIT_NOT_CHECKED: Final = 2
"""Exit statuses of comparisons; an error that ends the command has 1 as everywhere."""


def _show_verdict(found: dict[str, Any]) -> None:
    judged, findings = found["verdict"], found["findings"]
    facts(
        (
            ("verdict", judged["kind"]),
            ("accepted", judged["accepted"]),
            ("source", judged["source"]),
            ("topic", f"{found['topic']}, {findings['look']}"),
            ("records", findings["records"]),
            ("reason", findings["reason"] or None),
            ("differing", ", ".join(findings["differing"]) or None),
            ("unexplained", "; ".join(findings["unexplained"]) or None),
        )
    )
    kinds = ("lost", "late", "revised", "extra")
    rows = [
        (kind, one["event_id"], one["event_time"], one["revision"]) for kind in kinds for one in judged[kind]["first"]
    ]
    if rows:
        table(("difference", "event", "event time", "revision"), rows)


def _show(found: dict[str, Any]) -> None:
    counts = ", ".join(f"{name} {count}" for name, count in found["treatments"].items() if count)
    facts(
        (
            ("arrivals", found["arrivals"]),
            ("log hash", found["log"]),
            ("treatments", counts),
            ("partitions", ", ".join(map(str, found["partitions"]))),
            ("schedule", found["schedule"]),
            ("seed", found["seed"]),
            ("report", found["report"]),
        )
    )
    rows = [
        (fault["event"], fault["kind"], len(fault["records"]), fault["removed"], _parameters(fault["parameters"]))
        for fault in found["applied"]
    ]
    table(("event", "fault", "records", "removed", "parameters"), rows)
    if found["faults"] > len(rows):
        click.echo(f"{found['faults'] - len(rows)} more; the report has all of them")


def _parameters(given: dict[str, Any]) -> str:
    return " ".join(f"{name}={plain(value)}" for name, value in given.items())
