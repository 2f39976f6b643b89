"""Who asks: bearer tokens, the principals that they stand for, and what each may do.

A tokens file holds SHA-256 digests only, so reading it gives nobody a token. What must stay true: a token that is unknown, or
past its `expires_at`, is nobody; a digest is compared in constant time; a file that is being edited, or is broken, never
locks out those who were let in by the last good one. Files are replaced by rename, so a crash leaves the old one or the new.
"""

import hashlib
import hmac
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from domain.canonical import canonical, parse
from domain.errors import FinazError, ForbiddenError, SettingsError, UnauthenticatedError
from domain.identity import checked_name, checked_principal
from domain.instants import parse_instant

TOKEN_BYTES_MIN: Final = 16
"""Bytes of the shortest token: what is empty, or can be guessed, is nobody's."""

TOKEN_BYTES_MAX: Final = 512
"""Bytes of one presented token; longer ones are nobody's and are not hashed."""

TOKENS_MAX: Final = 10_000
"""Entries of one tokens file."""

TOKEN_FILE_RECHECK_SECONDS: Final = 1.0
"""How long a changed tokens file may go unnoticed by a running server."""

_PREFIX: Final = "finaz_"
_log = logging.getLogger("finaz.auth")


class Scope(Enum):
    """What a token may be good for."""

    RUNS_WRITE = "runs:write"
    RUNS_READ = "runs:read"
    PURCHASES_WRITE = "purchases:write"
    PURCHASES_READ = "purchases:read"
    OPERATE = "operate"


class Principal(msgspec.Struct, frozen=True):
    """Somebody who was let in. `operates`: sees and cancels other principals' runs too."""

    name: str
    scopes: frozenset[Scope]

    @property
    def operates(self) -> bool:
        """Whether the token has the scope `operate`."""
        return Scope.OPERATE in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise `ForbiddenError` unless the token has the scope."""
        if scope not in self.scopes:
            raise ForbiddenError("the token lacks a scope", at="Authorization", expected=f"the scope {scope.value}")


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the tokens file: the digest of a token (64 hexadecimal digits) and what it stands for."""

    sha256: str
    principal: str
    scopes: tuple[Scope, ...]
    expires_at: str | None = None
    label: str = ""


class _TokensFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[TokenEntry, ...] = ()


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Tokens:
    """The tokens that are good now, by digest. With a `path`, a changed file is noticed within a second."""

    def __init__(
        self, entries: Iterable[TokenEntry] = (), *, path: Path | None = None, clock: Callable[[], datetime] = _utc_now
    ) -> None:
        self._clock = clock
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._checked_at = 0.0
        self._by_digest = _indexed(entries)
        if path is not None:
            self._seen = _mark_of(path)
            self._by_digest = _indexed(load_tokens(path))

    def authenticate(self, authorization: bytes | None) -> Principal:
        """The principal of an `Authorization` header. Raises `UnauthenticatedError`."""
        if authorization is None:
            raise UnauthenticatedError("there is no bearer token", at="Authorization", expected="Bearer <token>")
        if authorization[:7].lower() != b"bearer " or len(authorization) > TOKEN_BYTES_MAX:
            raise UnauthenticatedError("this is no bearer token", at="Authorization", expected="Bearer <token>")
        if self._path is not None and time.monotonic() - self._checked_at >= TOKEN_FILE_RECHECK_SECONDS:
            self._reread(self._path)
        token = authorization[7:].strip()
        if len(token) < TOKEN_BYTES_MIN:
            raise UnauthenticatedError("this is no bearer token", at="Authorization", expected="Bearer <token>")
        digest = hashlib.sha256(token).hexdigest()
        # Found by the digest of what was presented, which tells a guesser nothing about any token; then compared in full.
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            raise UnauthenticatedError("the token is unknown", at="Authorization", expected="a token of this server")
        _, principal, expires_at = found
        if expires_at is not None and expires_at <= self._clock():
            raise UnauthenticatedError(
                "the token has expired", at="Authorization", expected="a token that is still good"
            )
        return principal

    def _reread(self, path: Path) -> None:
        self._checked_at = time.monotonic()
        mark = _mark_of(path)
        if mark == self._seen:
            return
        self._seen = mark
        if mark is None:
            _log.error("the tokens file is gone, the last good one stays in force: %s", path)
            return
        try:
            self._by_digest = _indexed(load_tokens(path))
        except FinazError as error:
            _log.error("tokens file not reread, the last good one stays in force: %s", error)


_Index = Mapping[str, tuple[str, Principal, datetime | None]]


def _indexed(entries: Iterable[TokenEntry]) -> _Index:
    return {
        entry.sha256: (
            entry.sha256,
            Principal(entry.principal, frozenset(entry.scopes)),
            None if entry.expires_at is None else parse_instant(entry.expires_at, at="expires_at"),
        )
        for entry in entries
    }


def _mark_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def load_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """The entries of a tokens file (none if there is no file yet). Raises `SettingsError` naming the file and the field."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SettingsError(f"the tokens file cannot be read: {error.strerror}", at=str(path)) from error
    try:
        entries = msgspec.convert(parse(data), _TokensFile).tokens
        for index, entry in enumerate(entries):
            _check(entry, f"$.tokens[{index}]")
    except msgspec.ValidationError as error:
        raise SettingsError(f"the tokens file is wrong: {error}", at=str(path), expected="see docs/api.md") from None
    except FinazError as error:
        raise SettingsError(f"the tokens file is wrong: {error}", at=str(path), expected="see docs/api.md") from None
    if len(entries) > TOKENS_MAX:
        raise SettingsError("the tokens file is too long", at=str(path), expected=f"at most {TOKENS_MAX} entries")
    return entries


def _check(entry: TokenEntry, at: str) -> None:
    checked_principal(entry.principal)
    if entry.label:
        checked_name(entry.label, at=f"{at}.label")
    if len(entry.sha256) != 64 or set(entry.sha256) - set("0123456789abcdef"):
        raise SettingsError("the digest of a token is wrong", at=f"{at}.sha256", expected="64 lower-case hex digits")
    if entry.expires_at is not None:
        parse_instant(entry.expires_at, at=f"{at}.expires_at")


def mint_token(
    principal: str, scopes: Iterable[Scope], *, expires_at: str | None = None, label: str = ""
) -> tuple[str, TokenEntry]:
    """A new token, to be shown once, and the entry that a tokens file keeps of it. `expires_at` is RFC 3339 text."""
    token = _PREFIX + secrets.token_urlsafe(32)
    entry = entry_of(token, principal, scopes, expires_at=expires_at, label=label)
    return token, entry


def entry_of(
    token: str, principal: str, scopes: Iterable[Scope], *, expires_at: str | None = None, label: str = ""
) -> TokenEntry:
    """The entry of a token that exists already. Raises `SettingsError` as `load_tokens` would, and for what is too short."""
    if len(token.encode()) < TOKEN_BYTES_MIN:
        raise SettingsError("this is no token", at="token", expected=f"at least {TOKEN_BYTES_MIN} bytes")
    entry = TokenEntry(
        sha256=hashlib.sha256(token.encode()).hexdigest(),
        principal=principal,
        scopes=tuple(sorted(set(scopes), key=lambda scope: scope.value)),
        expires_at=expires_at,
        label=label,
    )
    _check(entry, "$")
    return entry


def add_token(path: Path, entry: TokenEntry) -> None:
    """Append an entry to a tokens file, made if need be (readable by its owner only), by writing anew and renaming."""
    entries = (*load_tokens(path), entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".tokens-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(canonical(msgspec.to_builtins(_TokensFile(entries))))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
