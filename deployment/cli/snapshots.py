"""`finaz snapshot`: market data in, as an immutable snapshot with an address."""

from pathlib import Path
from typing import Any

import click

from deployment.cli.connection import blobs as blobs_of
from deployment.cli.connection import via_option
from deployment.cli.output import answer, facts, json_option, wants_json


@click.group()
def snapshot() -> None:
    """Import market data, look at what was imported."""


@snapshot.command(
    "import",
    epilog="Example: finaz snapshot import stocks.csv.gz --name stocks --instrument Ticker --event-time Date --zone UTC"
    " --value close=Close --value 'adj_close=Adj Close'",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="The snapshot's name. Default: the file's.")
@click.option("--attribution", default="", help="Whose data it is; kept in the manifest.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "csv", "parquet", "jsonl"]),
    default="auto",
    show_default=True,
    help="What the file is; csv and jsonl may be gzipped.",
)
@click.option("--instrument", metavar="COLUMN", help="The column of the instrument.")
@click.option("--instrument-constant", metavar="NAME", help="Every row's instrument, where there is no column.")
@click.option("--event-time", metavar="COLUMN", help="The column of the event's time.")
@click.option("--event-id", metavar="COLUMN", help="The column of the event's id. Default: instrument@time.")
@click.option("--available-at", metavar="COLUMN", help="The column of the instant at which the event became known.")
@click.option("--revision", metavar="COLUMN", help="The column of the revision. Default: 0.")
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="NAME=COLUMN",
    help="A value column; may be repeated. Default: all left over.",
)
@click.option(
    "--delay-millis",
    type=int,
    default=0,
    show_default=True,
    help="Available so long after the event, where there is no column.",
)
@click.option("--zone", metavar="ZONE", help="The IANA zone of times that have none, such as UTC.")
@click.option(
    "--time-unit",
    type=click.Choice(["s", "ms", "us", "ns"]),
    help="The unit of times that are integers since the epoch.",
)
@click.option("--delimiter", default=",", show_default=True, help="Between the cells of a CSV.")
@click.option(
    "--missing",
    multiple=True,
    metavar="TEXT",
    help="A cell of a CSV that means null; may be repeated. Default: empty and null.",
)
@via_option
@json_option
def import_file(
    file: Path, name: str | None, form: str, values: tuple[str, ...], missing: tuple[str, ...], via: str, **options: Any
) -> None:
    """Import FILE (CSV, Parquet or JSON Lines; plain or gz) and print the address of the snapshot.

    A bad cell is named by row and column, and nothing is stored of which anybody knows the address.
    """
    from deployment.importing import imported
    from services.import_options import ImportOptions

    given = dict(options)
    if missing:
        given["missing"] = missing
    if values:
        given["values"] = dict(_pair(value) for value in values)
    asked = ImportOptions(name=name or file.name, format=form, **given)  # type: ignore[arg-type] # click chose it
    with blobs_of(via) as blobs:
        made = imported(file, asked, blobs, quiet=wants_json())
    answer(made, lambda: click.echo(made["address"]))


@snapshot.command(epilog="Example: finaz snapshot show sha256:…")
@click.argument("address")
@via_option
@json_option
def show(address: str, via: str) -> None:
    """Show the manifest of the snapshot at ADDRESS."""
    from domain.market.snapshot import manifest_body, parse_manifest

    with blobs_of(via) as blobs:
        body = manifest_body(parse_manifest(blobs.get(address)))

    def human() -> None:
        instruments, chunks = body["instruments"], body["chunks"]
        shown = ", ".join(instruments[:10]) + (f" and {len(instruments) - 10} more" if len(instruments) > 10 else "")
        rest = {name: value for name, value in body.items() if name not in ("instruments", "chunks", "columns")}
        columns = ", ".join(body["columns"])
        facts(
            [("address", address), *rest.items(), ("columns", columns), ("instruments", shown), ("chunks", len(chunks))]
        )

    answer({"address": address, **body}, human)


def _pair(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    if not (equals and name and column):
        raise click.UsageError(f"--value {text!r}: expected NAME=COLUMN", click.get_current_context())
    return name, column
