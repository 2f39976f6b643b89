"""Staged values over HTTP: pages, downloads, own runs only, reading one's own write, and what is said where nothing is staged."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.staging import DOWNLOADS_AT_ONCE_MAX
from domain.errors import CursorInvalidError
from domain.instants import from_micros, parse_instant, to_micros
from domain.market.text_columns import EARLIEST, LATEST
from projections.staging.clickhouse import FeatureValues, Place
from projections.staging.postgres import StagedAttempts
from services import staging
from tests.support.api_calls import problem
from tests.support.api_rig import ApiRig, api_rig
from tests.support.staging_rig import Market, Row, batch_of

COLUMNS = ["event_time", "event_id", "run_id", "output", "instrument", "value"]


class Desk:
    """The API, and a market whose publications are staged on demand."""

    def __init__(self, api: ApiRig, market: Market) -> None:
        self.api = api
        self.market = market

    async def staged(self, number: int, rows: int, principal: str = "ana", **batch: Any) -> str:
        """A run of the principal that published, and is staged and listed."""
        run_id = await asyncio.to_thread(self.market.publish, number, batch_of(rows, **batch), principal)
        await asyncio.to_thread(self.market.catch_up)
        await self.api.project("runs")
        return run_id

    async def rows(self, who: str = "ana", limit: int = 7, **asked: Any) -> list[Row]:
        """All rows of a query, page by page."""
        rows: list[Row] = []
        cursor: dict[str, str] = {}
        while True:
            answer = await self.api.as_(who).get("/v1/staging/values", params={**asked, **cursor, "limit": limit})
            assert answer.status_code == 200, answer.text
            page = answer.json()
            assert len(page["items"]) <= limit
            rows += [row_of(item) for item in page["items"]]
            if page["next_cursor"] is None:
                return rows
            cursor = {"cursor": page["next_cursor"]}


def refused(answer: httpx.Response, status: int, code: str) -> None:
    """The answer is this problem document."""
    assert (answer.status_code, problem(answer)["code"]) == (status, code)


def row_of(item: dict[str, Any]) -> Row:
    """A row as the rig has it."""
    of = (item["event_id"], item["run_id"], item["output"], item["instrument"])
    return (to_micros(parse_instant(item["event_time"])), *of, item["value"])


@pytest.fixture
async def desk(database: str, clickhouse: str, tmp_path: Path) -> AsyncIterator[Desk]:
    """An API that reads staged values, and a market on its database."""
    async with api_rig(database, tmp_path, clickhouse=clickhouse) as api:
        values = FeatureValues(clickhouse)
        yield Desk(api, Market(database, api.log, values))  # type: ignore[arg-type]
        values.close()


async def test_pages_hold_what_was_published(desk: Desk) -> None:
    """By run, by run and output, by instrument over runs, by time: every row once, in clock order, whatever the page's length."""
    one = await desk.staged(1, 11, outputs=("ema", "sma"))
    two = await desk.staged(2, 5)
    await desk.staged(3, 4, instrument="fx-1")
    published = await asyncio.to_thread(desk.market.published)
    for limit in (1, 3, 1000):
        assert await desk.rows(limit=limit, run_id=one) == [row for row in published if row[2] == one]
    assert await desk.rows(run_id=one, output="sma") == [row for row in published if row[2:4] == (one, "sma")]
    assert await desk.rows(instrument="fx-0") == [row for row in published if row[2] in (one, two)]
    assert await desk.rows(instrument="nothing") == []
    first, before = -1_000_001, 1_000_001
    bounds: dict[str, Any] = {"from": from_micros(first).isoformat(), "to": from_micros(before).isoformat()}
    found = await desk.rows(run_id=two, **bounds)
    assert found == [row for row in published if row[2] == two and first <= row[0] < before]
    assert 0 < len(found) < 5


