"""Where two states differ, field by field, and how that is bounded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inspected import DIFFERENCES_MAX, differences

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_there_is_a_difference_only_where_the_values_differ(before: Any, after: Any) -> None:
    """Equal values have none; others have at least one; the other way round each is the same, turned."""
    found = list(differences(before, after))
    assert bool(found) == (not _same(before, after))
    turned = {"before": "after", "after": "before", "both": "both"}
    back = [(d.path, d.after, d.before, turned[d.present]) for d in differences(after, before)]
    assert back == [(d.path, d.before, d.after, d.present) for d in found]


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        ({"a": 1}, {"a": 2}, [("$.a", "both")]),
        ({"a": 1}, {}, [("$.a", "before")]),
        ({"a": [1]}, {"a": [1, {"b": None}]}, [("$.a[1]", "after")]),
        ({"a": True}, {"a": 1}, [("$.a", "both")]),
        ({"a": None}, {}, [("$.a", "before")]),
    ],
)
def test_paths_say_where(before: Any, after: Any, paths: list[tuple[str, str]]) -> None:
    """Fields by name, items by number; a field that is null is not one that is absent, and true is not 1."""
    assert [(difference.path, difference.present) for difference in differences(before, after)] == paths


def test_a_flood_of_differences_is_cut_at_its_limit() -> None:
    """However much two states differ, so many are named."""
    assert len(list(differences(list(range(DIFFERENCES_MAX + 5)), []))) == DIFFERENCES_MAX
