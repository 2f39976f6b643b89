"""Seals: signed notes, kept outside the database, of what the log's hash chain was at a position.

A chain proves something only against a value that whoever rewrites the database cannot rewrite too. A seal is one small file:
number, position, chain value, instant, the hash of the seal before, and a signature over all of it. What must stay true: a seal is
written once and never changed; numbers have no gaps; each names the one before by its hash; nothing is sealed unless the log still
holds what was sealed last, so a seal never covers up damage. A crash leaves a temporary file or a whole seal; two sealers at once
cannot write one number, and the one who comes second goes on behind it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from domain.canonical import address, canonical, parse
from domain.errors import FinazError
from domain.log_errors import LogDamagedError, SealInvalidError

FORMAT: Final = "finaz.seal.v1"

SEAL_SECONDS: Final = 60.0
"""Seconds after which what has been appended since the last seal is sealed."""

SEAL_EVENTS_MAX: Final = 10_000
"""Events after which a seal is made without waiting."""

SEAL_BYTES_MAX: Final = 4096
"""Bytes of one seal; a longer file is none."""

NEWEST: Final = "newest"
"""The name of the note of the highest number, beside the seals."""

_FILE: Final = re.compile(r"seal-(\d{10})\.json\Z", re.ASCII)
_NOTE: Final = re.compile(rb"\s*\d{1,10}\s*\Z")


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What one seal says. `chain` is the chain value at `position`, in hexadecimal; `previous` the address of the seal before."""

    number: int
    position: int
    chain: str
    sealed_at: datetime
    previous: str

    @property
    def name(self) -> str:
        """What it is called, in the folder and in reports."""
        return name_of(self.number)


class SealProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A seal that is not right, or a row of seals that are not there."""

    name: str
    missing: bool
    expected: str
    actual: str


class Signer(Protocol):
    """Signs, with the private key."""

    @property
    def public_key(self) -> str:
        """The key that verifies, in hexadecimal."""
        ...

    def sign(self, data: bytes) -> bytes:
        """The signature of the bytes."""
        ...


class SealStore(Protocol):
    """Where seals are kept: a folder, or a bucket with object lock. Raises `InfrastructureError` when it is away."""

    def numbers(self) -> Sequence[int]:
        """The numbers that are there, in order."""
        ...

    def newest(self) -> int:
        """The highest number that was ever written, as far as it was noted; 0 for none."""
        ...

    def read(self, number: int) -> bytes:
        """One seal, as it was written (at most `SEAL_BYTES_MAX` bytes and one more). Raises `SealInvalidError`."""
        ...

    def add(self, number: int, data: bytes) -> None:
        """Write a seal, durably and whole. Raises `SealTakenError` if one of this number is there."""
        ...


class SealableLog(Protocol):
    """The log, as a sealer sees it."""

    def head(self) -> tuple[int, bytes, datetime]:
        """The last position, its chain value, and the database's clock."""
        ...

    def chain_at(self, position: int) -> bytes | None:
        """The chain value at a position, or None where there is no row."""
        ...


Verify = Callable[[str, bytes, bytes], bool]
"""`(public_key, signature, data)`: whether the signature is the key's over the data."""


def name_of(number: int) -> str:
    """`seal-0000000001`."""
    return f"seal-{number:010d}"


def file_of(number: int) -> str:
    """The name that a seal is kept under, wherever it is."""
    return f"{name_of(number)}.json"


def numbers_among(names: Iterable[str]) -> list[int]:
    """The numbers of the seals among some names, in order; other names are passed over."""
    return sorted(int(match[1]) for match in map(_FILE.match, names) if match)


def noted(text: bytes) -> int:
    """The number in a note of the newest seal; 0 for what is none."""
    return int(text) if _NOTE.match(text) else 0


def sealed_bytes(seal: Seal, signer: Signer) -> bytes:
    """The file of a seal: canonical JSON, with its signature."""
    body = _body(seal, signer.public_key)
    return canonical({**body, "signature": signer.sign(canonical(body)).hex()})


