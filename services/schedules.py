"""Fault schedules of REPLAY runs: given or stored, checked once, and kept in CAS in their canonical form.

What must stay true: two spellings of one schedule have one address; a schedule that contradicts itself is never admitted; one
that names an event which isn't in the snapshot as of the run's instant is refused at admission where the snapshot is small
enough to be read then, and ends the run FAILED otherwise. A crash leaves a blob that nothing names.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from domain.canonical import address, canonical, parse
from domain.errors import CanonicalError
from domain.instants import to_micros
from domain.market.chunks import read_chunk
from domain.market.errors import ScheduleInvalidError
from domain.market.faults import NO_FAULTS, FaultSchedule, check_events, parse_schedule, schedule_body
from domain.market.snapshot import Manifest
from services import effects
from services.ports import BlobStore
from services.requests import RunBody, SweepBody

SCHEDULE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a stored schedule."""

CHECKED_ROWS_MAX: Final = 20_000
"""Records of a snapshot up to which admission looks whether it has the events that a schedule names: some 20 ms."""


@dataclass(frozen=True)
class StoredSchedule:
    """A schedule and its canonical bytes, which stand, or are to stand, under their address."""

    address: str
    schedule: FaultSchedule
    text: bytes


def read_schedule(data: bytes, at: str = "$") -> StoredSchedule:
    """The schedule of a document. Raises `ScheduleInvalidError` naming what is wrong with it."""
    if len(data) > SCHEDULE_BYTES_MAX:
        raise ScheduleInvalidError(f"{len(data)} bytes", at=at, expected=f"at most {SCHEDULE_BYTES_MAX}")
    try:
        return known_schedule(parse(data))
    except CanonicalError as error:
        raise ScheduleInvalidError(error.detail, at=error.at, expected=error.expected) from None


def known_schedule(value: Any) -> StoredSchedule:
    """The schedule of a JSON value. Raises as `parse_schedule`."""
    schedule = parse_schedule(value)
    text = canonical(schedule_body(schedule))
    return StoredSchedule(address(text), schedule, text)


def load_schedule(blobs: BlobStore, name: str) -> FaultSchedule:
    """The schedule stored under an address; "" is the one without faults. Raises `BlobMissingError`, `ScheduleInvalidError`."""
    return read_schedule(blobs.get(name), name).schedule if name else NO_FAULTS


async def admitted_schedule(blobs: BlobStore, manifest: Manifest, body: RunBody | SweepBody) -> str:
    """The address of the body's schedule ("": it has none), checked and stored.

    Raises `ScheduleInvalidError` and `BlobMissingError`, with places below the schedule.
    """
    if not body.schedule:
        return ""
    return await asyncio.to_thread(_admitted, blobs, manifest, body)


def _admitted(blobs: BlobStore, manifest: Manifest, body: RunBody | SweepBody) -> str:
    given = body.schedule
    found = read_schedule(blobs.get(given)) if isinstance(given, str) else known_schedule(given)
    if manifest.rows <= CHECKED_ROWS_MAX:
        check_events(found.schedule, _known(blobs, manifest, to_micros(body.as_of)))
    return effects.store_blob(blobs, found.text)


def _known(blobs: BlobStore, manifest: Manifest, as_of: int) -> set[str]:
    """The events that take part."""
    known: set[str] = set()
    for ref in manifest.chunks:
        rows = read_chunk(blobs.get(ref.address), ref, manifest)
        known.update(rows.ids[place] for place in (rows.available_at <= as_of).nonzero()[0].tolist())
    return known
