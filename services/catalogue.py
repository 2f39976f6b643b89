"""Flows and snapshot manifests by address, read from CAS and checked once.

What must stay true: what is under an address never changes, so what was found right stays right; a fault is not remembered, so a
blob that is repaired is seen. Bounded by bytes. Reading goes to threads, never on the event loop. Losing it all loses time only.
"""

import asyncio
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from domain.canonical import parse
from domain.errors import CanonicalError
from domain.market.errors import FlowInvalidError
from domain.market.flow import FlowSpec, flow_body, parse_flow
from domain.market.pipeline import FlowPlan, plan_flow
from domain.market.snapshot import Manifest, parse_manifest
from services.bounded_cache import BoundedCache
from services.ports import BlobStore

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of documents (as stored) that a catalogue keeps parsed, half for flows and half for manifests."""


@dataclass(frozen=True)
class StoredFlow:
    """A flow as it stands under its address."""

    address: str
    spec: FlowSpec
    body: dict[str, Any]

    @cached_property
    def plan(self) -> FlowPlan:
        """What follows from the flow alone, worked out when it is first executed."""
        return plan_flow(self.spec)


class Catalogue:
    """Used from one event loop."""

    def __init__(self, blobs: BlobStore, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._blobs = blobs
        self._flows = BoundedCache[StoredFlow](bytes_max // 2)
        self._manifests = BoundedCache[Manifest](bytes_max // 2)

    async def flow(self, address: str) -> StoredFlow:
        """The stored flow. Raises `BlobMissingError`, `BlobCorruptError`, `FlowInvalidError`, `UnknownOpError`."""

        async def load() -> tuple[StoredFlow, int]:
            data = await asyncio.to_thread(self._blobs.get, address)
            try:
                spec = parse_flow(parse(data))
            except CanonicalError as error:
                raise FlowInvalidError(error.detail, at=error.at, expected=error.expected) from None
            return StoredFlow(address, spec, flow_body(spec)), len(data)

        return self._flows.held(address) or await self._flows.get(address, load)

    async def manifest(self, address: str) -> Manifest:
        """The snapshot's manifest. Raises `BlobMissingError`, `BlobCorruptError`, `SnapshotInvalidError`."""

        async def load() -> tuple[Manifest, int]:
            data = await asyncio.to_thread(self._blobs.get, address)
            return parse_manifest(data), len(data)

        return self._manifests.held(address) or await self._manifests.get(address, load)

    def remember_flow(self, flow: StoredFlow, size_bytes: int) -> None:
        """The flow is stored, as we know because we stored it."""
        self._flows.put(flow.address, flow, size_bytes)

    def knows_flow(self, address: str) -> bool:
        """Whether the flow is known to be stored, without looking."""
        return self._flows.held(address) is not None
