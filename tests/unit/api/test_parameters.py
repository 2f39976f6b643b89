"""Parameters of the query: read strictly, each refusal naming the parameter."""

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.parameters import QUERY_BYTES_MAX, REPEATED_MAX, choice, instant, integer, looked_up_name, read_query
from domain.errors import FinazError, InputError, NameInvalidError

DECLARED = {
    p.name: p
    for p in (
        integer("limit", "", minimum=1, maximum=200, default=50),
        choice("state", "", ["QUEUED", "RUNNING"], repeated=True),
        looked_up_name("tag", "", repeated=True),
        instant("since", ""),
    )
}


def test_an_empty_query_is_the_defaults() -> None:
    assert read_query(DECLARED, b"") == {"limit": 50, "state": (), "tag": (), "since": None}


@given(
    limit=st.integers(1, 200),
    states=st.lists(st.sampled_from(["QUEUED", "RUNNING"]), max_size=5),
    tags=st.lists(st.text("aé 日&=%+", min_size=1, max_size=9), max_size=5),
)
def test_what_a_client_encodes_is_read_back(limit: int, states: list[str], tags: list[str]) -> None:
    """Whatever is encoded as a form is read as it was meant, repeated parameters in order."""
    query = urlencode([("limit", limit), *(("state", s) for s in states), *(("tag", t) for t in tags)])
    found = read_query(DECLARED, query.encode())
    assert (found["limit"], found["state"], found["tag"]) == (limit, tuple(states), tuple(tags))


@pytest.mark.parametrize(
    ("query", "at"),
    [
        (b"stat=QUEUED", "query"),
        (b"limit=0", "query.limit"),
        (b"limit=201", "query.limit"),
        (b"limit=1.0", "query.limit"),
        (b"limit=+1", "query.limit"),
        (b"limit=01", "query.limit"),
        (b"limit=\xd9\xa1", "query.limit"),
        (b"limit=", "query.limit"),
        (b"limit", "query.limit"),
        (b"limit=1&limit=1", "query.limit"),
        (b"limit=" + b"9" * 5000, "query.limit"),
        (b"state=queued", "query.state"),
        (b"tag=%FF", "query.tag"),
        (b"since=2026-01-05T09:00:00", "query.since"),
        (b"tag=" + b"a" * QUERY_BYTES_MAX, "query"),
        (b"&".join([b"state=QUEUED"] * (REPEATED_MAX + 1)), "query.state"),
    ],
)
def test_what_is_wrong_is_named(query: bytes, at: str) -> None:
    """An unknown, repeated, malformed or oversized parameter is refused at its place."""
    with pytest.raises(FinazError) as refused:
        read_query(DECLARED, query)
    assert refused.value.at == at
    assert 400 <= refused.value.status < 500
    assert refused.value.expected


def test_two_spellings_of_one_name_are_not_two_tags() -> None:
    with pytest.raises(NameInvalidError):
        read_query(DECLARED, urlencode({"tag": "cafe\u0301"}).encode())


@given(st.binary(max_size=64))
def test_no_query_is_a_defect(query: bytes) -> None:
    """Whatever bytes come, the answer is values or a typed refusal."""
    try:
        found: dict[str, Any] = read_query(DECLARED, query)
    except InputError:
        return
    assert found.keys() == DECLARED.keys()
