"""A blob store in memory, for tests of what is put into one."""

from domain.canonical import address
from domain.errors import BlobMissingError


class MemoryBlobs:
    """Blobs by address, in the order in which they were first put."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        """Store the bytes."""
        name = address(data)
        self.blobs[name] = data
        return name

    def get(self, name: str) -> bytes:
        """The bytes, or `BlobMissingError`."""
        if name not in self.blobs:
            raise BlobMissingError("no such blob", at=name)
        return self.blobs[name]

    def has(self, name: str) -> bool:
        """Whether it is there."""
        return name in self.blobs
