"""`finaz up`: everything on this machine, until Ctrl-C."""

import asyncio
from pathlib import Path
from shlex import quote
from typing import Any, Final

import click

from deployment.cli.output import json_line, json_option, note, wants_json

WORKERS_MAX: Final = 64
"""Worker processes of one machine."""


@click.command(epilog="Example: finaz up --folder ./finaz-data --workers 2")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data here. Default: FINAZ_DATA_DIR, else temporary.",
)
@click.option("--host", help="Where the API listens. Default: FINAZ_API_HOST.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="On which port; 0 takes a free one. Default: FINAZ_API_PORT."
)
@click.option("--workers", type=click.IntRange(1, WORKERS_MAX), default=1, show_default=True, help="Worker processes.")
@click.option("--no-streams", is_flag=True, help="Leave stream runs to a `finaz stream-worker` that you start.")
@json_option
def up(folder: Path | None, host: str | None, port: int | None, workers: int, no_streams: bool) -> None:
    """Start everything on this machine: database, broker, API, workers, projector.

    Without FINAZ_POSTGRES_DSN an embedded PostgreSQL is started, without FINAZ_KAFKA_BOOTSTRAP an embedded broker; without
    FINAZ_CLICKHOUSE_DSN the API stages published features in an embedded ClickHouse. When all is ready it prints where the
    API listens, a development token, and the settings by which other commands find all of it. A process that dies is started
    again. Ctrl-C or SIGTERM ends everything, SIGKILL too.
    """
    from deployment.logs import set_up_logs
    from deployment.settings import child_environment, load_settings
    from deployment.up import Plan
    from domain.errors import SettingsError

    settings = load_settings()
    folder = folder or settings.data_dir
    if settings.postgres_dsn is not None and folder is None:
        raise SettingsError(
            "the database would be kept and its blobs would not", at="FINAZ_DATA_DIR", expected="a folder, or --folder"
        )
    set_up_logs(settings.log_level, settings.log_format, "up")
    plan = Plan(
        environment=child_environment(),
        folder=folder,
        postgres_dsn=settings.postgres_dsn,
        kafka_bootstrap=settings.kafka_bootstrap,
        tokens_file=settings.tokens_file,
        host=host or settings.api_host,
        port=settings.api_port if port is None else port,
        workers=workers,
        streams=not no_streams,
        worker_grace_seconds=settings.worker_grace_seconds,
        stage=True,
    )
    asyncio.run(_stay_up(plan))


async def _stay_up(plan: Any) -> None:
    from deployment.lifeline import Lifeline
    from deployment.up import machine

    async with Lifeline() as line, machine(plan, _tell, line.stop) as here:
        assert here.failed is not None
        if not line.stop.is_set():
            _announce(here)
        stopped = asyncio.create_task(line.stop.wait())
        done, _ = await asyncio.wait({stopped, here.failed}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if here.failed in done:
            here.failed.result()
        note("stopping")
    note("stopped")


def _announce(here: Any) -> None:
    if wants_json():
        json_line(
            {
                "url": here.url,
                "token": here.token,
                "pids": here.pids,
                "folder": str(here.folder),
                "dsn": here.dsn,
                "bootstrap": here.bootstrap,
            }
        )
        return
    click.echo(f"The API listens at {here.url}\n")
    click.echo(f"  export FINAZ_API_URL={here.url}")
    click.echo(f"  export FINAZ_TOKEN={here.token}\n")
    click.echo("For commands that work on the database, the broker or the blobs themselves, also:\n")
    click.echo(f"  export FINAZ_POSTGRES_DSN={quote(here.dsn)}")
    if here.bootstrap:
        click.echo(f"  export FINAZ_KAFKA_BOOTSTRAP={here.bootstrap}")
    click.echo(f"  export FINAZ_DATA_DIR={quote(str(here.folder))}\n")
    for name, pid in here.pids.items():
        click.echo(f"  {name:<12} process {pid}")
    click.echo("\nCtrl-C ends everything.")


def _tell(what: str, **attributes: Any) -> None:
    """What the supervisor does, as a line of the log; a death is a warning."""
    import structlog

    log = structlog.get_logger("finaz.up")
    (log.warning if what.endswith(("_died", "_killed", "_not_restarted")) else log.info)(what, **attributes)
