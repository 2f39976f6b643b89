"""`finaz stream-worker`: own one STREAM run, from its claim to its end, or stand by for it."""

from pathlib import Path
from typing import Any

import click

from deployment.cli.output import answer, facts, json_option


@click.command(
    epilog="Example: finaz stream-worker --topic arrivals --group g1 --flow flow.json --run-id run_… --emit out.json"
)
@click.option("--topic", required=True, help="The topic; it must be the run's.")
@click.option("--group", required=True, help="Under which name the readers appear at the broker; it decides nothing.")
@click.option(
    "--flow",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The flow as JSON; it must be the run's.",
)
@click.option("--run-id", required=True, help="The run, admitted before (`finaz run submit --mode STREAM`).")
@click.option("--standby", is_flag=True, help="Wait for a lease that another holds, instead of being refused.")
@click.option(
    "--once-n",
    type=click.IntRange(0),
    metavar="N",
    help="Stop once the run has journalled N records, resumes included.",
)
@click.option(
    "--checkpoint-every", type=click.IntRange(1), metavar="N", help="Commit at every N records. Default: 100000."
)
@click.option(
    "--checkpoint-seconds",
    type=click.FloatRange(0.01, 3600),
    default=1.0,
    show_default=True,
    help="Commit at least so often while records come in.",
)
@click.option("--pace", type=click.FloatRange(0.001), metavar="R", help="Take at most R records per second.")
@click.option(
    "--emit",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Export here what was committed, when the work has ended in order.",
)
@click.option("--label", default="", help="A name for people; it decides nothing.")
@json_option
def stream_worker(
    topic: str,
    group: str,
    flow: Path,
    run_id: str,
    standby: bool,
    once_n: int | None,
    checkpoint_every: int | None,
    checkpoint_seconds: float,
    pace: float | None,
    emit: Path | None,
    label: str,
) -> None:
    """Work on one stream run until it ends or SIGTERM.

    The lease comes before the first record. While another's lease is live: STREAM_LEASE_OCUPADO and status 1, or with --standby a
    wait. SIGTERM commits and gives the lease back; the next owner goes on from there.
    """
    from deployment.logs import set_up_logs
    from deployment.settings import load_settings
    from deployment.stream_once import work_stream
    from services.stream_parts import StreamSettings

    settings = load_settings()
    set_up_logs(settings.log_level, settings.log_format, label or "stream-worker")
    how = StreamSettings(
        label=label,
        lease_ttl_seconds=settings.lease_ttl_seconds,
        checkpoint_records=checkpoint_every or StreamSettings().checkpoint_records,
        checkpoint_seconds=checkpoint_seconds,
        standby=standby,
        total_records=once_n,
        pace=pace,
    )
    done: dict[str, Any] = work_stream(settings, how, run_id, topic, group, flow, emit)
    answer(done, lambda: facts((name.replace("_", " "), value) for name, value in done.items()))
