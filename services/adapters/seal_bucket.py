"""Seals in an S3-compatible bucket: `services.seals.SealStore`. With object lock on, nobody can take one back for its term.

What must stay true: a seal is created, never overwritten (`If-None-Match`, which the service decides), so of two sealers one wins.
`newest` notes the highest number and is written after the seal; a crash between the two leaves it one behind, which is harmless.
"""

from collections.abc import Sequence

from domain.log_errors import SealInvalidError, SealTakenError
from services.adapters.s3 import Bucket, Objects
from services.seals import NEWEST, SEAL_BYTES_MAX, file_of, name_of, noted, numbers_among


class SealBucket:
    """A place in a bucket with the seals of one log."""

    def __init__(self, bucket: Bucket) -> None:
        self._objects = Objects(bucket)

    def numbers(self) -> Sequence[int]:
        """See `SealStore`."""
        return numbers_among(self._objects.keys())

    def newest(self) -> int:
        """See `SealStore`."""
        return noted(self._objects.read(NEWEST) or b"")

    def read(self, number: int) -> bytes:
        """See `SealStore`."""
        data = self._objects.read(file_of(number))
        if data is None:
            raise SealInvalidError("it is not there", at=name_of(number), expected="a seal of every number")
        return data[: SEAL_BYTES_MAX + 1]

    def add(self, number: int, data: bytes) -> None:
        """See `SealStore`."""
        if not self._objects.write(file_of(number), data, mode="create"):
            raise SealTakenError("another process has written it", at=name_of(number), expected="the next")
        self._objects.write(NEWEST, b"%d\n" % number)
