"""Waiting for runs to end, through the API: by watching their events, not by asking again and again."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from deployment.api_client import ApiClient, Message
from deployment.progress import Progress

ENDS: Final = frozenset({"run.succeeded.v1", "run.failed.v1", "run.cancelled.v1"})
"""Topics of the event that is the last of every run."""


def watched(client: ApiClient, run_id: str) -> Iterator[Message]:
    """The run's events as they come, the last one included, and no further."""
    for message in client.watch(run_id):
        yield message
        if message.data.get("topic") in ENDS:
            return


def finished_runs(client: ApiClient, run_ids: Sequence[str], progress: Progress) -> Iterator[dict[str, Any]]:
    """Each run as it ended, in the order given, each as soon as it and those before it have ended."""
    with progress:
        for run_id in run_ids:
            for _ in watched(client, run_id):
                pass
            progress.advance()
            yield client.run(run_id)
