"""A place in an S3-compatible bucket, through obstore: what blobs and seals in a bucket share.

What must stay true: an object appears whole or not at all (one PUT, never in parts, so nothing half-sent is left behind by a
crash); whatever the service answers becomes one of ours: the object is not there, or `InfrastructureError`. A bucket that is not
there, or not ours, is a fault of the infrastructure, never an object that is missing. Calls block, for `TIMEOUT` a try and
`RETRY_SECONDS_MAX` altogether; any thread may make them.
"""

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from domain.errors import InfrastructureError

CONNECT_TIMEOUT: Final = "5s"
TIMEOUT: Final = "60s"
"""One try of one request; the largest blob is 256 MiB."""
RETRIES_MAX: Final = 4
RETRY_SECONDS_MAX: Final = 120
ANSWER_CHARACTERS_MAX: Final = 300
"""What an error repeats of the service's answer."""

_NO_BUCKET: Final = "NoSuchBucket"


@dataclass(frozen=True)
class Bucket:
    """Where objects are kept: everything below `prefix` in a bucket. Without keys, those of the machine's role are looked up."""

    name: str
    prefix: str = ""
    endpoint: str | None = None
    """The address of the service; None: Amazon's of the region."""
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}" if self.prefix else f"s3://{self.name}"


class Objects:
    """The objects of a place in a bucket, by their keys below its prefix. Connects to nothing before the first call.

    Raises `InfrastructureError` for whatever is neither success nor an object that is missing or taken.
    """

    def __init__(self, bucket: Bucket, *, retries_max: int = RETRIES_MAX) -> None:
        import obstore
        from obstore.store import S3Store

        self._bucket = bucket
        self._obstore = obstore
        chosen: dict[str, Any] = {
            "endpoint": bucket.endpoint,
            "access_key_id": bucket.access_key,
            "secret_access_key": bucket.secret_key,
        }
        self._store = S3Store(
            bucket.name,
            prefix=bucket.prefix or None,
            region=bucket.region,
            client_options={
                "allow_http": bucket.endpoint is not None and bucket.endpoint.startswith("http://"),
                "connect_timeout": CONNECT_TIMEOUT,
                "timeout": TIMEOUT,
            },
            retry_config={"max_retries": retries_max, "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX)},
            **{name: value for name, value in chosen.items() if value is not None},
        )

    def read(self, key: str) -> bytes | None:
        """The object's bytes; None if it is not there."""
        try:
            return bytes(self._obstore.get(self._store, key).bytes())
        except FileNotFoundError as error:
            self._check_bucket(key, error)
            return None
        except Exception as error:
            raise self._away(key, error) from None

    def has(self, key: str) -> bool:
        """Whether there is such an object. A bucket that is not there has none: such an answer doesn't say why."""
        try:
            self._obstore.head(self._store, key)
            return True
        except FileNotFoundError:
            return False
        except Exception as error:
            raise self._away(key, error) from None

    def write(self, key: str, data: bytes, *, mode: Literal["create", "overwrite"] = "overwrite") -> bool:
        """Store the object, durably once this returns. False if it was to be created and there is one already."""
        from obstore.exceptions import AlreadyExistsError

        try:
            self._obstore.put(self._store, key, data, mode=mode, use_multipart=False)
            return True
        except AlreadyExistsError:
            return False
        except Exception as error:
            raise self._away(key, error) from None

    def keys(self) -> list[str]:
        """The keys of all objects of the place, in no order."""
        try:
            return [found["path"] for page in self._obstore.list(self._store) for found in page]
        except Exception as error:
            raise self._away("", error) from None

    def _check_bucket(self, key: str, error: Exception) -> None:
        if _NO_BUCKET in str(error):
            raise self._away(key, error) from None

    def _away(self, key: str, error: Exception) -> InfrastructureError:
        """Nothing of the library's own debugging text, which repeats requests."""
        said = str(error).split(os.linesep, 1)[0][:ANSWER_CHARACTERS_MAX]
        return InfrastructureError(f"the bucket cannot be used: {said}", at=f"{self._bucket}/{key}".rstrip("/"))
