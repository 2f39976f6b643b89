"""The command line, `finaz`.

What must stay true: human tables by default, `--json` for machines, exit status 0 only on success; an error is one sentence that
names its code, its place and what was expected. Commands are imported when they are used, so that the help answers at once.
"""

import contextlib
import os
import sys
from typing import Any, Final

import click

from deployment.cli.lazy import LazyGroup, Place

_HERE: Final = "deployment.cli."

COMMANDS: Final = {
    "up": Place(_HERE + "up:up", "Start everything on this machine: database, broker, API, workers, projector."),
    "demo": Place(_HERE + "demo:demo", "Show the whole way, from real prices to published results."),
    "health": Place(_HERE + "health:health", "Ask the API whether it is ready for work."),
    "run": Place(_HERE + "runs:run", "Submit runs, watch them, fetch their results."),
    "snapshot": Place(_HERE + "snapshots:snapshot", "Import market data, look at what was imported."),
    "replay": Place(
        _HERE + "replay:replay", "Make the arrival log of a snapshot under a fault schedule, and publish it."
    ),
    "parity": Place(_HERE + "parity:parity", "Compare results to the bit: of runs, or of one flow in several modes."),
    "show": Place(_HERE + "shop:show", "Put shows on sale, see what can be had."),
    "purchase": Place(_HERE + "shop:purchase", "Buy seats, see how it goes, settle what the gateway left open."),
    "artifact": Place(_HERE + "artifacts:artifact", "Fetch what is stored under a content address."),
    "staging": Place(_HERE + "staging:staging", "Read published features by run, instrument and time."),
    "log": Place(
        _HERE + "log:log", "Look at the log: streams, events, states, causes; search, follow, export, import."
    ),
    "audit": Place(
        _HERE + "audit:audit", "Check the log, the read models and the blobs against the events and their hashes."
    ),
    "seal": Place(_HERE + "audit:seal", "Seal the log's hash chain outside the database; make the key, verify seals."),
    "projection": Place(
        _HERE + "projections:projection", "See how far the read models are; pause, resume, stop, skip, rebuild one."
    ),
    "job": Place(_HERE + "jobs:job", "See rebuilds and other long work of operators; confirm, cancel."),
    "alert": Place(_HERE + "alerts:alert", "See what asks for an operator, say that it was dealt with."),
    "dead-letter": Place(
        _HERE + "alerts:dead_letter", "See what process managers could not do; try it again, or don't."
    ),
    "token": Place(_HERE + "tokens:token", "Make bearer tokens for the API."),
    "settings": Place(_HERE + "settings:settings", "Show every setting, its value and what it means."),
    "migrate": Place(_HERE + "migrate:migrate", "Bring the database to the schema of this version."),
    "api": Place(_HERE + "components:api", "Serve the HTTP API."),
    "worker": Place(_HERE + "components:worker", "Execute runs."),
    "stream": Place(
        _HERE + "streams:stream",
        "See how a stream run stands, what it committed, omitted, found late; have records retried.",
    ),
    "stream-server": Place(_HERE + "components:stream_server", "Work on stream runs, several at once, until SIGTERM."),
    "stream-worker": Place(_HERE + "stream_worker:stream_worker", "Work on one stream run until it ends or SIGTERM."),
    "projector": Place(_HERE + "components:projector", "Keep the read models up to date."),
    "jobs": Place(_HERE + "components:jobs", "Execute jobs, rebuilds and other long work of operators, until SIGTERM."),
    "manager": Place(_HERE + "components:manager", "Run the process managers."),
    "sandbox-gateway": Place(_HERE + "shop:sandbox_gateway", "Serve a payment gateway that can be told to misbehave."),
    "drill": Place(_HERE + "drill:drill", "Kill real processes on purpose, and judge by the log."),
    "bench": Place(_HERE + "bench:bench", "Measure, side by side with comparable systems."),
}


class Root(LazyGroup):
    """The outermost group: whatever ends a command, it ends it in one way."""

    def main(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        """Run a command and end the process; every error becomes a sentence, or with `--json` a problem document."""
        given = sys.argv[1:] if args is None else list(args)
        from deployment.cli.output import fail

        try:
            options["standalone_mode"] = False
            status = super().main(given, *rest, **options)
        except (click.exceptions.Abort, KeyboardInterrupt):
            sys.exit(130)
        except BrokenPipeError:
            _discard_output()
            sys.exit(1)
        except Exception as error:
            fail(error, as_json="--json" in given)
        sys.exit(status if isinstance(status, int) else 0)


@click.group(
    name="finaz",
    cls=Root,
    places=COMMANDS,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
@click.version_option(package_name="finaz-runtime", prog_name="finaz")
def main() -> None:
    """The runtime of a market-data engine.

    Commands about runs talk to the API: FINAZ_API_URL says where it is, FINAZ_TOKEN who you are. `finaz up` starts everything on
    this machine and prints both.
    """


def _discard_output() -> None:
    """The reader of our output has gone: send the rest nowhere, so that the interpreter does not complain at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
