"""The small pure parts: named statements, cursors, health, the vigil of a stand-by, retries."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from domain.errors import CursorInvalidError
from projections.folding import ReadModel
from projections.log import Failure
from projections.position import DEAD_AFTER_SECONDS, Copy, CopyState, Health, ProjectionStatus, health_of
from projections.projector import Projector
from projections.reading import cursor_of, page_of, place_of
from projections.registry import PROJECTIONS
from projections.runner import RETRY_SECONDS, Runner, Vigil
from projections.statements import parse_statements

# ------------------------------------------------------------------------------------------------ statements


def test_statements_have_names() -> None:
    """Each statement stands under its name, without the comments that explain it and without the last semicolon."""
    text = (
        "-- about the file\n\n-- name: one\n-- why\nSELECT 1\n  FROM x;\n\n--  name:  two\nSELECT '-- no';\nSELECT 2\n"
    )
    assert parse_statements(text, "f") == {"one": "SELECT 1\n  FROM x", "two": "SELECT '-- no';\nSELECT 2"}


@pytest.mark.parametrize("text", ["SELECT 1", "-- name: a\nSELECT 1\n-- name: a\nSELECT 2"])
def test_a_nameless_or_doubly_named_statement_is_a_bug(text: str) -> None:
    """SQL without a name, or two statements of one name, fail when they are read."""
    with pytest.raises(ValueError, match="f: "):
        parse_statements(text, "f")


# ------------------------------------------------------------------------------------------------ cursors


@pytest.mark.parametrize("place", [0, 1, 255, 2**40, 2**63 - 1])
def test_a_cursor_gives_its_place_back(place: int) -> None:
    """For the query that it was made for, a cursor means its place, and has no character that a URL would escape."""
    cursor = cursor_of(place, {"a": [1]})
    assert place_of(cursor, {"a": [1]}) == place
    assert cursor.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("cursor", ["", "é", "!!!", "LTEuMDAw", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5Lng", "x" * 5000])
def test_anything_else_is_no_cursor(cursor: str) -> None:
    """Whatever did not come from us is refused with a typed error."""
    with pytest.raises(CursorInvalidError):
        place_of(cursor, {})


def test_the_last_page_has_no_cursor() -> None:
    """One row more than asked for tells that there is another page, and is not part of this one."""
    assert page_of([1, 2], 2, [1, 2], {}, 9).next_cursor is None
    page = page_of([1, 2, 3], 2, [1, 2, 3], {}, 9)
    assert page.items == (1, 2)
    assert page.next_cursor is not None
    assert place_of(page.next_cursor, {}) == 2


# ------------------------------------------------------------------------------------------------ health


@pytest.mark.parametrize(
    ("inline", "state", "lag_events", "age", "health"),
    [
        (True, CopyState.RUNNING, 0, None, Health.CAUGHT_UP),
        (False, CopyState.RUNNING, 0, 0.5, Health.CAUGHT_UP),
        (False, CopyState.RUNNING, 5, 0.5, Health.CATCHING_UP),
        (False, CopyState.PAUSED, 5, 0.5, Health.PAUSED),
        (False, CopyState.STOPPED, 5, 0.5, Health.STOPPED),
        (False, CopyState.RUNNING, 0, None, Health.DEAD),
        (False, CopyState.RUNNING, 0, DEAD_AFTER_SECONDS * 1.01, Health.DEAD),
        (False, CopyState.STOPPED, 0, DEAD_AFTER_SECONDS * 1.01, Health.DEAD),
    ],
)
def test_health(inline: bool, state: CopyState, lag_events: int, age: float | None, health: Health) -> None:
    """Without a fresh heartbeat a projection is dead, whatever else it is; caught up is only what also beats."""
    assert health_of(inline, state, lag_events, age) is health
    status = ProjectionStatus(
        name="n",
        inline=inline,
        generation=1,
        state=state,
        position=0,
        high_water_mark=lag_events,
        lag_events=lag_events,
        lag_seconds=0.0,
        heartbeat_age_seconds=age,
    )
    assert status.health is health


# ------------------------------------------------------------------------------------------------ runner


def test_a_vigil_counts_from_when_a_sign_was_first_seen() -> None:
    """A sign of life that is old already, by whatever clock, is given the whole time; each new sign starts it over."""
    now = [100.0]
    vigil = Vigil(lambda: now[0])
    assert not vigil.is_dead(("owner", None))
    now[0] += DEAD_AFTER_SECONDS * 0.9
    assert not vigil.is_dead(("owner", None))
    assert not vigil.is_dead(("owner", 1))
    now[0] += DEAD_AFTER_SECONDS * 0.9
    assert not vigil.is_dead(("owner", 1))
    now[0] += DEAD_AFTER_SECONDS * 0.2
    assert vigil.is_dead(("owner", 1))


class Session:
    """A session in memory that fails as it is told."""

    def __init__(self, outcomes: Iterator[Exception | None]) -> None:
        self.outcomes = outcomes
        self.closed = False

    def claim(self) -> bool:
        return True

    def revive(self) -> None:
        return None

    def troubled(self, code: str, reason: str) -> None:
        assert (code, "KeyError" in reason) == ("DEFECT", True)

    def look(self) -> Copy:
        outcome = next(self.outcomes)
        if outcome is not None:
            raise outcome
        return Copy(1, 0, CopyState.RUNNING, 0)

    def close(self) -> None:
        self.closed = True


MODEL: ReadModel[Any, Any] = ReadModel("m", ("c",), lambda event: None, lambda row, recorded: row)


def test_a_runner_tries_again_with_growing_delay_and_says_why() -> None:
    """Whatever is raised, the runner reports it, closes its session, waits as long as `RETRY_SECONDS` says, and goes on; a
    success starts the delays over."""
    tries = len(RETRY_SECONDS) + 2
    outcomes: list[Exception | None] = [KeyError(str(n)) for n in range(tries)]
    outcomes += [None, KeyError("again"), None]
    sessions: list[Session] = []
    left = iter(outcomes)
    said: list[tuple[str, Any]] = []
    waited: list[float] = []

    def open_session() -> Any:
        sessions.append(Session(left))
        return sessions[-1]

    def report(event: str, details: Any) -> None:
        said.append((event, details))
        raise RuntimeError("a broken log")

    runner = Runner(MODEL, open_session, linger_seconds=0.0, report=report)

    idle: list[float] = []

    def wait(seconds: float, *, wakeable: bool) -> None:
        if wakeable or seconds > 0:
            (idle if wakeable else waited).append(seconds)
        if len(idle) == 2 or len(waited) > len(outcomes):
            runner.stop()

    runner._wait = wait  # type: ignore[method-assign]
    runner.run()
    delays = [details["delay_seconds"] for event, details in said if event == "projection_retrying"]
    assert delays == waited == [*RETRY_SECONDS, RETRY_SECONDS[-1], RETRY_SECONDS[-1], RETRY_SECONDS[0]]
    assert all(session.closed for session in sessions)


def test_a_runner_lingers_between_looks_and_not_after_a_quiet_time() -> None:
    """Woken right after a look, a runner waits for the rest of `linger_seconds`; woken later, it looks at once."""
    sessions = Session(iter(lambda: None, 0))

    def open_session() -> Any:
        return sessions

    runner = Runner(MODEL, open_session, linger_seconds=1000.0)
    waits: list[tuple[float, bool]] = []

    def wait(seconds: float, *, wakeable: bool) -> None:
        waits.append((seconds, wakeable))
        if len(waits) == 2:
            runner._linger_seconds = -1.0  # as if so long a time had passed
        if len(waits) == 4:
            runner.stop()

    runner._wait = wait  # type: ignore[method-assign]
    runner.run()
    (_, first), (lingered, second), (_, third), (passed, fourth) = waits
    assert (first, second, third, fourth) == (True, False, True, False)
    assert 0 < lingered <= 1000.0
    assert passed < 0


def test_a_runner_stops_at_once_whenever_it_is_told() -> None:
    """Told before it starts, or while it waits for a poll that is an hour away, a runner ends."""
    early = Runner(MODEL, lambda: pytest.fail("it has been stopped"))
    early.stop()
    early.run()
    moved = threading.Event()
    endless = iter(lambda: None, 0)

    def open_session() -> Any:
        return Session(endless)

    waiting = Runner(MODEL, open_session, poll_seconds=3600.0, report=lambda event, details: moved.set())
    projector = Projector([waiting])
    projector.start()
    assert moved.wait(30.0)
    assert projector.stop(30.0) == ()


def test_a_projector_says_who_has_not_ended() -> None:
    """A runner that hangs for good does not keep `stop` from returning, and is named."""
    hanging = threading.Event()

    @contextmanager
    def finally_let_go() -> Iterator[None]:
        try:
            yield
        finally:
            hanging.set()

    def open_session() -> Any:
        hanging.wait(60.0)
        raise OSError("too late")

    with finally_let_go():
        projector = Projector([Runner(MODEL, open_session)])
        projector.start()
        assert projector.stop(0.1, 0.1) == ("m",)


def test_names_are_those_of_their_models() -> None:
    """The registry has every projection under its own frozen name."""
    assert {"runs", "publications", "leases", "outbox", "lease_guard"} <= set(PROJECTIONS)
    assert all(projection.name == name for name, projection in PROJECTIONS.items())
    assert Failure(1, "s", "t", "c", "r").position == 1
