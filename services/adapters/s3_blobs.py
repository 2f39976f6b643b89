"""Content-addressed storage in an S3-compatible bucket: `services.ports.BlobStore`.

A blob is the object `aa/bb/<hex>` below the bucket's prefix, put there whole by one request; so a crash leaves it stored or not.
Reading verifies the hash, as in a folder, and a put always writes: equal bytes change nothing, a corrupt object is healed.
"""

from domain.canonical import address
from domain.errors import BlobCorruptError, BlobMissingError
from services.adapters.s3 import Bucket, Objects
from services.cas import checked_size, place_of


class S3BlobStore:
    """Blobs in a bucket. Methods block; any thread may call them."""

    def __init__(self, bucket: Bucket) -> None:
        self._objects = Objects(bucket)

    def put(self, data: bytes) -> str:
        """See `BlobStore`."""
        checked_size(data)
        name = address(data)
        self._objects.write(place_of(name), data)
        return name

    def get(self, name: str) -> bytes:
        """See `BlobStore`."""
        data = self._objects.read(place_of(name))
        if data is None:
            raise BlobMissingError("no blob is stored under this address", at=name, expected="a stored blob")
        if address(data) != name:
            raise BlobCorruptError("the stored bytes do not hash to their address", at=name, expected=name)
        return data

    def has(self, name: str) -> bool:
        """See `BlobStore`."""
        return self._objects.has(place_of(name))
