"""Where blobs and seals are kept, as the settings say: in a folder, or in an S3-compatible bucket.

What must stay true: all processes of one system keep their blobs in one place; a bucket that is named goes before the data folder.
Nothing is opened before it is used, so a bucket that is away is met by the first blob, as a fault of the infrastructure.
"""

import importlib.util
import shutil
import time
from collections.abc import Callable
from typing import Final

from deployment.settings import Settings
from domain.errors import SettingsError
from services.adapters.s3 import Bucket
from services.adapters.s3_blobs import S3BlobStore
from services.adapters.seal_bucket import SealBucket
from services.adapters.seal_folder import SealFolder
from services.cas import DirectoryBlobStore, sweep_temporary
from services.ports import BlobStore
from services.seals import SealStore

LEFTOVER_SECONDS: Final = 86_400.0
"""A temporary file of this age is nobody's any more: no blob takes so long to write."""

UNLIMITED_BYTES: Final = 2**62
"""What a bucket has room for, as far as a worker's back pressure goes."""


def keeps_blobs(settings: Settings) -> bool:
    """Whether the settings say where blobs are."""
    return any(place is not None for place in (settings.cas_bucket, settings.cas_dir, settings.data_dir))


def blob_store(settings: Settings) -> BlobStore:
    """The content-addressed store of the settings. Raises `SettingsError`."""
    if settings.cas_bucket is not None:
        return S3BlobStore(_bucket(settings, settings.cas_bucket, "FINAZ_CAS_BUCKET"))
    return DirectoryBlobStore(settings.required_cas_dir())


def sweep_leftovers(settings: Settings) -> int:
    """Remove what processes that died left of blobs that they were writing; returns how much. A bucket has no such thing."""
    if settings.cas_bucket is not None or not keeps_blobs(settings):
        return 0
    return sweep_temporary(settings.required_cas_dir(), time.time() - LEFTOVER_SECONDS)


def seal_store(settings: Settings) -> SealStore | None:
    """Where the seals of the settings are; None where they say nothing of it."""
    if settings.seal_bucket is not None:
        return SealBucket(_bucket(settings, settings.seal_bucket, "FINAZ_SEAL_BUCKET"))
    folder, _ = settings.seals()
    return None if folder is None else SealFolder(folder)


def disk_free(settings: Settings) -> Callable[[], int]:
    """Tells the bytes that are free where blobs are stored. Raises `SettingsError`."""
    if settings.cas_bucket is not None:
        return lambda: UNLIMITED_BYTES
    place = settings.required_cas_dir()

    def free() -> int:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        return shutil.disk_usage(there).free

    return free


def _bucket(settings: Settings, place: str, variable: str) -> Bucket:
    if importlib.util.find_spec("obstore") is None:
        raise SettingsError("buckets need the library obstore", at=variable, expected="finaz-runtime[s3] installed")
    name, _, prefix = place.removeprefix("s3://").partition("/")
    return Bucket(
        name,
        prefix,
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key=settings.s3_access_key,
        secret_key=settings.s3_secret_key,
    )
