"""Rebuilding staging: another generation of rows in ClickHouse beside the served one, and a switch in PostgreSQL.

As `projections.rebuilding.postgres`, with these differences: a copy is a generation of attempts, so nothing is created or attached;
rows of an attempt never change, so two copies are compared as of the position that both have passed, and nobody is held up; the
switch holds the served copy only for as long as PostgreSQL takes, and is tried again where the copy beside has fallen behind.

What must stay true: readers see attempts of one generation; no lock is held while ClickHouse or CAS is asked. A crash leaves a
generation that nobody is served from, with which the same job goes on and which any other drops.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import isfinite
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from domain.errors import OverloadedError, StaleFenceError, StoreUnavailableError
from domain.instants import format_micros
from projections.position import Copy, CopyRole
from projections.rebuilding.postgres import CopyRebuild, check_fence
from projections.rebuilding.rebuildable import (
    COPY_COMPARE_AFTER,
    COPY_COMPARE_BEFORE,
    COPY_SWITCH_AFTER,
    COPY_SWITCH_BEFORE,
    SAMPLES_MAX,
    Builder,
    Difference,
    DifferenceSample,
    Goal,
    Pulse,
    Rebuilt,
)
from projections.runner import Point, nowhere
from projections.staging.attempts import Attempt
from projections.staging.clickhouse import START, Digest, FeatureValues, StagedColumns
from projections.staging.delivery import Stager
from projections.staging.errors import StagingUnavailableError
from projections.staging.postgres import StagingSession
from projections.staging.projection import MODEL, StagingKey

COMPARE_OUTPUTS: Final = 500
"""Outputs that are compared at a time."""

SWITCH_TRIES_MAX: Final = 200
"""Times that a switch is tried while the served copy keeps moving ahead."""

SWITCH_PAUSE_SECONDS: Final = 0.005

ROWS_COMPARED: Final = 8192
"""Rows that are looked at together for the first one that differs."""


class _BuildSession(StagingSession):
    """A session on the generation that is being built, which goes not beyond `goal`, if there is one."""

    goal: int | None = None

    def look(self) -> Copy:
        """See `projections.runner.Session`."""
        seen = super().look()
        if self.goal is None or self.goal >= seen.high_water_mark:
            return seen
        return msgspec.structs.replace(seen, high_water_mark=self.goal)

    def recorded(self, generation: int, position: int) -> Iterator[Attempt]:
        """The recorded attempts of a generation that were published up to a position, in the order of their keys."""
        key: StagingKey = ("", "")
        while page := self._page(generation, key):
            yield from (attempt for attempt in page if attempt.position <= position)
            key = page[-1].key

    def _page(self, generation: int, after: StagingKey) -> list[Attempt]:
        given = {"generation": generation, "run_id": after[0], "output": after[1], "limit": COMPARE_OUTPUTS}
        return self.attempts("of_generation", given)


class _NoTables:
    """What a copy needs to have made for it, where it is a generation of attempts: nothing."""

    def create(self, cursor: Any, generation: int) -> None:
        return None

    def drop(self, cursor: Any, generation: int) -> None:
        return None


class StagingRebuild(CopyRebuild):
    """The rebuild of staging: `projections.rebuilding.rebuildable.Rebuildable`."""

    def __init__(self, dsn: str, stager: Stager, builder: Builder, point: Point = nowhere) -> None:
        self._staging = _BuildSession(dsn, stager, builder.owner, CopyRole.BUILDING)
        super().__init__(dsn, MODEL, cast(Any, _NoTables()), builder, point, session=cast(Any, self._staging))
        self._values: FeatureValues = stager.values

    def compare(self, pulse: Pulse) -> Difference:
        """See `Rebuildable`. Its rows are outputs of runs, its samples name the first row that differs."""
        self._point(COPY_COMPARE_BEFORE)
        generation, served_position, _, _ = self._staging.row("served", self._given)
        ours = self._staging.look()
        position = min(served_position, ours.position)
        found = _Comparison(self._values, position, self._staging)
        served = self._staging.recorded(generation, position)
        built = self._staging.recorded(ours.generation, position)
        for pairs in _pages(_paired(served, built)):
            found.add(pairs)
            pulse.alive()
        self._point(COPY_COMPARE_AFTER)
        return found.difference()

    def switch(self, pulse: Pulse, keep_seconds: float) -> Rebuilt:
        """See `Rebuildable`."""
        self._point(COPY_SWITCH_BEFORE)
        for _ in range(SWITCH_TRIES_MAX):
            self.catch_up(pulse, Goal.LOG)
            pulse.alive()
            switched = self._try_to_switch(keep_seconds)
            if switched is not None:
                self._point(COPY_SWITCH_AFTER)
                with suppress(StoreUnavailableError):
                    self._drop("delete_retired", {"which": "older"})
                return switched
            time.sleep(SWITCH_PAUSE_SECONDS)
        raise OverloadedError("the served copy moved faster than the one beside", at=self.name)

    def _try_to_switch(self, keep_seconds: float) -> Rebuilt | None:
        """Change places, unless the served copy is ahead."""
        session = self._staging
        with session.transaction():
            check_fence(session, self._given)
            position, generation = session.row("lock_served", self._given)
            if session.look().position < position:
                return None
            session.change("retire", {**self._given, "keep_seconds": keep_seconds})
            served = session.find("activate", {**self._given, "served": generation})
            if served is None:
                raise StaleFenceError("another attempt builds this copy", at=self.name, token=self._builder.token)
        return Rebuilt(self.name, *served)

    # ---------------------------------------------------------------- the steps' parts

    def _fold_far(self, pulse: Pulse, seen: Copy) -> None:
        """There is nothing faster than staging itself."""

    def _attach(self, pulse: Pulse) -> None:
        """A generation has no indexes of its own."""

    def _try_to_drop(self, statement: str, given: Any) -> int:
        dropped = super()._try_to_drop(statement, given)
        if dropped:
            self._staging.tidy()
        return dropped


class _Comparison:
    """Counts what differs, and keeps the first samples of each kind."""

    def __init__(self, values: FeatureValues, position: int, session: _BuildSession) -> None:
        self._values = values
        self._session = session
        self._position = position
        self._counts = {"served": 0, "rebuilt": 0, "missing": 0, "extra": 0, "different": 0}
        self._samples: list[DifferenceSample] = []

    def add(self, pairs: Sequence[tuple[Attempt | None, Attempt | None]]) -> None:
        """Compare the served attempts of some outputs with those that were built."""
        digests = self._values.digests([attempt.attempt for pair in pairs for attempt in pair if attempt is not None])
        for served, built in pairs:
            self._counts["served"] += served is not None
            self._counts["rebuilt"] += built is not None
            kind = _kind(served, built, digests)
            if kind is not None:
                self._check_standing([one.attempt for one in (served, built) if one is not None])
                self._counts[kind] += 1
                if self._counts[kind] <= SAMPLES_MAX:
                    self._samples.append(self._sample(kind, served, built, digests))

    def difference(self) -> Difference:
        """What was found."""
        counts = self._counts
        return Difference(
            position=self._position,
            served_rows=counts["served"],
            rebuilt_rows=counts["rebuilt"],
            missing=counts["missing"],
            extra=counts["extra"],
            different=counts["different"],
            samples=tuple(sorted(self._samples, key=lambda sample: sample.kind)),
        )

    def _check_standing(self, attempts: list[UUID]) -> None:
        """An attempt that was replaced while it was looked at says nothing: the comparison is to be made again."""
        if self._session.query("still_visible", {"attempts": attempts})[0][0] != len(attempts):
            raise StagingUnavailableError(
                "what is compared was replaced meanwhile", at=MODEL.name, expected="another try"
            )

    def _sample(
        self, kind: str, served: Attempt | None, built: Attempt | None, digests: dict[Any, Digest]
    ) -> DifferenceSample:
        key = (served or cast(Attempt, built)).key
        shown = [
            None
            if one is None
            else {"artifact": one.artifact, "rows": _digest(one, digests).rows, "instrument": one.instrument}
            for one in (served, built)
        ]
        if served is not None and built is not None:
            for document, row in zip(shown, self._first_rows(served, built), strict=True):
                cast(dict[str, Any], document)["first_different_row"] = row
        return DifferenceSample(kind, {"run_id": key[0], "output": key[1]}, *shown)

    def _first_rows(self, one: Attempt, other: Attempt) -> tuple[Any, Any]:
        """The first row at which two attempts differ, of each."""
        ours, others = (_rows(self._values, attempt) for attempt in (one, other))
        while True:
            row, other_row = next(ours, None), next(others, None)
            if row != other_row or row is None:
                return row, other_row


def _rows(values: FeatureValues, attempt: Attempt) -> Iterator[dict[str, Any]]:
    place = START
    while page := values.page([attempt.attempt], attempt.generation, place, ROWS_COMPARED):
        yield from _documents(page)
        place = page.last


def _documents(page: StagedColumns) -> Iterator[dict[str, Any]]:
    values, ids = page.table.column("value").to_pylist(), page.event_ids.strings("backslashreplace")
    for time_, event_id, value in zip(page.event_times.tolist(), ids, values, strict=True):
        shown = value if value is None or isfinite(value) else repr(value)  # damage may be what no JSON can say
        yield {"event_time": format_micros(time_), "event_id": event_id.replace("\0", "\\x00"), "value": shown}


def _kind(served: Attempt | None, built: Attempt | None, digests: dict[Any, Digest]) -> str | None:
    if served is None:
        return "missing"
    if built is None:
        return "extra"
    same = _digest(served, digests) == _digest(built, digests) and served.instrument == built.instrument
    return None if same and served.delivery == built.delivery else "different"


def _digest(attempt: Attempt, digests: dict[Any, Digest]) -> Digest:
    return digests.get(attempt.attempt, Digest(0, 0))


def _paired(served: Iterator[Attempt], built: Iterator[Attempt]) -> Iterator[tuple[Attempt | None, Attempt | None]]:
    """Two sequences in the order of their keys, merged by key."""
    one, other = next(served, None), next(built, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.key < other.key):
            yield one, None
            one = next(served, None)
        elif one is None or other.key < one.key:
            yield None, other
            other = next(built, None)
        else:
            yield one, other
            one, other = next(served, None), next(built, None)


def _pages(
    pairs: Iterator[tuple[Attempt | None, Attempt | None]],
) -> Iterator[list[tuple[Attempt | None, Attempt | None]]]:
    while page := list(islice(pairs, COMPARE_OUTPUTS)):
        yield page
