"""A blob store in memory, for tests of what is put into one. It passes the conformance suite of blob stores."""

from domain.canonical import address
from domain.errors import BlobCorruptError, BlobMissingError
from services.cas import checked_size, place_of


class MemoryBlobs:
    """Blobs by address, in the order in which they were first put."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        """Store the bytes."""
        checked_size(data)
        name = address(data)
        self.blobs[name] = data
        return name

    def get(self, name: str) -> bytes:
        """The bytes, verified. Raises `BlobMissingError` or `BlobCorruptError`."""
        if not self.has(name):
            raise BlobMissingError("no such blob", at=name)
        data = self.blobs[name]
        if address(data) != name:
            raise BlobCorruptError("the bytes do not hash to their address", at=name)
        return data

    def has(self, name: str) -> bool:
        """Whether it is there."""
        place_of(name)
        return name in self.blobs
