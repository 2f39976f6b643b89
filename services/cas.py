"""Content-addressed storage in a local directory, and what it shares with the one in a bucket (`services/adapters/s3_blobs.py`).

A blob is stored under its address: written to a temporary name beside its place, flushed to disk, then renamed; so a crash
leaves either the whole blob or a temporary file that nobody reads (`sweep_temporary` removes old ones). Reading verifies the
hash. What must stay true: whoever holds an address that `put` returned can read those bytes for ever or gets a typed error,
never other bytes. A folder that has gone, or stands empty because its disk is not mounted, is an infrastructure that is away: no
blob is called missing, and none is written, before it is back (`_MARK` keeps a store's own folder from ever being empty).
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from domain.canonical import address, is_address
from domain.errors import BlobCorruptError, BlobMissingError, BodyTooLargeError, InfrastructureError

BLOB_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one blob; larger things are stored as a manifest of chunks."""

_TEMPORARY: Final = ".incoming-"
_MARK: Final = ".blobs"


def place_of(name: str) -> str:
    """`aa/bb/<hex>`, where every store keeps the blob of an address. Raises `BlobMissingError` for what is no address."""
    if not is_address(name):
        raise BlobMissingError(
            f"{name[:80]!r} is not a content address", at="address", expected="sha256: and 64 hex digits"
        )
    digest = name.removeprefix("sha256:")
    return f"{digest[:2]}/{digest[2:4]}/{digest}"


def checked_size(data: bytes) -> None:
    """Refuse a blob that no store would take. Raises `BodyTooLargeError`."""
    if len(data) > BLOB_BYTES_MAX:
        raise BodyTooLargeError(f"a blob of {len(data)} bytes", at="blob", expected=f"at most {BLOB_BYTES_MAX} bytes")


class DirectoryBlobStore:
    """Blobs as files `aa/bb/<hex>` below `folder`, which is created if need be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a folder that may only be read is marked by those who write
            (folder / _MARK).touch()

    def put(self, data: bytes) -> str:
        """Store the bytes durably; returns their address. Heals a copy that is there but corrupt."""
        checked_size(data)
        name = address(data)
        path = self._path(name)
        if not _holds(path, data):
            self._write(path, data)
        return name

    def get(self, name: str) -> bytes:
        """The bytes stored under the address, verified against it."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            self._check_there()
            raise BlobMissingError("no blob is stored under this address", at=name, expected="a stored blob") from None
        except OSError as error:
            raise InfrastructureError(f"the blob cannot be read: {error.strerror}", at=name) from error
        if address(data) != name:
            raise BlobCorruptError("the stored bytes do not hash to their address", at=name, expected=name)
        return data

    def has(self, name: str) -> bool:
        """Whether a file is stored under the address; its content is not verified."""
        found = self._path(name).is_file()
        if not found:
            self._check_there()
        return found

    def _path(self, name: str) -> Path:
        return self._folder / place_of(name)

    def _check_there(self) -> None:
        """Raise `InfrastructureError` where the folder is gone or empty: then nothing can be said of a blob."""
        try:
            with os.scandir(self._folder) as entries:
                if next(entries, None) is not None:
                    return
            reason = "it is empty, as where a disk is not mounted"
        except OSError as error:
            reason = str(error.strerror)
        raise InfrastructureError(
            f"the blobs' folder is away: {reason}", at=str(self._folder), expected="the folder of this store"
        )

    def _write(self, path: Path, data: bytes) -> None:
        self._check_there()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            _flush_folder(path.parent)
        except OSError as error:
            raise InfrastructureError(f"the blob cannot be written: {error.strerror}", at=str(path)) from error


def sweep_temporary(folder: Path, older_than: float) -> int:
    """Remove temporary files last changed before `older_than` (seconds since the epoch); returns how many."""
    swept = 0
    for path in folder.glob(f"*/*/{_TEMPORARY}*"):
        try:
            if path.stat().st_mtime < older_than:
                path.unlink()
                swept += 1
        except FileNotFoundError:
            continue
    return swept


def _holds(path: Path, data: bytes) -> bool:
    """Whether the file is there with just these bytes; anything else is written again."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _flush_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut; the parent folders may be new too."""
    for place in (folder, folder.parent, folder.parent.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
