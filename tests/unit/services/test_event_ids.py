"""Ids of events are unique, whatever others do to random numbers."""

import multiprocessing
import random
from uuid import UUID

from services.event_ids import new_event_id


def test_ids_are_version_4_and_differ() -> None:
    """As `uuid4` would make them."""
    ids = [new_event_id() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert {(i.version, i.variant) for i in ids} == {(4, UUID(int=0x8 << 60).variant)}


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
