"""`finaz settings`: every setting, its value in this environment, and what it means."""

import click

from deployment.cli.output import answer, json_option, table


@click.command(epilog="Example: FINAZ_API_PORT=8080 finaz settings")
@json_option
def settings() -> None:
    """Show every setting, its value and what it means. Secrets are not shown. A wrong one is named, with status 1."""
    from deployment.settings import described_settings

    found = described_settings()
    answer(
        {"items": found},
        lambda: table(("variable", "value", "meaning"), [(s["variable"], s["value"], s["meaning"]) for s in found]),
    )
