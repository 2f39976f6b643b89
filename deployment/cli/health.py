"""`finaz health`: whether the API is ready for work; exit status 0 only if it is."""

from typing import Any

import click

from deployment.cli.output import answer, facts, json_option, table
from deployment.problems import NotReadyError


@click.command(epilog="Example: finaz health --json")
@json_option
def health() -> None:
    """Ask the API whether it is ready for work."""
    from deployment.cli.connection import api

    with api() as client:
        ready, parts = client.readiness()
    answer(parts, lambda: _show(parts))
    if not ready:
        missing = (f"{name} ({check['detail']})" for name, check in parts.get("checks", {}).items() if not check["ok"])
        why = ", ".join(missing) or "it does not say why"
        raise NotReadyError(f"the API is not ready for work: {why}", at=client.url, expected="every part ready")


def _show(parts: dict[str, Any]) -> None:
    facts((name, value) for name, value in parts.items() if name != "checks")
    checks = parts.get("checks", {})
    table(("part", "ok", "detail"), [(name, check["ok"], check["detail"]) for name, check in checks.items()])
