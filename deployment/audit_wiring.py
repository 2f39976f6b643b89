"""Wires audits and seals: where seals are, which key signs and verifies them, what an audit is made of.

What must stay true: the key in the data folder is made once, by whichever process comes first; a key that was named in the settings
is never made, so that a misspelt path is an error and not a new key.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deployment.settings import Settings
from deployment.storage import seal_store
from domain.log_errors import SealKeyInvalidError
from projections.runner import Report
from services.adapters.ed25519 import Ed25519Signer, load_public_key, load_signer, make_key, verify
from services.adapters.manager_store import RememberedRows
from services.audit.audit import AuditParts, Snapshot
from services.audit.rows import Memory
from services.audit.snapshots import SnapshotsCheck
from services.audit.streams import Part
from services.checkpoint_appends import CHECKPOINT_FOLD, JOURNAL_FOLD
from services.ports import BlobStore
from services.process_managers.contract import ProcessManager
from services.process_managers.instances import memories_of
from services.process_managers.orphan_recovery import OrphanRecovery
from services.process_managers.payment import Payment
from services.process_managers.purchase_mail import PurchaseMail
from services.process_managers.reconciler import Reconciler
from services.process_managers.staging_reconciler import StagingReconciler
from services.sealing_loop import SealerLoop
from services.seals import Seal, Sealer, SealProblem, verified
from services.store.connections import Pool
from services.store.log_snapshot import SealableChain, log_snapshot
from services.store.states import Fold
from services.stream_claim import LEASE_FOLD

SEALER_CONNECTIONS: Final = 1
"""Connections that sealing keeps."""

FOLDS_WITH_SNAPSHOTS: Final[tuple[Fold[Any], ...]] = (LEASE_FOLD, CHECKPOINT_FOLD, JOURNAL_FOLD)
"""Every fold that is read from snapshots."""

AUDIT_CONNECTIONS: Final = 1
"""Connections that an audit keeps besides the one of its snapshot."""

if TYPE_CHECKING:
    from services.audit.job import AuditKind


def signer(settings: Settings) -> Ed25519Signer | None:
    """The key that seals are signed with; None where the settings name neither a key nor a data folder."""
    _, key = settings.seals()
    if key is None:
        return None
    if settings.seal_key_file is None and not key.exists():
        try:
            return make_key(key)
        except SealKeyInvalidError:
            pass  # another process was quicker
    return load_signer(key)


def sealer(settings: Settings, pool: Pool) -> Sealer | None:
    """What seals; None where the settings say neither where nor with what."""
    store = seal_store(settings)
    signing = signer(settings)
    if store is None or signing is None:
        return None
    return Sealer(SealableChain(pool), store, signing, verify)


@contextmanager
def sealer_loops(settings: Settings, only: tuple[str, ...], report: Report) -> Iterator[list[SealerLoop]]:
    """The loop that seals, where the settings say how (`only`: not, if others alone are to run); its thread is the caller's."""
    pool = Pool(settings.required_postgres_dsn(), SEALER_CONNECTIONS)
    try:
        made = None if only else sealer(settings, pool)
        yield [] if made is None else [SealerLoop(made, report)]
    finally:
        pool.close()


def public_key(settings: Settings) -> str | None:
    """The key that verifies, in hexadecimal; None where there is none."""
    if settings.seal_public_key_file is not None:
        return load_public_key(settings.seal_public_key_file)
    _, key = settings.seals()
    return load_public_key(key) if key is not None and key.exists() else None


def seals(settings: Settings) -> Callable[[], Iterator[Seal | SealProblem]] | None:
    """Gives every seal, verified; None where there are no seals or no key."""
    store = seal_store(settings)
    key = public_key(settings)
    return None if store is None or key is None else lambda: verified(store, key, verify)


def reacting() -> "tuple[ProcessManager, ...]":
    """Every process manager, for who asks how it reacts: that needs nothing of what it acts with, so it is given none."""
    nothing: Any = None
    return (
        OrphanRecovery(nothing),
        Reconciler(nothing, nothing),
        StagingReconciler(nothing, nothing),
        Payment(nothing, nothing),
        PurchaseMail(nothing, nothing, None, ""),
    )


def memories() -> tuple[Memory, ...]:
    """What each process manager remembers."""
    return tuple(Memory(memories_of(manager), RememberedRows(manager.name)) for manager in reacting())


def snapshots(part: Part, snapshot: Snapshot) -> SnapshotsCheck:
    """The check of the snapshots of states that services read on from."""
    return SnapshotsCheck(part, snapshot, FOLDS_WITH_SNAPSHOTS)


@contextmanager
def audit_parts(settings: Settings, blobs: BlobStore | None) -> Iterator[AuditParts]:
    """What an audit is made of; staged rows are looked at where there is a ClickHouse, and only in a process that may open it."""
    if settings.clickhouse_dsn is None or blobs is None:
        yield AuditParts(blobs=blobs, seals=seals(settings), memories=memories(), further=lambda *of: (snapshots(*of),))
        return
    from projections.staging.clickhouse import FeatureValues
    from projections.staging.postgres import StagedAttempts
    from services.audit.staging import StagingCheck

    pool = Pool(settings.required_postgres_dsn(), AUDIT_CONNECTIONS)
    values = FeatureValues(settings.clickhouse_dsn)
    still_visible = StagedAttempts(pool).are_visible
    try:
        yield AuditParts(
            blobs=blobs,
            seals=seals(settings),
            memories=memories(),
            further=lambda part, snapshot: (
                snapshots(part, snapshot),
                StagingCheck(part, values, blobs, still_visible),
            ),
        )
    finally:
        values.close()
        pool.close()


def audit_kind(settings: Settings, blobs: BlobStore) -> "AuditKind":
    """The job kind "audit"."""
    from services.audit.job import AuditKind

    dsn = settings.required_postgres_dsn()
    return AuditKind(partial(log_snapshot, dsn), lambda: audit_parts(settings, blobs), blobs)
