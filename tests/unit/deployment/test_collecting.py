"""The collector in a process through which records pass."""

import gc
import weakref

from deployment.collecting import ALLOCATIONS_MAX, rare_collections


class Node:
    """Something that may refer to itself."""

    me: "Node"


def test_within_the_block_collections_are_rare_and_behind_it_all_is_as_before() -> None:
    """What was frozen is looked at again, and as often as before."""
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] == ALLOCATIONS_MAX
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_cycles_are_collected_still() -> None:
    """A cycle that is made within the block goes within it, once enough has been made behind it."""
    kept: list[list[int]] = []
    with rare_collections():
        node = Node()
        node.me = node
        gone = weakref.ref(node)
        del node
        while gone() is not None and len(kept) <= 2 * ALLOCATIONS_MAX:
            kept.append([])
        assert gone() is None
