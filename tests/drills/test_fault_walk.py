"""Every registered fault point is walked by a real process that is killed, stopped past its lease, or given an error there; the
system converges to the same final state each time, and a process that wakes late writes nothing.
"""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from domain.identity import run_stream
from domain.runs.messages import ResultPublished
from projections.folding import fold_all
from projections.registry import PROJECTIONS
from services.faultpoints import POINTS
from services.runs import fold_run
from services.store.application import Log
from tests.support import whole_system
from tests.support.fixture_market import GOLDEN
from tests.support.store import opened
from tests.support.whole_system import NAMES, Fault, request_of

SECONDS_MAX = 90.0

WRITE_TOPICS = {
    "claim": "lease.granted.v1",
    "heartbeat": "lease.renewed.v1",
    "publish, complete and release": "run.result_published.v1",
    "fail": "run.failed.v1",
    "requeue": "run.requeued.v1",
    "open a source": "journal.source_opened.v1",
    "checkpoint": "checkpoint.committed.v1",
}
"""Every write of a worker, by an event that its append has."""

ELSEWHERE = {
    "copy_create": "tests/integration/services/test_rebuild_jobs.py",
    "copy_attach": "tests/integration/services/test_rebuild_jobs.py",
    "copy_compare": "tests/integration/services/test_rebuild_jobs.py",
    "copy_switch": "tests/integration/services/test_rebuild_jobs.py",
    "copy_drop": "tests/integration/services/test_rebuild_jobs.py",
    "staging_insert": "tests/integration/projections/test_staging.py",
}
"""Effects that batch runs do not have, and who walks their points."""

WALKED = sorted(point for point in POINTS if point.rpartition(".")[0] not in ELSEWHERE)

AT_ONCE = [WALKED[start::3] for start in range(3)]
"""Points at which one process is given an error each: so few that no run meets more of them than it has attempts."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.support.whole_system"])


@pytest.fixture
def start(database: str, tmp_path: Path) -> Iterator[Callable[..., BaseProcess]]:
    """Starts the whole system on the test's database and folder; all are killed at the end."""
    started: list[BaseProcess] = []

    def begin(*faults: Fault) -> BaseProcess:
        process = _processes.Process(target=whole_system.run, args=(database, str(tmp_path), *faults))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    """The log, to look at."""
    with opened(database) as log:
        yield log


def ended(process: BaseProcess) -> int | None:
    """The exit status; the test fails if it takes too long."""
    process.join(SECONDS_MAX)
    assert process.exitcode is not None, "the process did not end"
    return process.exitcode


def is_stopped(process: BaseProcess) -> bool:
    """Whether the process has stopped itself, as its state says."""
    assert process.pid is not None
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def final_state(log: Log) -> dict[str, Any]:
    """What everybody can see in the end, without what may differ: tokens, attempts, instants and owners."""
    seen: dict[str, Any] = {}
    for name in NAMES:
        run_id = request_of(name).run_id
        history = log.read_streams_blocking([run_stream(run_id)]).streams[run_stream(run_id)]
        run = fold_run(run_id, history)
        published = [recorded.event.result for recorded in history if isinstance(recorded.event, ResultPublished)]
        errors = [error.code for error in run.errors if error.code != "STORE_UNAVAILABLE"]
        seen[name] = (run.state.name, [(r.output, r.artifact, r.values_hash) for r in published], errors)
    return seen


def check_whole(log: Log) -> None:
    """Positions and versions are contiguous, tokens monotone, every read model equals its fold, and nobody has to be asked."""
    events = log.read_log(0, 100_000)
    assert [recorded.position for recorded in events] == list(range(1, len(events) + 1))
    versions: dict[str, int] = {}
    for recorded in events:
        assert recorded.version == versions.get(recorded.stream, 0) + 1
        versions[recorded.stream] = recorded.version
    for projection in PROJECTIONS.values():
        expected = fold_all(projection.model, events)
        served = projection.rows.all_rows(log.pool)
        assert served.keys() == expected.keys(), projection.name
    assert log.pool.rows("SELECT count(*) FROM finaz.discrepancies") == [(0,)]
    assert log.pool.rows("SELECT count(*) FROM finaz.manager_commands WHERE state = 'dead'") == [(0,)]


