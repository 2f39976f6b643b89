"""Seals over a real log, in a real folder: made when it is time, verified offline, never over damage."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from domain.canonical import address
from domain.errors import FinazError, InfrastructureError, StoreUnavailableError
from domain.log_errors import LogDamagedError, SealInvalidError, SealKeyInvalidError, SealTakenError
from services.adapters.ed25519 import Ed25519Signer, load_public_key, load_signer, make_key, verify
from services.adapters.seal_folder import SealFolder
from services.sealing_loop import SealerLoop
from services.seals import (
    SEAL_BYTES_MAX,
    SEAL_EVENTS_MAX,
    SEAL_SECONDS,
    Seal,
    Sealer,
    SealProblem,
    read_seal,
    sealed_bytes,
    verified,
)
from services.store.application import Log
from services.store.log_snapshot import SealableChain
from tests.support.read_models import execute
from tests.support.store import facts, opened


@pytest.fixture
def log(database: str) -> Iterator[Log]:
    with opened(database) as log:
        yield log


@pytest.fixture
def signer(tmp_path: Path) -> Ed25519Signer:
    return make_key(tmp_path / "key" / "seal.pem")


@pytest.fixture
def folder(tmp_path: Path) -> SealFolder:
    return SealFolder(tmp_path / "seals")


class Clocked:
    """A log whose clock a test moves."""

    def __init__(self, log: Log) -> None:
        self._chain = SealableChain(log.pool)
        self.later = timedelta()

    def head(self) -> Any:
        position, chain, now = self._chain.head()
        return position, chain, now + self.later

    def chain_at(self, position: int) -> bytes | None:
        return self._chain.chain_at(position)


def all_seals(folder: SealFolder, signer: Ed25519Signer) -> list[Seal | SealProblem]:
    return list(verified(folder, signer.public_key, verify))


def test_what_is_new_is_sealed_when_it_is_time(log: Log, folder: SealFolder, signer: Ed25519Signer) -> None:
    """The first events at once; then after `SEAL_SECONDS`, or sooner after many events; nothing while nothing is new."""
    clocked = Clocked(log)
    sealer = Sealer(clocked, folder, signer, verify, events_max=5)
    assert sealer.run_once() is None
    log.append_blocking(facts("run/a", 1, 2))
    first = sealer.run_once()
    assert first is not None
    assert (first.number, first.position, first.previous) == (1, 2, "")
    log.append_blocking(facts("run/a", 3))
    assert sealer.run_once() is None
    clocked.later = timedelta(seconds=SEAL_SECONDS)
    second = sealer.run_once()
    assert second is not None
    assert (second.number, second.position, second.previous) == (2, 3, address(folder.read(1)))
    clocked.later *= 5
    assert sealer.run_once() is None
    clocked.later = timedelta()
    log.append_blocking(facts("run/a", 4, 5, 6, 7, 8))
    third = sealer.run_once()
    assert third is not None
    assert third.position == 8
    assert all_seals(folder, signer) == [first, second, third]
    assert SEAL_EVENTS_MAX > 5


def test_a_sealer_that_starts_anew_goes_on(log: Log, folder: SealFolder, signer: Ed25519Signer) -> None:
    """What it knows it reads from the folder."""
    for version in (1, 2, 3):
        log.append_blocking(facts("run/a", version))
        assert Sealer(SealableChain(log.pool), folder, signer, verify).run_once(now_whatever=True) is not None
    assert [seal.position for seal in all_seals(folder, signer) if isinstance(seal, Seal)] == [1, 2, 3]


def test_many_sealers_write_each_number_once(log: Log, folder: SealFolder, signer: Ed25519Signer) -> None:
    """Sealers of several processes at once: numbers without gaps, each seal following the one before."""
    log.append_blocking(facts("run/a", 1))
    ready = threading.Barrier(4)

    def seal() -> None:
        sealer = Sealer(SealableChain(log.pool), folder, signer, verify)
        for version in range(8):
            ready.wait(30)
            if threading.current_thread().name == "appending":
                log.append_blocking(facts("run/b", version + 1))
            try:
                sealer.run_once(now_whatever=True)
            except SealTakenError:
                continue

    threads = [threading.Thread(target=seal, name="appending" if n == 0 else None) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = all_seals(folder, signer)
    assert all(isinstance(seal, Seal) for seal in found)
    positions = [seal.position for seal in found if isinstance(seal, Seal)]
    assert positions == sorted(set(positions))
    assert len(positions) > 1


def test_damage_is_never_sealed(log: Log, database: str, folder: SealFolder, signer: Ed25519Signer) -> None:
    """A log that does not hold what was sealed last is not sealed again, by anybody, and the loop says so and lives."""
    log.append_blocking(facts("run/a", 1, 2, 3))
    sealer = Sealer(SealableChain(log.pool), folder, signer, verify)
    sealer.run_once()
    execute(database, "ALTER TABLE finaz.events DISABLE TRIGGER events_append_only")
    execute(database, "UPDATE finaz.events SET chain = sha256(chain) WHERE position = 3")
    log.append_blocking(facts("run/a", 4))
    for one in (sealer, Sealer(SealableChain(log.pool), folder, signer, verify)):
        with pytest.raises(LogDamagedError) as error:
            one.run_once(now_whatever=True)
        assert error.value.at == "seal-0000000001"
    execute(database, "DELETE FROM finaz.events WHERE position >= 3")
    with pytest.raises(LogDamagedError, match="ends at position 2"):
        sealer.run_once(now_whatever=True)
    told: list[tuple[str, Any]] = []
    loop = SealerLoop(sealer, lambda event, details: told.append((event, details)))
    loop.run_once()
    assert [(event, details["code"]) for event, details in told] == [("not_sealed", "LOG_DAMAGED")]
    assert len(all_seals(folder, signer)) == 1


def test_the_loop_outlives_what_it_meets(folder: SealFolder) -> None:
    """Errors of every kind are told; it goes on until it is stopped."""
    errors: list[Exception] = [StoreUnavailableError("away"), ValueError("a bug"), SealTakenError("taken")]
    told: list[str] = []

    class Failing:
        def run_once(self) -> None:
            if not errors:
                loop.stop()
                return
            raise errors.pop(0)

    loop = SealerLoop(Failing(), lambda event, details: told.append(details["code"]), look_seconds=0.0)  # type: ignore[arg-type]
    loop.run()
    assert told == ["STORE_UNAVAILABLE", FinazError.code]


@pytest.mark.parametrize("where", ["before", "between"])
def test_a_crash_leaves_a_whole_seal_or_none(
    log: Log, folder: SealFolder, signer: Ed25519Signer, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Died before its name stands, or between the seal and the note of its number: the next sealer goes on, and all verify."""
    log.append_blocking(facts("run/a", 1))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"services.adapters.seal_folder.os.{'link' if where == 'before' else 'replace'}", die)
    with pytest.raises(KeyboardInterrupt):
        Sealer(SealableChain(log.pool), folder, signer, verify).run_once()
    monkeypatch.undo()
    assert len(folder.numbers()) == (0 if where == "before" else 1)
    log.append_blocking(facts("run/a", 2))
    Sealer(SealableChain(log.pool), folder, signer, verify).run_once(now_whatever=True)
    found = all_seals(folder, signer)
    assert [seal.position for seal in found if isinstance(seal, Seal)] == ([2] if where == "before" else [1, 2])
    assert len(found) == len(folder.numbers())


