"""`finaz health`: whether the API is ready for work; exit status 0 only if it is."""

import click

from deployment.cli.output import answer, facts, json_option
from deployment.problems import NotReadyError


@click.command(epilog="Example: finaz health --json")
@json_option
def health() -> None:
    """Ask the API whether it is ready for work."""
    from deployment.cli.connection import api

    with api() as client:
        ready, parts = client.readiness()
    answer(parts, lambda: facts(parts.items()))
    if not ready:
        raise NotReadyError("the API is not ready for work", at=client.url, expected="every part ready")
