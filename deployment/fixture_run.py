"""The fixture run: the smallest whole piece of work, whose result every mode must reach (`GOLDEN`).

What must stay true: it is admitted and executed as any run is, from the files in `fixtures/`; nothing in the code knows its values.
"""

from typing import Any, Final
from uuid import uuid4

from deployment.fixture_files import fixture_path
from deployment.settings import Settings
from domain.canonical import parse
from services.ports import BlobStore

GOLDEN: Final = "sha256:9e906a09a1c594964c16291a77cb38b0ffb021e69c230d71d1dd77ebbd6a7877"
"""The address of the values that the fixture run publishes."""

PRINCIPAL: Final = "fixture"
AS_OF: Final = "2026-01-06T00:00:00Z"

_FLOW: Final = "flows/01_A_feature.json"
_CHUNK: Final = "snapshots/fixture.snapshot.01.jsonl"
_MANIFEST: Final = "snapshots/fixture.snapshot.01.manifest.json"


def store_fixture_snapshot(blobs: BlobStore) -> str:
    """Store the fixture snapshot; returns its address. Storing it again changes nothing."""
    blobs.put(fixture_path(_CHUNK).read_bytes())
    return blobs.put(fixture_path(_MANIFEST).read_bytes())


def fixture_body(snapshot: str, tags: tuple[str, ...] = ("fixture",)) -> dict[str, Any]:
    """The body that asks for the fixture run on a snapshot stored before."""
    flow = parse(fixture_path(_FLOW).read_bytes())
    return {"mode": "BATCH", "flow": flow, "snapshot": snapshot, "as_of": AS_OF, "tags": list(tags)}


async def admit_fixture_run(settings: Settings) -> str:
    """Admit a new fixture run, straight through the use case of admission; returns its id."""
    from deployment.storage import blob_store
    from deployment.wiring import opened_log
    from services.admission import Admissions
    from services.requests import parse_run_body

    blobs = blob_store(settings)
    async with opened_log(settings) as log:
        body = parse_run_body(fixture_body(store_fixture_snapshot(blobs)))
        submitted = await Admissions(log, blobs).submit_run(PRINCIPAL, uuid4().hex, body)
    return submitted.run_id