async def test_downloads_hold_the_same_rows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow and CSV, read by readers that aren't ours, several pages long; texts with quotes, nulls, instants before 1970."""
    monkeypatch.setattr(staging, "DOWNLOAD_ROWS", 4)
    for rows, number in ((0, 1), (8, 2), (11, 3)):
        run_id = await desk.staged(number, rows, outputs=("ema", 's,m"a'))
        expected = await desk.rows(run_id=run_id)
        arrow = await desk.api.as_().get("/v1/staging/values", params={"run_id": run_id, "format": "arrow"})
        assert arrow.headers["content-type"] == "application/vnd.apache.arrow.stream"
        table = pa.ipc.open_stream(arrow.content).read_all()
        assert table.column_names == COLUMNS
        times = table.column("event_time").cast(pa.int64()).to_pylist()
        others = [table.column(name).to_pylist() for name in COLUMNS[1:]]
        assert list(zip(times, *others, strict=True)) == expected
        text = (await desk.api.as_().get("/v1/staging/values", params={"run_id": run_id, "format": "csv"})).text
        read = list(csv.DictReader(io.StringIO(text, newline="")))
        values = [{**row, "value": float(row["value"]) if row["value"] else None} for row in read]
        assert [row_of(row) for row in values] == expected
        assert len(expected) == 2 * rows


async def test_a_principal_sees_its_own_runs_only(desk: Desk) -> None:
    """Another's run is not found, another's rows are in no page; who operates sees all."""
    mine, others = await desk.staged(1, 3), await desk.staged(2, 4, "bob")
    assert {row[2] for row in await desk.rows("ana", instrument="fx-0")} == {mine}
    assert {row[2] for row in await desk.rows("operator", instrument="fx-0")} == {mine, others}
    refused(await desk.api.as_("ana").get("/v1/staging/values", params={"run_id": others}), 404, "RUN_NOT_FOUND")
    refused(await desk.api.as_("writer").get("/v1/staging/values", params={"run_id": mine}), 403, "FORBIDDEN")
    refused(await desk.api.as_("ana").get("/v1/staging/status"), 403, "FORBIDDEN")


