"""What an audit costs: everything checked, against reading the same events bare through the same snapshot."""

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from deployment.bench.contenders import fresh_database
from deployment.bench.figures import aim, answer, figure, ratio
from deployment.bench.past import EVENTS_OF_A_RUN, append_past, catch_up
from deployment.bench.registry import Report
from deployment.embedded import EmbeddedPostgres
from deployment.migrate import migrate
from services.adapters.ed25519 import make_key, verify
from services.adapters.seal_folder import SealFolder
from services.audit.audit import AuditParts, audit
from services.cas import DirectoryBlobStore
from services.seals import Sealer, verified
from services.store.connections import Pool
from services.store.log_snapshot import SealableChain, log_snapshot

EVENTS: Final = 100_000
"""Events in the log at scale 1."""

RATIO_AIM: Final = 0.5
"""Audited events a second to events read bare."""


WHAT_IT_DOES: Final = (
    "An audit hashes every row twice, decodes every event, folds its stream and every read model that it touches, and compares the"
    " rows that are served; bare reading fetches the same columns through the same snapshot and looks at nothing."
)


def run(repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Audits and bare readings of one log, in turn; see `registry.py`."""
    with EmbeddedPostgres() as server, fresh_database(server) as dsn, tempfile.TemporaryDirectory() as name:
        migrate(dsn)
        folder = Path(name)
        blobs = DirectoryBlobStore(folder / "cas")
        events = append_past(dsn, max(1, round(EVENTS * scale / EVENTS_OF_A_RUN)), blobs)
        catch_up(dsn)
        parts = _sealed(dsn, folder, blobs)
        report(f"audit: {events:,} events, every read model caught up, one seal")
        bare, audited = [], []
        for _ in range(repeats):
            bare.append(events / _bare(dsn))
            audited.append(events / _audited(dsn, parts))
            report(f"audit: {audited[-1]:,.0f} events/s audited, {bare[-1]:,.0f} read bare")
    return answer(
        f"How fast is a log of {events:,} events audited, with all its read models, against reading it bare?",
        [
            figure("audited", audited, "events/s", ratio=ratio(audited, bare)),
            figure("read bare", bare, "events/s"),
        ],
        [aim("events audited to events read bare", ratio(audited, bare), at_least=RATIO_AIM)],
        [WHAT_IT_DOES],
        events=events,
    )


def _sealed(dsn: str, folder: Path, blobs: DirectoryBlobStore) -> AuditParts:
    seals, signer, pool = SealFolder(folder / "seals"), make_key(folder / "seal.pem"), Pool(dsn, 1)
    try:
        Sealer(SealableChain(pool), seals, signer, verify).run_once()
    finally:
        pool.close()
    return AuditParts(blobs=blobs, seals=lambda: verified(seals, signer.public_key, verify))


def _bare(dsn: str) -> float:
    began = time.perf_counter()
    with log_snapshot(dsn) as snapshot:
        position, _, _ = snapshot.head()
        for _ in snapshot.events(0, position):
            pass
    return time.perf_counter() - began


def _audited(dsn: str, parts: AuditParts) -> float:
    began = time.perf_counter()
    with log_snapshot(dsn) as snapshot:
        report = audit(snapshot, parts)
    assert report.clean, report.findings[:3]
    return time.perf_counter() - began
