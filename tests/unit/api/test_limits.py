"""Limits that other tests don't reach: each is met, and what is beyond it waits or is refused."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api import artifacts, auth, results
from api.auth import Scope, add_token, entry_of, load_tokens
from domain.canonical import address
from domain.errors import SettingsError
from services.read_models import MEASURE_SECONDS_MIN, ReadModels


class Crowd:
    """Counts how many are inside at once; lets them go when as many as may be are there."""

    def __init__(self, full: int) -> None:
        self.most = 0
        self._inside = 0
        self._full = full
        self._changed = threading.Condition()

    def visit(self) -> None:
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._full, timeout=20)
            self._inside -= 1


def call(**arguments: Any) -> Any:
    return SimpleNamespace(
        path_arguments=arguments,
        arguments={"format": "json"},
        principal=SimpleNamespace(name="ana", operates=False),
        text_header=lambda *_: None,
    )


async def test_artifacts_in_memory_are_bounded() -> None:
    """However many are asked for, no more than the limit are read at once, and each is served in the end."""
    crowd = Crowd(artifacts.TRANSFERS_AT_ONCE_MAX)

    def get(name: str) -> bytes:
        crowd.visit()
        return name.encode()

    handlers = artifacts._Handlers(SimpleNamespace(blobs=SimpleNamespace(get=get)))  # type: ignore[arg-type]
    names = [address(b"%d" % number) for number in range(3 * artifacts.TRANSFERS_AT_ONCE_MAX)]
    answers = await asyncio.gather(*(handlers.get(call(address=name)) for name in names))
    assert [answer.body.decode() for answer in answers] == names
    assert crowd.most == artifacts.TRANSFERS_AT_ONCE_MAX


async def test_results_rendered_at_once_are_bounded() -> None:
    crowd = Crowd(results.RENDERINGS_AT_ONCE_MAX)

    def render(result: Any, form: str) -> bytes:
        crowd.visit()
        return b"{}"

    async def get(*_: Any) -> Any:
        return SimpleNamespace(results=(SimpleNamespace(output="ema", artifact="a"),))

    parts = SimpleNamespace(runs=SimpleNamespace(get=get), results=SimpleNamespace(render=render))
    handlers = results._Handlers(parts)  # type: ignore[arg-type]
    asked = [handlers.get_result(call(run_id="r", output="ema")) for _ in range(3 * results.RENDERINGS_AT_ONCE_MAX)]
    assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
    assert crowd.most == results.RENDERINGS_AT_ONCE_MAX


def test_a_tokens_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with more tokens than the limit is refused as a whole."""
    monkeypatch.setattr(auth, "TOKENS_MAX", 2)
    path = tmp_path / "tokens.json"
    for number in range(3):
        add_token(path, entry_of(f"token-{number:016}", "ana", [Scope.RUNS_READ]))
    with pytest.raises(SettingsError, match="too long"):
        load_tokens(path)


async def test_counting_everything_happens_at_most_so_often() -> None:
    """However many ask at once and one after the other, the database counts once per interval."""
    now = 100.0
    counted = []

    class Query:
        def rows(self, statement: str, arguments: Any = ()) -> list[tuple[Any, ...]]:
            counted.append(statement)
            return []

    projections = SimpleNamespace(statuses=list)
    models = ReadModels(projections, Query(), clock_seconds=lambda: now)  # type: ignore[arg-type]
    await asyncio.gather(*(models.measures() for _ in range(20)))
    once = len(counted)
    assert once
    now += MEASURE_SECONDS_MIN / 2
    await models.measures()
    assert len(counted) == once
    now += MEASURE_SECONDS_MIN
    await models.measures()
    assert len(counted) == 2 * once
