"""`finaz api`, `worker`, `projector`, `manager`: the processes, started by hand, by a service manager, or by `finaz up`."""

import socket
from typing import Any

import click

from deployment.cli.output import json_line, json_option


def _lifeline_option(command: Any) -> Any:
    return click.option("--lifeline", type=int, hidden=True, help="Inherited descriptor: readiness out, the end in.")(
        command
    )


@click.command(epilog="Example: finaz api --host 0.0.0.0 --port 8080")
@click.option("--host", help="Where to listen. Default: FINAZ_API_HOST.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="On which port; 0 takes a free one. Default: FINAZ_API_PORT."
)
@click.option("--listener", type=int, hidden=True, help="Inherited descriptor of a socket that listens already.")
@_lifeline_option
@json_option
def api(host: str | None, port: int | None, listener: int | None, lifeline: int | None) -> None:
    """Serve the HTTP API until SIGTERM. One JSON line with its address is printed when it listens."""
    from deployment.components import run_uvloop, serve_api
    from deployment.lifeline import Lifeline
    from deployment.logs import set_up_logs
    from deployment.settings import load_settings
    from deployment.supervision import listening_socket

    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format, "api")
    if listener is not None:
        taken = socket.socket(fileno=listener)
    else:
        taken = listening_socket(host or settings.api_host, settings.api_port if port is None else port)
        json_line({"host": taken.getsockname()[0], "port": taken.getsockname()[1]})
    with taken:
        run_uvloop(serve_api(settings, taken, Lifeline(lifeline)))


@click.command(epilog="Example: finaz worker --once --fixture")
@click.option("--once", is_flag=True, help="Execute one run and print its result as JSON (null: there was none).")
@click.option("--fixture", is_flag=True, help="With --once: first admit the fixture run, as any run is admitted.")
@click.option("--label", default="", help="A name for people; it decides nothing.")
@_lifeline_option
@json_option
def worker(once: bool, fixture: bool, label: str, lifeline: int | None) -> None:
    """Execute runs until SIGTERM, which finishes or hands back what is being executed."""
    from deployment.components import run_uvloop, work
    from deployment.lifeline import Lifeline
    from deployment.logs import set_up_logs
    from deployment.settings import load_settings

    if fixture and not once:
        raise click.UsageError("--fixture goes with --once", click.get_current_context())
    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format, label or "worker")
    if once:
        from deployment.once import work_once

        json_line(work_once(settings, fixture=fixture))
    else:
        run_uvloop(work(settings, label, Lifeline(lifeline)))


@click.command(epilog="Example: finaz stream-server --label streams-1")
@click.option("--label", default="", help="A name for people; it decides nothing.")
@_lifeline_option
@json_option
def stream_server(label: str, lifeline: int | None) -> None:
    """Work on stream runs, several at once, until SIGTERM, which commits them and gives them back.

    Takes what is queued and what was left by an owner that is gone. Runs that are worked on by `finaz stream-worker` are left
    alone.
    """
    from deployment.components import run_uvloop, serve_streams
    from deployment.lifeline import Lifeline
    from deployment.logs import set_up_logs
    from deployment.settings import load_settings

    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format, label or "stream-server")
    run_uvloop(serve_streams(settings, label, Lifeline(lifeline)))


@click.command(epilog="Example: finaz projector --only runs")
@click.option("--only", "names", multiple=True, help="Only the projection of this name; may be repeated.")
@_lifeline_option
@json_option
def projector(names: tuple[str, ...], lifeline: int | None) -> None:
    """Keep the read models up to date until SIGTERM. A second one stands by until the first is gone."""
    from deployment.components import project, run_uvloop
    from deployment.lifeline import Lifeline
    from deployment.logs import set_up_logs
    from deployment.settings import load_settings

    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format, "projector")
    run_uvloop(project(settings, names, Lifeline(lifeline)))


@click.command(epilog="Example: finaz jobs")
@_lifeline_option
@json_option
def jobs(lifeline: int | None) -> None:
    """Execute jobs, rebuilds and other long work of operators, until SIGTERM, which hands back what is at hand."""
    from deployment.components import run_jobs, run_uvloop
    from deployment.lifeline import Lifeline
    from deployment.logs import set_up_logs
    from deployment.settings import load_settings

    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format, "jobs")
    run_uvloop(run_jobs(settings, Lifeline(lifeline)))


@click.command(epilog="Example: finaz manager --only orphan_recovery")
@click.option("--only", "names", multiple=True, help="Only the process manager of this name; may be repeated.")
@_lifeline_option
@json_option
def manager(names: tuple[str, ...], lifeline: int | None) -> None:
    """Run the process managers until SIGTERM: orphan recovery, reconciler. A second one stands by until the first is gone."""
    from deployment.components import manage, run_uvloop
    from deployment.lifeline import Lifeline
    from deployment.logs import set_up_logs
    from deployment.settings import load_settings

    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format, "manager")
    run_uvloop(manage(settings, names, Lifeline(lifeline)))