def read_seal(data: bytes, number: int, public_key: str, verify: Verify) -> Seal:
    """The seal in the bytes of a file. Raises `SealInvalidError` for what the key has not signed under this number."""
    at = name_of(number)
    try:
        if len(data) > SEAL_BYTES_MAX:
            raise SealInvalidError("it is too long", at=at, expected=f"at most {SEAL_BYTES_MAX} bytes")
        document: Any = parse(data)
        signature = bytes.fromhex(document.pop("signature"))
        seal = msgspec.convert({k: v for k, v in document.items() if k not in ("format", "key")}, Seal)
    except SealInvalidError:
        raise
    except (FinazError, msgspec.ValidationError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise SealInvalidError(f"it cannot be read: {error}", at=at, expected="a seal") from error
    if document != _body(seal, public_key) or seal.number != number:
        raise SealInvalidError("it is not what its name and key say", at=at, expected=f"{at} by {public_key[:16]}…")
    if not verify(public_key, signature, canonical(document)):
        raise SealInvalidError("its signature is not the key's", at=at, expected=f"signed by {public_key[:16]}…")
    return seal


def verified(store: SealStore, public_key: str, verify: Verify) -> Iterator[Seal | SealProblem]:
    """Every seal in order, or what is wrong with it; offline: nothing is asked of the log.

    Which seals there are is looked at now, not while iterating: those that are made later are none of this look's.
    """
    return _verified(store, public_key, verify, tuple(store.numbers()), store.newest())


def _verified(
    store: SealStore, public_key: str, verify: Verify, numbers: Sequence[int], newest: int
) -> Iterator[Seal | SealProblem]:
    before, before_bytes = 0, b""
    for number in numbers:
        yield from _missing(before + 1, number)
        try:
            data = store.read(number)
            seal = read_seal(data, number, public_key, verify)
            wanted = address(before_bytes) if before_bytes else ""
            if before == number - 1 and (before_bytes or number == 1) and seal.previous != wanted:
                raise SealInvalidError(
                    "it does not follow the seal before", at=seal.name, expected=f"previous {wanted or 'none'}"
                )
            yield seal
            before_bytes = data
        except SealInvalidError as error:
            expected = error.expected or "a seal"
            yield SealProblem(name=name_of(number), missing=False, expected=expected, actual=error.detail)
            before_bytes = b""  # what it was is not known: the one behind it is judged without it
        before = number
    yield from _missing(before + 1, newest + 1)


def _missing(first: int, beyond: int) -> Iterator[SealProblem]:
    """The gap before a number, if there is one: one problem however wide, since a stray file or note can claim any number."""
    if first < beyond:
        name = name_of(first) if first == beyond - 1 else f"{name_of(first)} to {name_of(beyond - 1)}"
        yield SealProblem(name=name, missing=True, expected="a seal of every number", actual="none")


class Sealer:
    """Seals what the log has grown by. `run_once` is called by a loop; it keeps nothing that a crash could lose."""

    def __init__(
        self,
        log: SealableLog,
        store: SealStore,
        signer: Signer,
        verify: Verify,
        *,
        seconds: float = SEAL_SECONDS,
        events_max: int = SEAL_EVENTS_MAX,
    ) -> None:
        self._log = log
        self._store = store
        self._signer = signer
        self._verify = verify
        self._seconds = seconds
        self._events_max = events_max
        self._last: tuple[Seal, bytes] | None = None

    def run_once(self, *, now_whatever: bool = False) -> Seal | None:
        """Seal if it is time (or `now_whatever`), and there is something new; None otherwise.

        Raises `LogDamagedError` if the log does not hold what was sealed last, `SealInvalidError`, `SealTakenError`, and
        infrastructure errors.
        """
        last = self._newest()
        position, chain, now = self._log.head()
        if last is not None:
            self._check(last[0], position)
            grown = position - last[0].position
            due = (
                now_whatever or (now - last[0].sealed_at).total_seconds() >= self._seconds or grown >= self._events_max
            )
            if not due:
                return None
        else:
            grown = position
        if grown <= 0:
            return None
        seal = Seal(
            number=1 if last is None else last[0].number + 1,
            position=position,
            chain=chain.hex(),
            sealed_at=now,
            previous="" if last is None else address(last[1]),
        )
        data = sealed_bytes(seal, self._signer)
        self._store.add(seal.number, data)
        self._last = (seal, data)
        return seal

    def _newest(self) -> tuple[Seal, bytes] | None:
        numbers = self._store.numbers()
        newest = max((*numbers[-1:], self._store.newest()), default=0)
        if newest == 0:
            return None
        if self._last is None or self._last[0].number != newest:
            data = self._store.read(newest)
            self._last = (read_seal(data, newest, self._signer.public_key, self._verify), data)
        return self._last

    def _check(self, last: Seal, position: int) -> None:
        held = self._log.chain_at(last.position)
        if held is None or held.hex() != last.chain:
            found = f"the log ends at position {position}" if held is None else f"its chain value is {held.hex()}"
            raise LogDamagedError(
                f"the log does not hold what was sealed at position {last.position}: {found}",
                at=last.name,
                expected=f"the chain value {last.chain}; an audit says what is wrong",
                position=last.position,
            )


def _body(seal: Seal, public_key: str) -> dict[str, Any]:
    return {"format": FORMAT, "key": public_key, **msgspec.to_builtins(seal)}
