"""`finaz replay`: the arrival log of a snapshot under a fault schedule, to a file and to a topic."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deployment.cli.connection import blobs as blobs_of
from deployment.cli.connection import via_option
from deployment.cli.output import answer, facts, json_option, note, plain, table, wants_json

if TYPE_CHECKING:
    from domain.market.faults import FaultSchedule
    from services.ports import BlobStore


@click.command(
    epilog="Example: finaz replay --snapshot sha256:… --as-of 2026-01-06T00:00:00Z --schedule faults.json --loads 13"
)
@click.option("--snapshot", required=True, metavar="FILE|ADDRESS", help="A stored snapshot, or one in files.")
@click.option("--as-of", required=True, metavar="INSTANT", help="Take what was available then (RFC 3339).")
@click.option("--schedule", metavar="FILE|ADDRESS", help="The faults, as JSON (- for standard input), or stored.")
@click.option("--random-faults", "seed", type=click.IntRange(0), metavar="SEED", help="Draw the faults at random.")
@click.option("--rate", "rates", multiple=True, metavar="KIND=P", help="How probable a kind is; may be given again.")
@click.option("--save-schedule", type=click.Path(dir_okay=False), metavar="FILE", help="Write the faults to this file.")
@click.option("--log", "log_file", type=click.Path(dir_okay=False), metavar="FILE", help="Write the log to this file.")
@click.option("--topic", metavar="NAME", help="Publish to this topic. Default: one of that name for replays.")
@click.option("--bootstrap", metavar="HOST:PORT", help="The broker. Default: FINAZ_KAFKA_BOOTSTRAP.")
@click.option("--dry-run", is_flag=True, help="Make the log and publish nothing, whatever the settings say.")
@click.option("--partitions", type=click.IntRange(1), default=4, show_default=True, help="Of a topic that is created.")
@click.option("--loads", type=click.IntRange(1), default=1, show_default=True, help="Publish the log so many times.")
@click.option(
    "--load-id", default="", help="The publication's name: the same name goes on. Default: by the log's hash."
)
@click.option("--pace", default="max", show_default=True, help="max, records per second (100/s), or a speed-up (60x).")
@via_option
@json_option
def replay(snapshot: str, as_of: str, via: str, log_file: str | None, save_schedule: str | None, **given: Any) -> None:
    """Make the arrival log of a snapshot under a fault schedule, and publish it.

    The same command again sends only what the topic lacks of the same publication. Without a broker, the log is made and described.
    """
    from deployment.cli.documents import write_lines
    from deployment.replaying import described, schedule_text
    from domain.instants import parse_instant, to_micros
    from domain.market.arrivals import log_lines
    from services.replay import made_log

    instant = to_micros(parse_instant(as_of, at="--as-of"))
    with _snapshot(snapshot, via) as (blobs, address):
        schedule = _schedule(blobs, address, instant, given.pop("schedule"), given.pop("seed"), given.pop("rates"), via)
        log = made_log(blobs, address, instant, schedule)
    if save_schedule:
        write_lines((schedule_text(schedule),), save_schedule)
    if log_file:
        write_lines(log_lines(log.arrivals, instant, schedule, address), log_file)
        note(f"{len(log.arrivals)} arrivals to {log_file}")
    done = described(log, address, instant, schedule, _published(log, **given))
    answer(done, lambda: _show(done))


@contextmanager
def _snapshot(text: str, via: str) -> Iterator[tuple["BlobStore", str]]:
    """A store that has the snapshot, and its address."""
    from deployment.replaying import snapshot_of_file
    from domain.canonical import is_address

    if not is_address(text):
        path = Path(text)
        if not path.is_file():
            raise click.UsageError(f"--snapshot {text!r}: neither an address nor a file", click.get_current_context())
        with snapshot_of_file(path) as found:
            yield found
    else:
        with blobs_of(via) as blobs:
            yield blobs, text


def _schedule(
    blobs: "BlobStore", address: str, as_of: int, given: str | None, seed: int | None, rates: tuple[str, ...], via: str
) -> "FaultSchedule":
    from deployment.cli.documents import flow_argument
    from deployment.replaying import rates_of
    from domain.market.faults import NO_FAULTS
    from services.replay import drawn_schedule
    from services.schedules import known_schedule, load_schedule

    if given is not None and seed is not None:
        raise click.UsageError("--schedule or --random-faults, not both", click.get_current_context())
    if rates and seed is None:
        raise click.UsageError("--rate needs --random-faults", click.get_current_context())
    if seed is not None:
        return drawn_schedule(blobs, address, as_of, seed, rates_of(dict(_rate(text) for text in rates)))
    if given is None:
        return NO_FAULTS
    document = flow_argument(given)
    if not isinstance(document, str):
        return known_schedule(document).schedule
    with blobs_of(via) as stored:
        return load_schedule(stored, document)


def _rate(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        return name.upper(), float(value if equals else "")
    except ValueError:
        raise click.UsageError(f"--rate {text!r}: expected KIND=P", click.get_current_context()) from None


def _published(
    log: Any,
    topic: str | None,
    bootstrap: str | None,
    dry_run: bool,
    partitions: int,
    loads: int,
    load_id: str,
    pace: str,
) -> Any:
    """What the publication came to, or None where there was none."""
    from deployment.broker_wiring import configured_broker
    from deployment.replaying import published_with_progress
    from deployment.settings import load_settings
    from domain.stream.publication import DEFAULT_TOPIC, load_base, load_ids, parse_pace
    from services.replay_publishing import ReplayRequest
    from services.requests import check_topic

    request = ReplayRequest(
        topic=check_topic(topic or DEFAULT_TOPIC, at="--topic"),
        base=load_id,
        loads=loads,
        pace=parse_pace(pace),
        partitions=partitions,
    )
    load_ids(load_id or load_base(log), loads)
    settings = load_settings()
    if dry_run or (topic is None and bootstrap is None and settings.kafka_bootstrap is None):
        return None
    broker = configured_broker(settings, bootstrap)
    try:
        return published_with_progress(broker, log, request, quiet=wants_json())
    finally:
        broker.close()


def _show(done: dict[str, Any]) -> None:
    names = ("log_hash", "arrivals", "snapshot", "as_of", "schedule", "seed")
    facts([(name.replace("_", " "), done[name]) for name in names])
    rows = [
        (fault["event"], fault["kind"], len(fault["records"]), fault["removed"], _parameters(fault["parameters"]))
        for fault in done["applied"]
    ]
    if rows:
        table(("event", "fault", "records", "removed", "parameters"), rows)
    publication = done["publication"]
    if publication is None:
        click.echo("not published")
        return
    marks = ", ".join(map(str, publication["high_water_marks"]))
    click.echo(
        f"{publication['sent']} of {publication['records']} records sent to {publication['topic']} in"
        f" {publication['seconds']:.3g} s ({publication['present']} were there); high-water marks {marks}"
    )


def _parameters(given: dict[str, Any]) -> str:
    return " ".join(f"{name}={plain(value)}" for name, value in given.items())