async def test_bad_queries_are_refused_by_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No subject, a foreign or damaged cursor, too many runs, an unknown position, a download with a cursor or one too many."""
    run_id = await desk.staged(1, 5)
    get = desk.api.as_().get
    cursor = (await get("/v1/staging/values", params={"run_id": run_id, "limit": 2})).json()["next_cursor"]
    path = "/v1/staging/values"
    refused(await get(path), 400, "INPUT_INVALID")
    refused(await get(path, params={"instrument": "fx-0", "cursor": cursor}), 409, "CURSOR_INVALID")
    refused(await get(path, params={"run_id": run_id, "cursor": cursor[:-2]}), 409, "CURSOR_INVALID")
    refused(await get(path, params={"run_id": run_id, "position": 10**6}), 404, "NOT_FOUND")
    refused(await get(path, params={"run_id": run_id, "format": "csv", "cursor": cursor}), 400, "INPUT_INVALID")
    refused(await get(path, params={"run_id": run_id, "format": "xml"}), 400, "INPUT_INVALID")
    monkeypatch.setattr("api.staging.DOWNLOADS_AT_ONCE_MAX", 0)
    refused(await get(path, params={"run_id": run_id, "format": "csv"}), 503, "OVERLOADED")
    monkeypatch.setattr("api.staging.DOWNLOADS_AT_ONCE_MAX", DOWNLOADS_AT_ONCE_MAX)
    monkeypatch.setattr(staging, "OUTPUTS_MAX", 0)
    refused(await get(path, params={"run_id": run_id}), 400, "INPUT_INVALID")


async def test_a_reader_waits_for_its_own_write(desk: Desk) -> None:
    """With `position` the answer has seen that position, or is a timeout; without, it shows what is there and says how far."""
    await desk.staged(1, 3)
    run_id = await asyncio.to_thread(desk.market.publish, 2, batch_of(4))
    position = await asyncio.to_thread(desk.api.log.high_water_mark)
    asked: dict[str, Any] = {"run_id": run_id, "position": position}
    late = await desk.api.as_().get("/v1/staging/values", params={**asked, "timeout_seconds": 0})
    refused(late, 409, "WAIT_TIMEOUT")
    waiting = asyncio.create_task(desk.rows(**asked, timeout_seconds=30))
    await asyncio.to_thread(desk.market.catch_up)
    assert len(await waiting) == 4


async def test_an_answer_is_never_silently_short(desk: Desk) -> None:
    """Rows that ClickHouse has lost are a typed error, for a page and for a download, until they are staged again."""
    run_id = await desk.staged(1, 5)
    desk.market.values.delete([one.attempt for one in desk.market.attempts.visible(10)])
    for form in ("json", "csv"):
        lost = await desk.api.as_().get("/v1/staging/values", params={"run_id": run_id, "format": form})
        refused(lost, 503, "STAGING_INCOMPLETE")


async def test_pages_go_on_while_attempts_are_replaced(desk: Desk) -> None:
    """A repair between two pages, and one while a page is read: the pages together are still the rows, each once."""
    run_id = await desk.staged(1, 9)
    expected = await desk.rows(run_id=run_id)
    market = desk.market
    reading, page = desk.api.parts.staging, FeatureValues.page
    assert reading is not None
    replaced = 0

    def replacing(values: FeatureValues, *args: Any, **named: Any) -> Any:
        nonlocal replaced
        if replaced < 3:
            replaced += 1
            market.restage_all()
        return page(values, *args, **named)

    values = reading._values
    assert values is not None
    values.page = lambda *args, **named: replacing(values, *args, **named)  # type: ignore[method-assign]
    assert await desk.rows(run_id=run_id, limit=4) == expected
    assert replaced == 3


async def test_reading_gives_up_where_attempts_are_replaced_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `READ_TRIES_MAX` tries the answer is that it may be asked again."""
    run_id = await desk.staged(1, 3)
    monkeypatch.setattr(StagedAttempts, "are_visible", lambda *_: False)
    refused(await desk.api.as_().get("/v1/staging/values", params={"run_id": run_id}), 503, "OVERLOADED")


@given(st.integers(EARLIEST, LATEST), st.text(), st.text(), st.text(), st.integers(0, 200))
def test_a_cursor_gives_back_its_place_or_nothing(time: int, event_id: str, run_id: str, output: str, at: int) -> None:
    """For its own query; with a character changed, or for another query, it is refused."""
    query, place = staging.ValuesQuery(instrument="a"), Place(time, event_id, run_id, output)
    cursor = staging.cursor_of(place, query)
    assert staging.place_of(cursor, query) == place
    with pytest.raises(CursorInvalidError):
        staging.place_of(cursor, staging.ValuesQuery(instrument="b"))
    changed = cursor[: at % len(cursor)] + "!" + cursor[at % len(cursor) + 1 :]
    with pytest.raises(CursorInvalidError):
        staging.place_of(changed, query)


async def test_the_status_says_who_stages(desk: Desk) -> None:
    """Engine, host, position, and how many outputs and rows readers see."""
    await desk.staged(1, 5, outputs=("ema", "sma"))
    status = (await desk.api.as_("operator").get("/v1/staging/status")).json()
    assert (status["engine"], status["hosted_by"], status["outputs"], status["rows"]) == ("embedded", "api", 2, 10)
    assert (status["health"], status["lag_events"]) == ("caught_up", 0)
    listed = (await desk.api.as_("operator").get("/v1/projections")).json()["items"]
    assert "staging" in {one["name"] for one in listed}


async def test_without_clickhouse_it_is_off(api: ApiRig) -> None:
    """A typed error that names the setting; everything else goes on."""
    for path in ("/v1/staging/values?instrument=a", "/v1/staging/status"):
        refused(await api.as_("operator").get(path), 409, "STAGING_OFF")
