"""Tokens: who is let in, as whom, and what a broken or changed file does."""

import hashlib
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import auth
from api.auth import Principal, Scope, TokenEntry, Tokens, add_token, entry_of, load_tokens, mint_token
from domain.errors import FinazError, ForbiddenError, SettingsError, UnauthenticatedError

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)


def presented(token: str) -> bytes:
    return f"Bearer {token}".encode()


def test_a_minted_token_is_its_principal() -> None:
    """Whoever presents the token has the name and the scopes it was minted with, and nobody has the token from the entry."""
    token, entry = mint_token("ana", [Scope.RUNS_READ, Scope.RUNS_READ], label="laptop")
    found = Tokens([entry]).authenticate(presented(token))
    assert found == Principal("ana", frozenset({Scope.RUNS_READ}))
    assert token not in repr(entry)


def test_tokens_differ() -> None:
    """No two minted tokens are equal."""
    assert len({mint_token("ana", [])[0] for _ in range(100)}) == 100


@given(st.binary(max_size=600))
def test_whatever_else_is_presented_is_nobody(header: bytes) -> None:
    """Any other header is refused with the one typed error, whatever its bytes."""
    _, entry = mint_token("ana", Scope)
    with pytest.raises(UnauthenticatedError):
        Tokens([entry]).authenticate(header)


def test_no_header_is_nobody() -> None:
    with pytest.raises(UnauthenticatedError) as refused:
        Tokens().authenticate(None)
    assert (refused.value.status, refused.value.at) == (401, "Authorization")


@pytest.mark.parametrize(("seconds", "good"), [(-1, False), (0, False), (1, True)])
def test_a_token_is_good_until_it_expires(seconds: int, good: bool) -> None:
    """Before `expires_at` it is good, from then on it is nobody's; another zone's spelling of the instant changes nothing."""
    expires_at = (NOW + timedelta(seconds=seconds + 7200)).isoformat()[:19] + "+02:00"
    token, entry = mint_token("ana", [Scope.RUNS_READ], expires_at=expires_at)
    tokens = Tokens([entry], clock=lambda: NOW)
    if good:
        assert tokens.authenticate(presented(token)).name == "ana"
    else:
        with pytest.raises(UnauthenticatedError, match="expired"):
            tokens.authenticate(presented(token))


def test_the_scheme_is_read_in_any_case() -> None:
    token, entry = mint_token("ana", [Scope.RUNS_READ])
    assert Tokens([entry]).authenticate(b"bEARER  " + token.encode()).name == "ana"


def test_a_missing_scope_is_forbidden() -> None:
    with pytest.raises(ForbiddenError) as refused:
        Principal("ana", frozenset({Scope.RUNS_READ})).require(Scope.RUNS_WRITE)
    assert refused.value.status == 403
    assert refused.value.expected == "the scope runs:write"


def test_only_the_scope_operate_operates() -> None:
    assert Principal("ana", frozenset(Scope)).operates
    assert not Principal("ana", frozenset({Scope.RUNS_READ, Scope.RUNS_WRITE})).operates


# ------------------------------------------------------------------------------------------------ the file


def test_a_file_gives_back_what_was_added(tmp_path: Path) -> None:
    """Entries come back as they were, in order; the file is readable by its owner only and holds no token."""
    path = tmp_path / "deep" / "tokens.json"
    token, first = mint_token("ana", Scope, expires_at="2030-01-01T00:00:00Z", label="café")
    second = entry_of("given from outside", "bob", [Scope.RUNS_READ])
    add_token(path, first)
    add_token(path, second)
    assert load_tokens(path) == (first, second)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.encode() not in path.read_bytes()


def test_no_file_holds_no_tokens(tmp_path: Path) -> None:
    assert load_tokens(tmp_path / "absent.json") == ()


DIGEST = "a" * 64


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "line 1"),
        ('{"tokens":[],"tokens":[]}', "twice"),
        (
            '{"tokens":[{"sha256":"DIGEST","principal":"ana","scopes":["admin"]}]}'.replace("DIGEST", DIGEST),
            "tokens[0].scopes",
        ),
        ('{"tokens":[{"sha256":"abc","principal":"ana","scopes":[]}]}', "$.tokens[0].sha256"),
        ('{"tokens":[{"sha256":"DIGEST","principal":"","scopes":[]}]}'.replace("DIGEST", DIGEST), "principal"),
        ('{"tokens":[{"sha256":"DIGEST","principal":"ana","scopes":[],"role":1}]}'.replace("DIGEST", DIGEST), "role"),
        (
            '{"tokens":[{"sha256":"DIGEST","principal":"ana","scopes":[],"expires_at":"2026-01-01T00:00:00"}]}'.replace(
                "DIGEST", DIGEST
            ),
            "$.tokens[0].expires_at",
        ),
    ],
)
def test_a_wrong_file_is_named_with_its_place(tmp_path: Path, text: str, named: str) -> None:
    """What is wrong in a tokens file is an error of the settings that names the file and the field."""
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        Tokens(path=path)
    assert refused.value.at == str(path)
    assert named in refused.value.detail


def test_a_changed_file_is_noticed_and_a_broken_one_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token added while the server runs is good at once (but for the recheck interval); a broken file changes nothing."""
    monkeypatch.setattr(auth, "TOKEN_FILE_RECHECK_SECONDS", 0.0)
    path = tmp_path / "tokens.json"
    ana, entry = mint_token("ana", [])
    add_token(path, entry)
    tokens = Tokens(path=path)
    bob, entry = mint_token("bob", [])
    add_token(path, entry)
    assert tokens.authenticate(presented(bob)).name == "bob"
    path.write_text("{ half writ")
    assert tokens.authenticate(presented(ana)).name == "ana"
    path.write_text('{"tokens":[]}')
    with pytest.raises(FinazError):
        tokens.authenticate(presented(ana))


@pytest.mark.parametrize("token", ["", " ", "\t ", "short"])
def test_what_is_empty_or_short_is_nobodys_token(token: str) -> None:
    """Not even if its digest stands in the file: the digest of nothing is known to everybody."""
    with pytest.raises(SettingsError):
        entry_of(token, "ana", Scope)
    entry = TokenEntry(sha256=hashlib.sha256(token.strip().encode()).hexdigest(), principal="ana", scopes=tuple(Scope))
    with pytest.raises(UnauthenticatedError):
        Tokens([entry]).authenticate(presented(token))


def test_a_tokens_file_that_is_gone_locks_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last good one stays in force, as it does while a broken one stands there."""
    monkeypatch.setattr("api.auth.TOKEN_FILE_RECHECK_SECONDS", 0.0)
    token, entry = mint_token("ana", Scope)
    file = tmp_path / "tokens.json"
    add_token(file, entry)
    tokens = Tokens(path=file)
    file.unlink()
    assert tokens.authenticate(presented(token)).name == "ana"
    add_token(file, mint_token("bo", Scope)[1])
    with pytest.raises(UnauthenticatedError):
        tokens.authenticate(presented(token))
