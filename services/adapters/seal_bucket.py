"""Seals in an S3-compatible bucket: `services.seals.SealStore`. With object lock on, nobody can take one back for its term.

What must stay true: a seal is created, never overwritten (`If-None-Match`, which the service decides), so of two sealers one wins.
`newest` notes the highest number and is written after the seal; a crash between the two leaves it one behind, which is harmless.
"""

import re
from collections.abc import Sequence
from typing import Final

from domain.log_errors import SealInvalidError, SealTakenError
from services.adapters.s3 import Bucket, Objects
from services.seals import SEAL_BYTES_MAX, name_of

_NAME: Final = re.compile(r"seal-(\d{10})\.json\Z")
_NEWEST: Final = "newest"


class SealBucket:
    """A place in a bucket with the seals of one log."""

    def __init__(self, bucket: Bucket) -> None:
        self._objects = Objects(bucket)

    def numbers(self) -> Sequence[int]:
        """See `SealStore`."""
        return sorted(int(match[1]) for match in map(_NAME.match, self._objects.keys()) if match)

    def newest(self) -> int:
        """See `SealStore`."""
        text = (self._objects.read(_NEWEST) or b"").strip()
        return int(text) if text.isdigit() else 0

    def read(self, number: int) -> bytes:
        """See `SealStore`."""
        data = self._objects.read(f"{name_of(number)}.json")
        if data is None:
            raise SealInvalidError("it is not there", at=name_of(number), expected="a seal of every number")
        return data[: SEAL_BYTES_MAX + 1]

    def add(self, number: int, data: bytes) -> None:
        """See `SealStore`."""
        if not self._objects.write(f"{name_of(number)}.json", data, mode="create"):
            raise SealTakenError("another process has written it", at=name_of(number), expected="the next")
        self._objects.write(_NEWEST, b"%d\n" % number)
