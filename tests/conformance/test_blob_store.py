"""What every blob store must do; each implementation is one more parameter of the `store` fixture."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from domain.canonical import address
from domain.errors import BlobCorruptError, BlobMissingError, BodyTooLargeError, InfrastructureError
from services.adapters.s3_blobs import S3BlobStore
from services.cas import BLOB_BYTES_MAX, DirectoryBlobStore, place_of, sweep_temporary
from services.ports import BlobStore
from tests.support.memory_blobs import MemoryBlobs
from tests.support.s3_server import S3Server

ABSENT = "sha256:" + "0" * 64


class Kept:
    """A store with a way to change its stored bytes behind its back."""

    def __init__(self, store: BlobStore, damage: Callable[[str, bytes], object]) -> None:
        self.store = store
        self.damage = damage


@pytest.fixture(params=["directory", "bucket", "memory"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    """A fresh, empty store of each kind; `memory` is what unit tests use in their place."""
    if request.param == "memory":
        blobs = MemoryBlobs()
        return Kept(blobs, blobs.blobs.__setitem__)
    if request.param == "directory":
        return Kept(DirectoryBlobStore(tmp_path), lambda name, data: (tmp_path / place_of(name)).write_bytes(data))
    server: S3Server = request.getfixturevalue("s3")
    bucket = server.bucket("some/cas")
    return Kept(S3BlobStore(bucket), lambda name, data: server.file(bucket, place_of(name)).write_bytes(data))


@pytest.fixture
def store(kept: Kept) -> BlobStore:
    return kept.store


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000])
def test_what_was_put_is_read_back_under_its_address(store: BlobStore, data: bytes) -> None:
    """The address is the hash of the bytes; storing them again changes nothing."""
    name = store.put(data)
    assert name == address(data)
    assert store.put(data) == name
    assert store.get(name) == data
    assert store.has(name)


def test_a_missing_blob_is_a_typed_error_with_its_address(store: BlobStore) -> None:
    """Never an empty answer, never another error."""
    assert not store.has(ABSENT)
    with pytest.raises(BlobMissingError) as missing:
        store.get(ABSENT)
    assert missing.value.at == ABSENT


@pytest.mark.parametrize(
    "name", ["", "sha256:", "sha256:../../etc/passwd", "sha256:" + "A" * 64, ABSENT + "\n", "md5:" + "0" * 64]
)
def test_what_is_no_address_is_no_path(store: BlobStore, name: str) -> None:
    """Nothing outside the store can be named."""
    for ask in (store.get, store.has):
        with pytest.raises(BlobMissingError):
            ask(name)


@pytest.mark.parametrize("lost", ["removed", "unmounted", "replaced"])
def test_a_folder_that_is_away_is_no_missing_blob(tmp_path: Path, lost: str) -> None:
    """Gone, empty, or a file in its place: nobody is told that a blob is missing, nothing is written there, and all is well again
    once it is back."""
    folder, aside = tmp_path / "cas", tmp_path / "aside"
    store = DirectoryBlobStore(folder)
    with pytest.raises(BlobMissingError):
        store.get(ABSENT)
    name = store.put(b"abc")
    folder.rename(aside)
    if lost == "unmounted":
        folder.mkdir()
    elif lost == "replaced":
        folder.write_bytes(b"")
    for ask in (lambda: store.get(name), lambda: store.get(ABSENT), lambda: store.has(name), lambda: store.put(b"new")):
        with pytest.raises(InfrastructureError):
            ask()
    assert lost != "removed" or not folder.exists()
    if lost == "unmounted":
        folder.rmdir()
    elif lost == "replaced":
        folder.unlink()
    aside.rename(folder)
    assert store.get(name) == b"abc"
    assert not store.has(ABSENT)


@pytest.mark.parametrize("bad", [b"", b"abd", b"abcd"])
def test_a_corrupt_blob_is_never_returned_and_is_healed_by_a_put(kept: Kept, bad: bytes) -> None:
    """One flipped byte, a truncated file, an appended byte."""
    store = kept.store
    name = store.put(b"abc")
    kept.damage(name, bad)
    with pytest.raises(BlobCorruptError) as corrupt:
        store.get(name)
    assert corrupt.value.at == name
    assert store.put(b"abc") == name
    assert store.get(name) == b"abc"


def test_many_writers_of_one_blob_never_show_a_part_of_it(store: BlobStore) -> None:
    """Readers see nothing or the whole, while writers race."""
    data = os.urandom(300_000)
    name, failures = address(data), []

    def read() -> None:
        for _ in range(50):
            try:
                assert store.get(name) == data
            except BlobMissingError:
                continue
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    threads += [threading.Thread(target=store.put, args=(data,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.get(name) == data


def test_a_put_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error between writing and renaming leaves neither the blob nor a temporary file."""
    store = DirectoryBlobStore(tmp_path)

    def no_rename(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_rename)
    with pytest.raises(Exception, match="No space left"):
        store.put(b"abc")
    assert not [path for path in tmp_path.glob("*/*/*") if path.is_file()]
    assert not store.has(address(b"abc"))


def test_what_a_killed_writer_left_is_swept_by_age(tmp_path: Path) -> None:
    """A temporary file of a dead process is not a blob, and goes once it is old."""
    store = DirectoryBlobStore(tmp_path)
    name = store.put(b"abc")
    (path,) = [path for path in tmp_path.glob("*/*/*") if path.is_file()]
    leftover = path.parent / ".incoming-dead"
    leftover.write_bytes(b"ab")
    assert sweep_temporary(tmp_path, older_than=leftover.stat().st_mtime - 1) == 0
    assert sweep_temporary(tmp_path, older_than=leftover.stat().st_mtime + 1) == 1
    assert store.get(name) == b"abc"


def test_a_blob_has_a_largest_size(store: BlobStore) -> None:
    """One byte more than the limit is refused before anything is written."""

    class Huge(bytes):
        """Bytes that say they are larger than they are, so that the test need not hold 256 MiB."""

        def __len__(self) -> int:
            return BLOB_BYTES_MAX + 1

    with pytest.raises(BodyTooLargeError, match="at most"):
        store.put(Huge())
