"""Fault points: every effect has them, and the worker and admission come to the same end whatever happens at them."""

import ast
from pathlib import Path

import pytest

import services
from domain.errors import InfrastructureError
from domain.runs.aggregate import RunState
from services import faultpoints
from services.admission import Admissions
from services.batch_execution import FlowComputation
from services.faultpoints import POINTS, armed, point
from services.requests import parse_run_body
from services.runs import Runs
from tests.support.fixture_market import GOLDEN, body, store_snapshot
from tests.support.memory_log import MemoryLog
from tests.support.memory_queue import MemoryQueue
from tests.support.worker_rig import Rig

SERVICES = Path(services.__file__).parent
EFFECTS = {"append", "append_blocking", "put"}
NO_EFFECTS = {"_queue", "wanted", "news", "events"}
MINE = sorted(name for name in POINTS if name.split(".")[0] in ("append", "cas_write", "publish"))


def _effects_of(module: Path) -> list[str]:
    """Calls in a module that look like an append to a log or a write to a blob store."""
    found = []
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EFFECTS:
            target = ast.unparse(node.func.value)
            if target.split(".")[-1] in ("log", "_log", "blobs", "_blobs", "store"):
                found.append(f"{module.relative_to(SERVICES)}: {target}.{node.func.attr}")
    return found


def test_every_effect_passes_its_points() -> None:
    """No service appends or writes a blob but through `services.effects`, where each has a point before and after it.

    (`BlobWriter.put`, which the worker's attempts use, goes through there too; a stream run's `TickingBlobs` is a store itself,
    handed to those who write through there.)
    """
    modules = [m for m in SERVICES.rglob("*.py") if m.name != "effects.py" and "store" not in m.parts]
    found = [call for module in modules for call in _effects_of(module)]
    assert sorted(found) == ["batch_run.py: self._tools.blobs.put", "stream_lease.py: self._blobs.put"]


def test_points_come_in_pairs_and_say_what_is_true() -> None:
    """Before and after each effect; nothing happens at one that isn't armed."""
    effects = {name.rsplit(".", 1)[0] for name in POINTS}
    assert set(POINTS) == {f"{effect}.{side}" for effect in effects for side in ("before", "after")}
    assert all(len(text) > 20 for text in POINTS.values())
    for name in POINTS:
        point(name)


def test_a_point_is_armed_for_a_block_only() -> None:
    """Also when the block ends by an exception."""
    passed: list[str] = []

    def fail(name: str) -> None:
        passed.append(name)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), armed(fail):
        point("x")
    point("y")
    assert passed == ["x"]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", MINE)
async def test_an_error_at_any_point_leads_to_the_same_end(tmp_path: Path, name: str, times: int) -> None:
    """An effect that fails, or whose answer is lost, `times` times: the run is admitted once and ends with the golden, once."""
    log = MemoryLog()
    rig = Rig(log, MemoryQueue(log), tmp_path / "cas")
    admissions = Admissions(log, rig.blobs)
    wanted = parse_run_body(body(store_snapshot(rig.blobs)))
    left = times

    def fail(passed: str) -> None:
        nonlocal left
        if passed == name and left:
            left -= 1
            raise InfrastructureError(f"planted at {name}")

    run_id = ""
    with armed(fail):
        while not run_id:
            try:
                run_id = (await admissions.submit_run("ana", "key", wanted)).run_id
            except InfrastructureError:
                continue
        rig.computation = FlowComputation(rig.blobs, 10**6, 10**6)  # type: ignore[assignment]
        for _ in range(10):
            await rig.worker(f"worker-{_}").run_once()
            log.advance(60.0)
    view = await Runs(log).get(run_id, "ana")
    assert view.state is RunState.SUCCEEDED
    assert [result.values_hash for result in view.results] == [GOLDEN]
    topics = [recorded.event.topic for recorded in log.read_log(0, 1000)]
    assert topics.count("admission.key_claimed.v1") == topics.count("run.result_published.v1") == 1


def test_the_registry_names_its_points() -> None:
    """Each constant is a registered point."""
    constants = {
        value
        for key, value in vars(faultpoints).items()
        if key.endswith(("_BEFORE", "_AFTER")) and isinstance(value, str)
    }
    assert constants == set(POINTS)
