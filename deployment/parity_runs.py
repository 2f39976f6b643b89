"""What `finaz parity` does: one flow in several modes, or runs that are there, and how their results compare.

What must stay true: a comparison that could not be made is an error, never "equal"; a topic that was made for it is removed again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import msgspec

from deployment.api_client import ApiClient
from deployment.problems import NotHeldError
from deployment.waiting import watched
from domain.instants import parse_instant, to_micros
from domain.market.faults import FaultSchedule, schedule_body
from services.broker import Broker
from services.ports import BlobStore
from services.replay import made_log
from services.replay_publishing import ReplayRequest, publish

BATCH: Final = "BATCH"
REPLAY: Final = "REPLAY"
STREAM: Final = "STREAM"
MODES: Final = (BATCH, REPLAY, STREAM)

TOPIC_PREFIX: Final = "finaz-parity-"

Say = Callable[[str], None]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One flow over one snapshot under one schedule, in these modes. The first one is the reference.

    `flow` is a document or an address; `deadline_seconds` is each run's.
    """

    flow: Any
    snapshot: str
    as_of: str
    schedule: FaultSchedule
    modes: tuple[str, ...]
    deadline_seconds: int


def compared_modes(
    client: ApiClient, question: Question, blobs: Callable[[], BlobStore], broker: Broker | None, say: Say
) -> dict[str, Any]:
    """Execute the flow in each mode and compare with the first. Raises `NotHeldError` if a run ends otherwise than SUCCEEDED."""
    with _topic(question, blobs, broker, say) as topic:
        runs = [_executed(client, question, mode, topic, say) for mode in question.modes]
        compared = compared_runs(client, runs)
        verdicts = [client.verdict(run) for run, mode in zip(runs, question.modes, strict=True) if mode == STREAM]
    return compared | {"verdict": verdicts[0] if verdicts else None}


def compared_runs(client: ApiClient, run_ids: Sequence[str]) -> dict[str, Any]:
    """The first run against each of the others. Raises `ProblemError` for what cannot be compared."""
    reports = [client.parity(run_ids[0], other) for other in run_ids[1:]]
    return {
        "equal": all(report["equal"] for report in reports),
        "runs": [reports[0]["reference"], *(report["other"] for report in reports)],
        "comparisons": [{name: value for name, value in report.items() if name != "reference"} for report in reports],
    }


@contextmanager
def _topic(question: Question, blobs: Callable[[], BlobStore], broker: Broker | None, say: Say) -> Iterator[str | None]:
    """A topic of its own that has the arrival log, if there is a STREAM run; removed at the end."""
    if STREAM not in question.modes or broker is None:
        yield None
        return
    as_of = to_micros(parse_instant(question.as_of))
    log = made_log(blobs(), question.snapshot, as_of, question.schedule)
    topic = f"{TOPIC_PREFIX}{uuid4().hex}"
    published = publish(broker, log, ReplayRequest(topic=topic))
    say(f"published {published.sent} records to {topic}")
    try:
        yield topic
    finally:
        broker.topics().delete(topic)


def _executed(client: ApiClient, question: Question, mode: str, topic: str | None, say: Say) -> str:
    """Submit the run of one mode and wait for its end; its id."""
    body: dict[str, Any] = {
        "mode": mode,
        "flow": question.flow,
        "snapshot": question.snapshot,
        "as_of": question.as_of,
        "tags": ["parity"],
        "deadline_seconds": question.deadline_seconds,
    }
    if mode == REPLAY:
        body["schedule"] = schedule_body(question.schedule)
    if mode == STREAM:
        body["topic"] = topic
    run_id = str(client.submit_run(body, uuid4().hex)["run_id"])
    say(f"{mode}: {run_id}")
    for _ in watched(client, run_id):
        pass
    run = client.run(run_id)
    if run["state"] != "SUCCEEDED":
        last = run["errors"][-1] if run["errors"] else {"code": f"RUN_{run['state']}", "message": "it was cancelled"}
        raise NotHeldError(
            last["code"], f"the {mode} run ended {run['state']}: {last['message']}", at=run_id, expected="SUCCEEDED"
        )
    return run_id
