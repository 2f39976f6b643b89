"""`finaz log`: the log of all events, as an operator reads it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from deployment.cli.output import answer, console, facts, first, json_line, json_option, note, table, wants_json

if TYPE_CHECKING:
    from deployment.inspection_client import InspectionClient

ITEMS_DEFAULT: Final = 100

_COLUMNS: Final = ("position", "recorded_at", "stream", "version", "topic", "principal", "event_id")
_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def log() -> None:
    """Look at the log: streams, events, states, causes; search, follow, export, import."""


def _limit(command: _F) -> _F:
    option = click.option(
        "--limit", type=click.IntRange(1), default=ITEMS_DEFAULT, show_default=True, help="At most so many."
    )
    return option(command)


def _filters(command: _F) -> _F:
    for option in (
        click.option("--prefix", help="Only streams whose names begin so: run/"),
        click.option("--correlation", "correlation_id", help="Only of this correlation."),
        click.option("--principal", help="Only on behalf of this principal."),
        click.option("--topic", "topics", multiple=True, help="Only events of this topic; may be repeated."),
    ):
        command = option(command)
    return command


def _stream_name(context: click.Context, argument: click.Parameter, value: str) -> str:
    """A name such as run/run_…; a bare id would be of several streams."""
    if "/" not in value:
        raise click.BadParameter(
            f"{value!r} is no stream; expected CATEGORY/KEY, such as run/run_… (finaz log streams)"
        )
    return value


@log.command(name="list", epilog="Example: finaz log list --after 1000 --topic run.failed.v1 --json")
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="Events behind this position.")
@click.option("--topic", "topics", multiple=True, help="Only events of this topic; may be repeated.")
@_limit
@json_option
def list_events(after: int, topics: tuple[str, ...], limit: int) -> None:
    """Read the log of all events, in order of position. Needs the scope operate."""
    with _api() as client:
        _events(first(client.log(after, topics, limit + 1), limit))


@log.command(epilog="Example: finaz log streams --prefix run/ --limit 20")
@click.option("--prefix", help="Only streams whose names begin so: run/ for a category.")
@_limit
@json_option
def streams(prefix: str | None, limit: int) -> None:
    """List streams by name, with their versions, and where and when each begins and ends. Needs the scope operate."""
    with _api() as client:
        found = first(client.streams(prefix, limit + 1), limit)
    columns = ("stream", "version", "last_topic", "first_position", "last_position", "last_recorded_at")
    rows = [[one[column] for column in columns] for one in found]
    answer({"items": found}, lambda: table([column.replace("_", " ") for column in columns], rows))


@log.command(epilog="Example: finaz log read run/run_… --backward --limit 5 --json")
@click.argument("stream", callback=_stream_name)
@click.option("--backward", is_flag=True, help="The newest first.")
@_limit
@json_option
def read(stream: str, backward: bool, limit: int) -> None:
    """Read the events of STREAM with all that is known of each; with --json their documents too. Needs the scope operate."""
    with _api() as client:
        _events(first(client.stream_events(stream, limit + 1, backward), limit))


@log.command(epilog="Example: finaz log state run/run_… --at 2026-01-05T09:00:00Z")
@click.argument("stream", callback=_stream_name)
@click.option("--version", type=click.IntRange(0), help="As of this version.")
@click.option("--at", metavar="INSTANT", help="As of this instant.")
@json_option
def state(stream: str, version: int | None, at: str | None) -> None:
    """Show the state of the aggregate in STREAM, folded from its events; by default as of now. Needs the scope operate."""
    with _api() as client:
        found = client.state(stream, version, at)
    fields = [(name, found[name]) for name in ("stream", "version", "position", "recorded_at")]
    answer(found, lambda: facts([*fields, *found["state"].items()]))


@log.command(epilog="Example: finaz log diff run/run_… 1 3")
@click.argument("stream", callback=_stream_name)
@click.argument("before", type=click.IntRange(0))
@click.argument("after", type=click.IntRange(0))
@json_option
def diff(stream: str, before: int, after: int) -> None:
    """Show what changed in STREAM between the versions BEFORE (0: nothing yet) and AFTER, field by field. Needs operate."""
    with _api() as client:
        found = client.difference(stream, before, after)
    rows = [(one["path"], one["before"], one["after"]) for one in found["differences"]]
    answer(found, lambda: table(("field", "before", "after"), rows))


@log.command(epilog="Example: finaz log causes 0c1d9f0e-5b1e-5c55-8f0b-7b6f5a1f8e11")
@click.argument("event_id", metavar="EVENT_ID|POSITION")
@json_option
def causes(event_id: str) -> None:
    """Show an event, by its id or position, and everything that led to it, the earliest first. Needs the scope operate."""
    with _api() as client:
        _chain(client.causes(_event_id(client, event_id)))


@log.command(epilog="Example: finaz log effects 0c1d9f0e-5b1e-5c55-8f0b-7b6f5a1f8e11")
@click.argument("event_id", metavar="EVENT_ID|POSITION")
@json_option
def effects(event_id: str) -> None:
    """Show an event, by its id or position, and everything that came of it, by position. Needs the scope operate."""
    with _api() as client:
        _chain(client.effects(_event_id(client, event_id)))


@log.command(epilog="Example: finaz log search --topic run.failed.v1 --since 2026-01-05T00:00:00Z --newest-first")
@_filters
@click.option("--since", metavar="INSTANT", help="Recorded then or later.")
@click.option("--until", metavar="INSTANT", help="Recorded earlier.")
@click.option("--newest-first", is_flag=True, help="Backward from the end.")
@_limit
@json_option
def search(
    topics: tuple[str, ...],
    principal: str | None,
    correlation_id: str | None,
    prefix: str | None,
    since: str | None,
    until: str | None,
    newest_first: bool,
    limit: int,
) -> None:
    """Find events for which everything that is given holds. Needs the scope operate."""
    filters = _wanted(topics, principal, correlation_id, prefix)
    filters |= {"since": since, "until": until, "order": "desc" if newest_first else "asc"}
    with _api() as client:
        found = first(client.search(filters, limit + 1), limit)
    _events(found)
    if not found:
        _note_unknown(topics)


@log.command(epilog="Example: finaz log tail --follow --prefix run/")
@_filters
@click.option("--lines", type=click.IntRange(0), default=10, show_default=True, help="So many from the end first.")
@click.option("--follow", is_flag=True, help="Then show events as they come, until Ctrl-C.")
@json_option
def tail(
    topics: tuple[str, ...],
    principal: str | None,
    correlation_id: str | None,
    prefix: str | None,
    lines: int,
    follow: bool,
) -> None:
    """Show the end of the log; with --follow what comes, live. With --json one document an event. Needs the scope operate."""
    filters = _wanted(topics, principal, correlation_id, prefix)
    with _api() as client:
        last = list(client.search({**filters, "order": "desc"}, max(1, lines)))
        for event in reversed(last[:lines]):
            _one(event)
        if follow:
            for message in client.follow(filters, last[0]["position"] if last else 0):
                _one(message.data)


@log.command(name="export", epilog="Example: finaz log export --output log.jsonl")
@click.option("--stream", help="Only this stream, to be looked at: it cannot be imported.")
@click.option("--first", type=click.IntRange(1), default=1, show_default=True, help="The first position.")
@click.option("--last", type=click.IntRange(1), help="The last position; by default the log's end.")
@click.option("--output", metavar="FILE", help="Where to; by default standard output.")
@click.option("--direct", is_flag=True, help="From the database of FINAZ_POSTGRES_DSN, without the API.")
@json_option
def export_log(stream: str | None, first: int, last: int | None, output: str | None, direct: bool) -> None:
    """Write the log, a range of it or one stream as JSON Lines, with hashes. Needs the scope operate, or the database."""
    from deployment.log_files import exported

    head = exported(stream, first, last, output, direct=direct, quiet=wants_json())
    if output is not None:
        answer(head, lambda: facts(head.items()))


@log.command(name="import", epilog="Example: FINAZ_POSTGRES_DSN=postgresql://… finaz log import log.jsonl")
@click.argument("file")
@json_option
def import_log(file: str) -> None:
    """Take the whole log in FILE (`-`: standard input) into the empty store of FINAZ_POSTGRES_DSN, as it was recorded.

    All or nothing, every hash computed again. The database must be migrated, and nothing may have happened in it.
    """
    from deployment.log_files import imported

    head = imported(file, quiet=wants_json())
    answer(head, lambda: facts(head.items()))


def _api() -> "InspectionClient":
    from deployment.inspection_client import InspectionClient
    from deployment.settings import load_client_settings

    settings = load_client_settings()
    return InspectionClient(settings.api_url, settings.token)


def _wanted(
    topics: tuple[str, ...], principal: str | None, correlation_id: str | None, prefix: str | None
) -> dict[str, Any]:
    return {"topic": list(topics), "principal": principal, "correlation_id": correlation_id, "prefix": prefix}


def _events(found: list[dict[str, Any]]) -> None:
    rows = [[event[column] for column in _COLUMNS] for event in found]
    answer({"items": found}, lambda: table([column.replace("_", " ") for column in _COLUMNS], rows))


def _event_id(client: "InspectionClient", named: str) -> str:
    """The id of the event at a position, or the id that was given."""
    if not (named.isascii() and named.isdigit()):
        return named
    for event in client.log(int(named) - 1, (), 1):
        if event["position"] == int(named):
            return str(event["event_id"])
    raise click.BadParameter(f"there is no event at position {named}")


def _note_unknown(topics: tuple[str, ...]) -> None:
    """Nothing was found: say so of topics that this version does not know, for they may be misspelt."""
    from difflib import get_close_matches

    import domain.vocabulary  # noqa: F401  (registers all topics)
    from domain.events import topics as known_topics

    known = list(known_topics())
    for topic in topics:
        if topic not in known:
            near = get_close_matches(topic, known, 1)
            note(f"this version knows no topic {topic!r}" + (f"; did you mean {near[0]}?" if near else ""))


def _chain(found: dict[str, Any]) -> None:
    rows = [[event[column] for column in _COLUMNS] for event in found["items"]]
    answer(found, lambda: table([column.replace("_", " ") for column in _COLUMNS], rows))


def _one(event: dict[str, Any]) -> None:
    if wants_json():
        json_line(event)
    else:
        console().print(*(event[column] for column in _COLUMNS[:5]), markup=False)
