"""`finaz run`: submit runs, watch them, cancel them, fetch their results; all through the API."""

from typing import TYPE_CHECKING, Any, Final

import click

from deployment.cli.documents import document_argument, flow_argument
from deployment.cli.output import answer, facts, first, json_line, json_option, note, table, wants_json
from deployment.cli.provenance import COMMANDS

if TYPE_CHECKING:
    from deployment.api_client import ApiClient

MODES: Final = ("BATCH", "REPLAY", "STREAM")
STATES: Final = ("QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
FORMATS: Final = ("json", "csv", "arrow", "parquet")
LIST_ITEMS_DEFAULT: Final = 50

ENDLESS_SECONDS: Final = 7 * 86_400
"""After how long an endless run fails where nothing else is said: the most that is allowed."""


@click.group()
def run() -> None:
    """Submit runs, watch them, fetch their results."""


def _request_options(command: Any) -> Any:
    """The options that a run and a sweep share."""
    options = (
        click.option(
            "--snapshot", metavar="ADDRESS", help="The snapshot's address, sha256:…; only STREAM does without."
        ),
        click.option(
            "--as-of", metavar="INSTANT", help="Take what was available then (RFC 3339). Default: now; --key needs it."
        ),
        click.option("--mode", type=click.Choice(MODES), default="BATCH", show_default=True, help="How to execute."),
        click.option(
            "--schedule", metavar="FILE|ADDRESS", help="REPLAY: the faults, as JSON (- for standard input), or stored."
        ),
        click.option("--tag", "tags", multiple=True, help="A tag to find it by; may be given again."),
        click.option("--priority", type=int, default=0, show_default=True, help="-100 to 100; higher goes first."),
        click.option(
            "--deadline",
            type=int,
            metavar="SECONDS",
            help="End it FAILED after. Default: a day; with --endless a week, which is the most.",
        ),
        click.option(
            "--key", help="The idempotency key: the same key and request is the same run. Default: a new one."
        ),
        click.option("--wait", is_flag=True, help="Wait for the end; exit status 0 only if it SUCCEEDED."),
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@run.command(
    epilog="Example: finaz run submit --flow flow.json --snapshot sha256:… --as-of 2026-01-06T00:00:00Z --wait"
)
@click.option("--flow", required=True, metavar="FILE|ADDRESS", help="A flow as JSON (- for standard input), or stored.")
@click.option("--topic", metavar="NAME", help="STREAM: the topic to read.")
@click.option("--endless", is_flag=True, help="STREAM: go on past the marks that the topic has when it is opened.")
@click.option("--continues", metavar="RUN_ID", help="STREAM: go on behind this BATCH run, which has SUCCEEDED.")
@_request_options
def submit(
    flow: str, topic: str | None, endless: bool, continues: str | None, key: str | None, wait: bool, **request: Any
) -> None:
    """Submit one run."""
    from deployment.cli.connection import api

    key = _key(key, request["as_of"], timeless=request["snapshot"] is None)
    if request["mode"] == "STREAM" and topic is None:
        raise click.UsageError("--mode STREAM needs --topic", click.get_current_context())
    if endless and request["deadline"] is None:
        request["deadline"] = ENDLESS_SECONDS
    body = {"flow": flow_argument(flow), **_request(**request), **_stream(topic, endless, continues)}
    with api() as client:
        submitted = client.submit_run(body, key)
        if wait:
            ended = _follow(client, submitted["run_id"])
            answer(ended, lambda: _show(ended))
            _held(ended)
        else:
            answer(submitted, lambda: click.echo(submitted["run_id"]))


@run.command(
    epilog="Example: finaz run sweep --flow ema.json --instrument AAPL --set ema.length=10,20 --snapshot sha256:…"
)
@click.option(
    "--flow", "flows", required=True, multiple=True, metavar="FILE|ADDRESS", help="A flow; may be given again."
)
@click.option("--instrument", "instruments", multiple=True, help="Run it for this instrument; may be given again.")
@click.option(
    "--set", "settings", multiple=True, metavar="NODE.PARAM=V,V…", help="Values of a parameter to sweep over."
)
@click.option("--parameters", metavar="FILE|JSON", help="Instead of --set: a list of {node: {param: value}}.")
@_request_options
def sweep(
    flows: tuple[str, ...],
    instruments: tuple[str, ...],
    settings: tuple[str, ...],
    parameters: str | None,
    key: str | None,
    wait: bool,
    **request: Any,
) -> None:
    """Submit many runs at once: flows × instruments × parameters."""
    from deployment.cli.connection import api
    from deployment.cli.documents import combinations

    key = _key(key, request["as_of"])
    body = {
        "flows": [flow_argument(flow) for flow in flows],
        "instruments": list(instruments),
        "parameters": document_argument(parameters) if parameters else combinations(settings),
        **_request(**request),
    }
    with api() as client:
        submitted = client.submit_sweep(body, key)
        if not wait:
            answer(submitted, lambda: _show_sweep(submitted))
            return
        from deployment.waiting import finished_runs

        ended = list(finished_runs(client, submitted["run_ids"], _progress_of(len(submitted["run_ids"]))))
        answer({**submitted, "runs": ended}, lambda: _show_runs(ended))
        for one in ended:
            _held(one)


@run.command(epilog="Example: finaz run get run_…")
@click.argument("run_id")
@json_option
def get(run_id: str) -> None:
    """Show one run as it stands now."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.run(run_id)
    answer(found, lambda: _show(found))


@run.command("list", epilog="Example: finaz run list --state FAILED --tag nightly --from 2026-01-01T00:00:00Z --json")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only in this state; may be repeated."
)
@click.option("--tag", "tags", multiple=True, help="Only with this tag; may be repeated.")
@click.option("--mode", type=click.Choice(MODES), help="Only of this mode.")
@click.option("--sweep", metavar="SWEEP_ID", help="Only of this sweep.")
@click.option("--from", "requested_from", metavar="INSTANT", help="Only requested at or after.")
@click.option("--to", "requested_to", metavar="INSTANT", help="Only requested before.")
@click.option(
    "--position", type=int, help="Wait until the list has seen this position (submit and sweep answer theirs)."
)
@click.option("--limit", type=click.IntRange(1), default=LIST_ITEMS_DEFAULT, show_default=True, help="At most so many.")
@json_option
def list_runs(
    states: tuple[str, ...],
    tags: tuple[str, ...],
    mode: str | None,
    sweep: str | None,
    requested_from: str | None,
    requested_to: str | None,
    position: int | None,
    limit: int,
) -> None:
    """List runs, the newest first."""
    from deployment.cli.connection import api

    filters = {
        "state": list(states),
        "tag": list(tags),
        "mode": mode,
        "sweep": sweep,
        "requested_from": requested_from,
        "requested_to": requested_to,
        "position": position,
    }
    with api() as client:
        found = first(client.runs({name: value for name, value in filters.items() if value}, limit + 1), limit)
    answer({"items": found}, lambda: _show_runs(found))


@run.command(epilog="Example: finaz run cancel run_…")
@click.argument("run_id")
@json_option
def cancel(run_id: str) -> None:
    """Ask that a run end without a result, at its next safe border."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.cancel(run_id)
    answer(found, lambda: _show(found))


@run.command(epilog="Example: finaz run watch run_… && finaz run result run_… --format csv")
@click.argument("run_id")
@json_option
def watch(run_id: str) -> None:
    """Follow a run to its end; exit status 0 only if it SUCCEEDED."""
    from deployment.cli.connection import api
    from deployment.waiting import watched

    with api() as client:
        for message in watched(client, run_id):
            if wants_json():
                json_line(message.data)
            else:
                _show_event(message.data)
        ended = client.run(run_id)
    _held(ended)


@run.command(epilog="Example: finaz run events run_… --json")
@click.argument("run_id")
@json_option
def events(run_id: str) -> None:
    """Show everything that happened to a run and its lease."""
    from deployment.cli.connection import api

    with api() as client:
        found = client.history(run_id)
    columns = ("position", "recorded at", "stream", "version", "topic", "event id")
    rows = [
        (e["position"], e["recorded_at"], e["stream"].partition("/")[0], e["version"], e["topic"], e["event_id"])
        for e in found
    ]
    answer({"items": found}, lambda: table(columns, rows))


@run.command(epilog="Example: finaz run result run_… --format parquet --output ema.parquet")
@click.argument("run_id")
@click.option("--format", "form", type=click.Choice(FORMATS), default="json", show_default=True, help="The form.")
@click.option("--name", help="Which output, if the run has several.")
@click.option(
    "--output", "file", type=click.Path(dir_okay=False), help="Write to this file instead of standard output."
)
@json_option
def result(run_id: str, form: str, name: str | None, file: str | None) -> None:
    """Fetch the result of a run."""
    from deployment.cli.connection import api
    from deployment.cli.documents import write_out

    with api() as client:
        data = client.result(run_id, name, form)
    write_out(data, file, binary=form in ("arrow", "parquet"))


for _command in COMMANDS:
    run.add_command(_command)


# ------------------------------------------------------------------------------------------------ parts


def _stream(topic: str | None, endless: bool, continues: str | None) -> dict[str, Any]:
    """What only a STREAM run has, as far as it was given."""
    given = {"topic": topic, "bounded": False if endless else None, "continues": continues}
    return {name: value for name, value in given.items() if value is not None}


def _request(
    snapshot: str | None,
    as_of: str | None,
    mode: str,
    schedule: str | None,
    tags: tuple[str, ...],
    priority: int,
    deadline: int | None,
) -> dict[str, Any]:
    from datetime import UTC, datetime

    from domain.instants import format_instant

    if snapshot is None and mode != "STREAM":
        raise click.UsageError("Missing option '--snapshot'.", click.get_current_context())
    known = {} if snapshot is None else {"snapshot": snapshot, "as_of": as_of or format_instant(datetime.now(UTC))}
    faults = {} if schedule is None else {"schedule": flow_argument(schedule)}
    ends = {} if deadline is None else {"deadline_seconds": deadline}
    return {"mode": mode, **known, **faults, "tags": list(tags), "priority": priority, **ends}


def _key(key: str | None, as_of: str | None, *, timeless: bool = False) -> str:
    """The key given, or a new one: our own repetitions after a lost connection are then still one request.

    A key means one request for ever, so it needs an as-of instant of its own: "now" is another one each time.
    """
    import uuid

    if key is not None and as_of is None and not timeless:
        raise click.UsageError("--key needs --as-of: with 'now' the same command is another request each time")
    return uuid.uuid4().hex if key is None else key


def _follow(client: "ApiClient", run_id: str) -> dict[str, Any]:
    """Watch a run to its end, saying what happens on the side; the run as it ended."""
    from deployment.waiting import watched

    note(run_id)
    handed_off = False
    for message in watched(client, run_id):
        note(f"  {message.data['topic']}")
        if message.data["topic"] == "run.handed_off.v1" and not handed_off:
            handed_off = True
            note(f"  (another owner tries: finaz stream status {run_id} says what held it up)")
    return client.run(run_id)


def _held(run: dict[str, Any]) -> None:
    """Raise `NotHeldError` unless the run SUCCEEDED, with its last error."""
    from deployment.problems import NotHeldError

    if run["state"] == "SUCCEEDED":
        return
    last = run["errors"][-1] if run["errors"] else {"code": f"RUN_{run['state']}", "message": "it was cancelled"}
    raise NotHeldError(
        last["code"], f"the run ended {run['state']}: {last['message']}", at=run["run_id"], expected="SUCCEEDED"
    )


def _progress_of(total: int) -> Any:
    from deployment.progress import Progress

    return Progress("runs", total, quiet=wants_json())


def _show(run: dict[str, Any]) -> None:
    facts(
        (name.replace("_", " "), value)
        for name, value in run.items()
        if name not in ("errors", "results") and value not in (None, [], "")
    )
    for error in run["errors"]:
        click.echo(f"error in attempt {error['attempt']}: {error['code']}: {error['message']}")
    if run["mode"] == "STREAM" and run["state"] in ("RUNNING", "FAILED"):
        note(f"how far it is, and what holds it up: finaz stream status {run['run_id']}")
    results = [(r["output"], r["rows"], r["values_hash"], r["artifact"]) for r in run["results"]]
    if results:
        table(("output", "rows", "values hash", "artifact"), results)


def _show_runs(runs: list[dict[str, Any]]) -> None:
    columns = ("run", "state", "mode", "flow", "requested at", "attempts", "error", "tags")
    rows = [
        (
            run["run_id"],
            run["state"],
            run["mode"],
            run["flow_name"],
            run["requested_at"],
            run["attempts"],
            run["errors"][-1]["code"] if run["errors"] else "",
            " ".join(run["tags"]),
        )
        for run in runs
    ]
    table(columns, rows)


def _show_sweep(submitted: dict[str, Any]) -> None:
    click.echo(submitted["sweep_id"])
    for run_id in submitted["run_ids"]:
        click.echo(f"  {run_id}")


def _show_event(event: dict[str, Any]) -> None:
    click.echo(f"{event['recorded_at']}  {event['position']:>8}  {event['topic']}")
