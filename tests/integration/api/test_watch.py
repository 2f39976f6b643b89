"""Watching a run: every event once and in order, resumed where it was cut, ended with the run; nobody delays anybody."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from api import tail, watch
from deployment.embedded import EmbeddedPostgres
from domain.events import Event
from domain.identity import run_stream
from domain.runs.aggregate import FINISHED, RUN_TRANSITIONS
from domain.runs.messages import RequeueReason, RunRequeued, RunStarted, RunSucceeded
from services.ports import Append, NewEvent
from tests.support.api_calls import problem
from tests.support.api_rig import ApiRig, api_rig


class Watch:
    """An open watch, read message by message."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> dict[str, Any] | None:
        """The next message (comments left out), or None at the end."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line and fields:
                return {"id": int(fields.get("id", 0)), "event": fields["event"], "data": json.loads(fields["data"])}
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
        return None

    async def rest(self) -> list[str]:
        topics = []
        while (message := await self.next()) is not None:
            topics.append(message["event"])
        return topics


@asynccontextmanager
async def watching(api: ApiRig, run_id: str, after: int | None = None) -> AsyncIterator[Watch]:
    headers = {} if after is None else {"last-event-id": str(after)}
    async with asyncio.timeout(30), api.as_().stream("GET", f"/v1/runs/{run_id}/watch", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        yield Watch(answer)


async def happen(api: ApiRig, run_id: str, version: int, *events: Event) -> int:
    news = tuple(NewEvent(run_stream(run_id), version + n, event, uuid4()) for n, event in enumerate(events))
    return (await api.log.append(Append(events=news))).position


def life(run_id: str, attempts: int) -> list[Event]:
    """What happens to a run that is requeued several times and then succeeds."""
    events: list[Event] = []
    for attempt in range(1, attempts):
        events.append(RunStarted(run_id=run_id, owner="w", token=attempt, attempt=attempt))
        events.append(RunRequeued(run_id=run_id, token=attempt, reason=RequeueReason.HANDED_BACK, delay_seconds=0.0))
    events.append(RunStarted(run_id=run_id, owner="w", token=attempts, attempt=attempts))
    events.append(RunSucceeded(run_id=run_id, token=attempts))
    return events


def test_the_last_topics_are_those_of_the_transition_table() -> None:
    """A watch ends with just those events behind which the table has nothing."""
    assert {t.topic for (_, t), state in RUN_TRANSITIONS.rows.items() if state in FINISHED} == watch.LAST_TOPICS
    assert set(tail.WATCHED_TOPICS) == {t.topic for _, t in RUN_TRANSITIONS.rows}


async def test_a_watch_shows_what_was_what_comes_and_ends_with_the_run(api: ApiRig) -> None:
    """The past first, then each event as it happens, and the end after the last; data is as in the history."""
    run_id = (await api.submit())["run_id"]
    async with watching(api, run_id) as watch_:
        first = await watch_.next()
        assert first is not None
        assert first["event"] == "run.requested.v1"
        await happen(api, run_id, 2, RunStarted(run_id=run_id, owner="w", token=1, attempt=1))
        second = await watch_.next()
        assert second is not None
        assert (second["event"], second["data"]["event"]["token"]) == ("run.started.v1", 1)
        await happen(api, run_id, 3, RunSucceeded(run_id=run_id, token=1))
        assert await watch_.rest() == ["run.succeeded.v1"]
    history = (await api.as_().get(f"/v1/runs/{run_id}/events")).json()["items"]
    assert [first["data"], second["data"]] == history[:2]


async def test_a_watch_goes_on_behind_the_last_event_id(api: ApiRig) -> None:
    """Cut off anywhere, a client that comes back with its last id gets the rest: nothing twice, nothing missing."""
    run_id = (await api.submit())["run_id"]
    await happen(api, run_id, 2, *life(run_id, 2))
    async with watching(api, run_id) as whole:
        messages = []
        while (message := await whole.next()) is not None:
            messages.append(message)
    for cut, message in enumerate(messages[:-1]):
        async with watching(api, run_id, after=message["id"]) as resumed:
            assert await resumed.rest() == [later["event"] for later in messages[cut + 1 :]]
    last = await api.as_().get(f"/v1/runs/{run_id}/watch", headers={"last-event-id": str(messages[-1]["id"])})
    assert (last.status_code, last.content) == (204, b"")


async def test_a_watcher_that_falls_behind_still_sees_everything(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More events than its queue holds: it reads the stream again instead of losing any."""
    monkeypatch.setattr(tail, "WATCH_QUEUE_EVENTS_MAX", 2)
    run_id = (await api.submit())["run_id"]
    events = life(run_id, 30)
    async with watching(api, run_id) as watch_:
        await watch_.next()
        await happen(api, run_id, 2, *events)
        assert await watch_.rest() == [event.topic for event in events]


