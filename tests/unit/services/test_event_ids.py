"""Ids of events are unique, whatever others do to random numbers."""

import multiprocessing
import random
import time
from uuid import RFC_4122

import pytest

from services.event_ids import new_event_id


def test_ids_are_version_7_and_differ() -> None:
    """However many are made in one millisecond."""
    ids = [new_event_id() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert {(i.version, i.variant) for i in ids} == {(7, RFC_4122)}


def test_ids_grow_with_the_clock_and_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later millisecond makes a greater id; where the clock stands still or goes back, ids differ all the same."""
    ids = []
    for milliseconds in (1, 2, 2**48 - 1, 1, 1):
        monkeypatch.setattr(time, "time_ns", lambda instant=milliseconds * 1_000_000: instant)
        ids.append(new_event_id())
    assert [i.int >> 80 for i in ids] == [1, 2, 2**48 - 1, 1, 1]
    assert ids[0] < ids[1] < ids[2]
    assert len(set(ids)) == len(ids)


def test_seeding_the_global_generator_changes_nothing() -> None:
    """A library that seeds `random` must not make a new event look like one that is stored."""
    random.seed(7)
    first = [new_event_id() for _ in range(10)]
    random.seed(7)
    assert not set(first) & {new_event_id() for _ in range(10)}


def test_a_forked_child_has_ids_of_its_own() -> None:
    """A child starts from another state than its parent."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put([new_event_id() for _ in range(10)]))
    child.start()
    theirs = queue.get(timeout=20)
    child.join()
    assert not set(theirs) & {new_event_id() for _ in range(10)}
