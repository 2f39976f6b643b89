"""`finaz artifact`: what is stored under a content address."""

import click

from deployment.cli.output import json_option


@click.group()
def artifact() -> None:
    """Fetch what is stored under a content address."""


@artifact.command(epilog="Example: finaz artifact get sha256:… --output batch.json")
@click.argument("address")
@click.option(
    "--output", "file", type=click.Path(dir_okay=False), help="Write to this file instead of standard output."
)
@json_option
def get(address: str, file: str | None) -> None:
    """Fetch the bytes stored under ADDRESS; they are hashed again before they are handed out."""
    from deployment.cli.connection import api
    from deployment.cli.documents import write_out
    from domain.canonical import address as address_of_bytes
    from domain.errors import BlobCorruptError

    with api() as client:
        data = client.artifact(address)
    if address_of_bytes(data) != address:
        raise BlobCorruptError("what came does not hash to its address", at=address, expected=address)
    write_out(data, file, binary=True)