EXPECTED = {
    "plain": "SUCCEEDED",
    "long": "SUCCEEDED",
    "broken": "FAILED",
    "flaky": "SUCCEEDED",
    "cancelled": "CANCELLED",
    "stream": "SUCCEEDED",
}


def check_final(log: Log) -> None:
    """The one final state: each run ended as it must, with one result or none."""
    state = final_state(log)
    assert {name: seen[0] for name, seen in state.items()} == EXPECTED
    results = {name: seen[1] for name, seen in state.items()}
    assert results["plain"] == results["long"] == results["flaky"]
    assert [len(results[name]) for name in NAMES] == [1, 1, 0, 1, 0, 1]
    assert [values_hash for _, _, values_hash in results["stream"]] == [GOLDEN]
    assert state["broken"][2] == ["BLOB_MISSING"]
    check_whole(log)


def test_the_undisturbed_system_passes_every_point_and_settles(
    start: Callable[..., BaseProcess], log: Log, tmp_path: Path
) -> None:
    """The walk below walks all there are: each point, and each kind of write, is passed by this system."""
    assert ended(start()) == 0
    passes = json.loads((tmp_path / "passes.json").read_text())
    assert set(passes) >= {*WALKED, *WRITE_TOPICS.values()}
    check_final(log)


@pytest.mark.parametrize("point", WALKED)
def test_a_kill_at_any_point_leads_to_the_same_end(start: Callable[..., BaseProcess], log: Log, point: str) -> None:
    """Killed there, a successor goes on, and the end is the same."""
    assert ended(start(Fault(point, 1, "kill"))) == -signal.SIGKILL
    assert ended(start()) == 0
    check_final(log)


@pytest.mark.parametrize("points", AT_ONCE, ids=["a", "b", "c"])
def test_an_error_at_any_point_leads_to_the_same_end(
    start: Callable[..., BaseProcess], log: Log, points: list[str], tmp_path: Path
) -> None:
    """Given an error there, and others elsewhere, the process itself goes on, and the end is the same."""
    assert ended(start(*(Fault(point, 1, "error") for point in points))) == 0
    assert set(json.loads((tmp_path / "passes.json").read_text())) >= set(points)
    check_final(log)


@pytest.mark.parametrize("nth", [5, 8, 11])
@pytest.mark.parametrize("point", ["append.before", "append.after"])
def test_a_kill_at_later_appends_leads_to_the_same_end(
    start: Callable[..., BaseProcess], log: Log, point: str, nth: int
) -> None:
    """The first pass of a point is an admission; later ones are claims, ends, recoveries."""
    assert ended(start(Fault(point, nth, "kill"))) in (-signal.SIGKILL, 0)
    assert ended(start()) == 0
    check_final(log)


@pytest.mark.parametrize("topic", WRITE_TOPICS.values(), ids=WRITE_TOPICS.keys())
def test_whoever_wakes_late_at_any_write_writes_nothing(
    start: Callable[..., BaseProcess], log: Log, topic: str
) -> None:
    """Stopped just before the write until others have finished everything; woken, it adds no event and ends in peace."""
    zombie = start(Fault(topic, 1, "pause"))
    deadline = time.monotonic() + SECONDS_MAX
    while not is_stopped(zombie):
        assert time.monotonic() < deadline, "it never came to this write"
        time.sleep(0.02)
    assert ended(start()) == 0
    check_final(log)
    before = log.high_water_mark()
    assert zombie.pid is not None
    os.kill(zombie.pid, signal.SIGCONT)
    assert ended(zombie) == 0
    assert log.high_water_mark() == before
    check_final(log)
