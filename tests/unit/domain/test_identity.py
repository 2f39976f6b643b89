"""Ids are functions of what was asked; names are NFC or refused."""

import hashlib
from uuid import UUID

import pytest

from domain.errors import IdempotencyKeyInvalidError, NameInvalidError
from domain.identity import (
    KEY_BYTES_MAX,
    NAME_BYTES_MAX,
    RUN_ID,
    admission_stream,
    checked_key,
    checked_name,
    checked_principal,
    reaction_id,
    run_id_of,
)

BAD = ["", "a\x00b", "a\nb", "\x7f", "\x85", "\ud800", "e\u0301"]


def test_a_run_id_is_the_hash_that_the_specification_names() -> None:
    """`run_` and SHA-256 of `principal \\0 operation \\0 key \\0 body_hash`."""
    digest = hashlib.sha256(b"ana\0runs.create\0k1\0sha256:ab").hexdigest()
    run_id = run_id_of("ana", "runs.create", "k1", "sha256:ab")
    assert run_id == "run_" + digest
    assert RUN_ID.match(run_id)


def test_scopes_do_not_run_into_each_other() -> None:
    """The separator cannot stand in a part, so two scopes never share a stream."""
    assert admission_stream("a", "b", "cd") != admission_stream("a", "bc", "d")
    assert admission_stream("ana", "runs.create", "k") != admission_stream("bea", "runs.create", "k")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_wherever_names_are_made(name: str) -> None:
    """Empty, control characters, lone surrogates, another normal form: typed, with the place."""
    with pytest.raises(NameInvalidError) as refused:
        checked_name(name, at="$.tags[0]")
    assert refused.value.at == "$.tags[0]"
    with pytest.raises(IdempotencyKeyInvalidError):
        checked_key(name)
    with pytest.raises(IdempotencyKeyInvalidError):
        checked_principal(name)


def test_the_limits_of_names_are_counted_in_bytes() -> None:
    """The last accepted and the first refused; a two-byte letter counts twice."""
    assert checked_key("k" * KEY_BYTES_MAX)
    assert checked_name("é" * (NAME_BYTES_MAX // 2), at="n")
    for bad in ("k" * (KEY_BYTES_MAX + 1), "é" * (KEY_BYTES_MAX // 2 + 1)):
        with pytest.raises(IdempotencyKeyInvalidError):
            checked_key(bad)
    with pytest.raises(NameInvalidError):
        checked_name("n" * (NAME_BYTES_MAX + 1), at="n")
    with pytest.raises(IdempotencyKeyInvalidError):
        checked_key(None)


def test_a_reaction_to_one_event_has_one_id() -> None:
    """Replaying a process manager derives the ids again, so nothing is stored twice; managers never collide."""
    cause = UUID(int=7)
    assert reaction_id(cause, "orphan-recovery", 0) == reaction_id(cause, "orphan-recovery", 0)
    ids = {reaction_id(cause, name, index) for name in ("orphan-recovery", "reconciler") for index in range(3)}
    assert len(ids) == 6