def test_what_is_no_seal_is_refused(log: Log, folder: SealFolder, signer: Ed25519Signer, tmp_path: Path) -> None:
    """Other bytes, another number, another key, another link, too long: each is refused, and the others still count."""
    for version in (1, 2, 3):
        log.append_blocking(facts("run/a", version))
        Sealer(SealableChain(log.pool), folder, signer, verify).run_once(now_whatever=True)
    good = folder.read(2)
    other = make_key(tmp_path / "other.pem")
    seal = read_seal(good, 2, signer.public_key, verify)
    document = json.loads(good)
    for bad in (
        b"",
        b"[]",
        b"{}",
        good[:-2],
        good + b" " * SEAL_BYTES_MAX,
        sealed_bytes(seal, other),
        json.dumps(document | {"position": 1}).encode(),
        json.dumps(document | {"signature": "zz"}).encode(),
        json.dumps({**document, "more": 1}).encode(),
    ):
        with pytest.raises(SealInvalidError):
            read_seal(bad, 2, signer.public_key, verify)
    with pytest.raises(SealInvalidError):
        read_seal(good, 3, signer.public_key, verify)
    file = tmp_path / "seals" / "seal-0000000002.json"
    file.chmod(0o600)
    file.write_bytes(sealed_bytes(Seal(**{**_fields(seal), "previous": "sha256:" + "0" * 64}), signer))
    found = all_seals(folder, signer)
    assert [getattr(one, "number", one) for one in found if isinstance(one, Seal)] == [1, 3]
    (problem,) = [one for one in found if isinstance(one, SealProblem)]
    assert (problem.name, problem.missing) == ("seal-0000000002", False)