async def test_the_tail_reads_in_bounded_batches(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More events than one read brings: it reads on, and nothing is missing."""
    monkeypatch.setattr(tail, "TAIL_BATCH_EVENTS_MAX", 3)
    run_id = (await api.submit())["run_id"]
    events = life(run_id, 10)
    async with watching(api, run_id) as watch_:
        await watch_.next()
        await happen(api, run_id, 2, *events)
        assert await watch_.rest() == [event.topic for event in events]


async def test_many_watch_at_once_and_each_sees_its_own(api: ApiRig) -> None:
    """Watchers of several runs each get the events of theirs and no others."""
    runs = [(await api.submit())["run_id"] for _ in range(5)]

    async def one(run_id: str) -> list[str]:
        async with watching(api, run_id) as watch_:
            found = []
            while (message := await watch_.next()) is not None:
                found.append(message["data"]["event"]["run_id"])
            return found

    watches = [asyncio.create_task(one(run_id)) for run_id in runs for _ in range(4)]
    while api.parts.tail.watchers < len(watches):  # noqa: ASYNC110 -- the server opens them in its own time
        await asyncio.sleep(0.005)
    for run_id in runs:
        await happen(api, run_id, 2, *life(run_id, 1))
    found = await asyncio.gather(*watches)
    assert found == [[run_id] * 3 for run_id in runs for _ in range(4)]


async def test_watches_are_bounded_and_given_back(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the limit is refused 503; a watch whose client has left makes room again."""
    monkeypatch.setattr(tail, "WATCHERS_MAX", 1)
    run_id = (await api.submit())["run_id"]
    async with watching(api, run_id) as watch_:
        await watch_.next()
        refused = await api.as_("operator").get(f"/v1/runs/{run_id}/watch")
        assert (refused.status_code, problem(refused)["code"]) == (503, "OVERLOADED")
        assert refused.headers["retry-after"]
    while api.parts.tail.watchers:  # noqa: ASYNC110 -- the server notices in its own time
        await asyncio.sleep(0.005)
    async with watching(api, run_id) as again:
        assert await again.next()


async def test_silence_is_kept_alive(api: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KEEP_ALIVE_SECONDS", 0.01)
    run_id = (await api.submit())["run_id"]
    async with (
        asyncio.timeout(30),
        api.as_().stream("GET", f"/v1/runs/{run_id}/watch") as answer,
    ):
        comments = 0
        async for line in answer.aiter_lines():
            comments += line == ": keep-alive"
            if comments == 3:
                break


async def test_a_stopping_server_ends_its_watches(database: str, tmp_path: Path) -> None:
    """Watches don't hold up the end of the server: their clients are sent away and resume elsewhere."""
    async with api_rig(database, tmp_path) as api:
        run_id = (await api.submit())["run_id"]
        async with watching(api, run_id) as watch_:
            await watch_.next()
            api.parts.tail.close()
            assert await watch_.rest() == []


async def test_a_watch_outlives_its_database(
    mortal_postgres: EmbeddedPostgres, mortal_database: str, tmp_path: Path
) -> None:
    """PostgreSQL goes away and comes back under an open watch: the next event still arrives, once."""
    async with api_rig(mortal_database, tmp_path) as api:
        run_id = (await api.submit())["run_id"]
        async with watching(api, run_id) as watch_:
            await watch_.next()
            await asyncio.to_thread(mortal_postgres.restart, "immediate")
            await happen(api, run_id, 2, *life(run_id, 1))
            assert await watch_.rest() == ["run.started.v1", "run.succeeded.v1"]
