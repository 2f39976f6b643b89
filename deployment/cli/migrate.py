"""`finaz migrate`: bring the database to the schema of this version."""

import click

from deployment.cli.output import answer, json_option


@click.command(
    epilog="Example: finaz migrate --stage before; then start the new version; then finaz migrate --stage after"
)
@click.option(
    "--stage", type=click.Choice(["before", "after"]), help="Only what runs before, or after, the new version starts."
)
@click.option("--pending", "only_show", is_flag=True, help="Change nothing, show what is missing.")
@json_option
def migrate(stage: str | None, only_show: bool) -> None:
    """Bring the database to the schema of this version; may be run again at any time."""
    from deployment import migrate as migrations
    from deployment.settings import load_settings

    dsn = load_settings().required_postgres_dsn()
    if only_show:
        titles = migrations.pending(dsn)
        answer({"pending": titles}, lambda: click.echo("\n".join(titles) or "nothing is missing"))
        return
    applied = migrations.migrate(dsn, None if stage is None else "before" if stage == "before" else "after")
    answer({"applied": applied}, lambda: click.echo("\n".join(applied) or "nothing was missing"))