@pytest.mark.parametrize(("stray", "noted"), [("seal-9999999999.json", b"1"), (None, b"9999999999"), (None, b"9" * 40)])
def test_a_gap_is_one_problem_however_wide(
    log: Log, folder: SealFolder, signer: Ed25519Signer, tmp_path: Path, stray: str | None, noted: bytes
) -> None:
    """A stray file, or a note of the newest number that says anything, costs no time: each gap is told once, with both its ends."""
    log.append_blocking(facts("run/a", 1))
    Sealer(SealableChain(log.pool), folder, signer, verify).run_once()
    if stray is not None:
        (tmp_path / "seals" / stray).write_bytes(folder.read(1))
    (tmp_path / "seals" / "newest").unlink()
    (tmp_path / "seals" / "newest").write_bytes(noted)
    last = 9_999_999_998 if stray else 9_999_999_999
    gaps = [one.name for one in all_seals(folder, signer) if isinstance(one, SealProblem) and one.missing]
    assert gaps == ([] if len(noted) > 10 else [f"seal-0000000002 to seal-{last}"])


def _fields(seal: Seal) -> dict[str, Any]:
    return {name: getattr(seal, name) for name in seal.__struct_fields__}


def test_keys_are_kept_and_told_from_other_files(tmp_path: Path) -> None:
    """A key is made once, for its owner's eyes; its public half is read from either file or its hexadecimal form."""
    path = tmp_path / "k.pem"
    made = make_key(path)
    assert path.stat().st_mode & 0o077 == 0
    assert load_signer(path).public_key == load_public_key(path) == made.public_key
    hexadecimal = tmp_path / "k.hex"
    hexadecimal.write_text(made.public_key + "\n")
    assert load_public_key(hexadecimal) == made.public_key
    with pytest.raises(SealKeyInvalidError):
        make_key(path)
    for name, text in (("empty", ""), ("words", "no key at all"), ("short", "ab" * 31), ("odd", "zz" * 32)):
        (tmp_path / name).write_text(text)
        with pytest.raises(SealKeyInvalidError):
            load_public_key(tmp_path / name)
        with pytest.raises(SealKeyInvalidError):
            load_signer(tmp_path / name)
    with pytest.raises(SealKeyInvalidError):
        load_signer(tmp_path / "nowhere")
    with pytest.raises(InfrastructureError):
        load_signer(tmp_path)


def test_a_folder_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    """No folder has no seals; a file in its place is an error of the infrastructure."""
    assert SealFolder(tmp_path / "nothing").numbers() == ()
    assert SealFolder(tmp_path / "nothing").newest() == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError):
        SealFolder(tmp_path / "file").numbers()
    with pytest.raises(InfrastructureError):
        SealFolder(tmp_path / "file").add(1, b"x")
