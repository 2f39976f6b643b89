"""The fixture's flow and snapshot, made here from the description in the documentation rather than read from the files."""

from typing import Any

from domain.market.records import MarketEvent
from domain.market.snapshot import build_snapshot, encode_manifest
from services.ports import BlobStore

START = 1_767_603_600_000_000
"""2026-01-05T09:00:00Z in microseconds."""

AS_OF = "2026-01-06T00:00:00Z"
GOLDEN = "sha256:9e906a09a1c594964c16291a77cb38b0ffb021e69c230d71d1dd77ebbd6a7877"

CLOSES = (lambda n: n + 1.0, lambda n: 10.0 * (n + 1), lambda n: 21.0 + n)


def flow(instrument: str = "fixture.fx-0", length: int = 3, **changes: Any) -> dict[str, Any]:
    """The fixture's flow, or one like it, without the defaults."""
    node = {"id": "ema", "op": "ema", "inputs": [{"column": "close"}], "parameters": {"length": length}}
    return {
        "version": 1,
        "name": "01_A_feature",
        "source": {"instruments": [instrument]},
        "clock": {"kind": "event"},
        "nodes": [node],
        "outputs": [{"name": "ema", "node": "ema"}],
        **changes,
    }


def events(rows: int = 6) -> list[MarketEvent]:
    """The fixture's events: three instruments, one event a minute."""
    return [
        MarketEvent(
            event_id=f"fixture.event.{i}.{n}",
            instrument=f"fixture.fx-{i}",
            event_time=START + n * 60_000_000,
            available_at=START + n * 60_000_000 + 250_000,
            revision=0,
            values={"close": close(n)},
        )
        for i, close in enumerate(CLOSES)
        for n in range(rows)
    ]


def store_snapshot(blobs: BlobStore, rows: int = 6, chunk_events: int = 65_536) -> str:
    """The fixture's snapshot in CAS; the address of its manifest."""
    manifest, chunks = build_snapshot(events(rows), name="fixture.snapshot.01", chunk_events=chunk_events)
    for chunk in chunks:
        blobs.put(chunk)
    return blobs.put(encode_manifest(manifest))


def body(snapshot: str, /, **changes: Any) -> dict[str, Any]:
    """The body of a request for the fixture's run, as a client sends it."""
    return {"mode": "BATCH", "flow": flow(), "snapshot": snapshot, "as_of": AS_OF, **changes}
