"""The effects of the services on the outside, each a small function with a fault point before and after it.

What must stay true: services append, publish and write blobs through these functions only (a test reads the sources), so that a
crash, a pause or an error can be planted at each effect. Each is one indivisible step of the outside: a crash inside leaves it
done or not done, and both are states that its caller can be started again from.
"""

from services import faultpoints
from services.faultpoints import point
from services.ports import Append, Appended, BlobStore, EventLog


async def append(log: EventLog, wanted: Append) -> Appended:
    """Append to the log. Raises what `EventLog.append` raises."""
    point(faultpoints.APPEND_BEFORE)
    appended = await log.append(wanted)
    point(faultpoints.APPEND_AFTER)
    return appended


def append_blocking(log: EventLog, wanted: Append) -> Appended:
    """As `append`, from a thread."""
    point(faultpoints.APPEND_BEFORE)
    appended = log.append_blocking(wanted)
    point(faultpoints.APPEND_AFTER)
    return appended


async def publish(log: EventLog, wanted: Append) -> Appended:
    """Append a run's results and its end: from here on they are visible. Raises what `EventLog.append` raises."""
    point(faultpoints.PUBLISH_BEFORE)
    appended = await log.append(wanted)
    point(faultpoints.PUBLISH_AFTER)
    return appended


def publish_blocking(log: EventLog, wanted: Append) -> Appended:
    """As `publish`, from a thread."""
    point(faultpoints.PUBLISH_BEFORE)
    appended = log.append_blocking(wanted)
    point(faultpoints.PUBLISH_AFTER)
    return appended


def store_blob(blobs: BlobStore, data: bytes) -> str:
    """Store bytes in CAS and return their address. Raises `InfrastructureError` as `BlobStore.put` does."""
    point(faultpoints.CAS_WRITE_BEFORE)
    address = blobs.put(data)
    point(faultpoints.CAS_WRITE_AFTER)
    return address
