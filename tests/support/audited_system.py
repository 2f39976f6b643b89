"""A whole past for audits: events, read models, blobs and seals, in the test's own database and folder; and ways to damage it."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from psycopg.conninfo import make_conninfo

from deployment.migrate import migrate
from domain.discrepancies.messages import DiscrepancyFound, DiscrepancyKind
from domain.events import Event, Recorded, decode
from projections.registry import PROJECTIONS
from services.adapters.ed25519 import Ed25519Signer, load_signer, make_key, verify
from services.adapters.seal_folder import SealFolder
from services.audit.audit import AuditParts, audit
from services.audit.findings import AuditReport
from services.cas import DirectoryBlobStore
from services.ports import Append, NewEvent
from services.seals import Seal, Sealer, verified
from services.store.application import Log
from services.store.log_snapshot import SealableChain, log_snapshot
from tests.support import histories
from tests.support.job_rig import JobRig
from tests.support.purchase_rig import Rig
from tests.support.read_models import ASYNCHRONOUS, bring_forward, execute, store_all, stored
from tests.support.store import opened

SAMPLES = Path(__file__).parents[2] / "fixtures" / "events"


class AuditedSystem:
    """A log with everything that is derived from it, sealed in two steps, and a few events that no seal covers yet."""

    def __init__(self, dsn: str, log: Log, folder: Path) -> None:
        self.dsn = dsn
        self.log = log
        self.cas = folder / "cas"
        self.blobs = DirectoryBlobStore(self.cas)
        self.seals = SealFolder(folder / "seals")
        self.seal_files = folder / "seals"
        key = folder / "seal.pem"
        self.signer: Ed25519Signer = load_signer(key) if key.exists() else make_key(key)
        self.addresses = tuple(self.blobs.put(b"blob %d" % n) for n in range(8))

    def fill(self, monkeypatch: Any, moves: int = 240) -> None:
        """A legal past, its last part unsealed."""
        monkeypatch.setattr(histories, "ADDRESSES", self.addresses)
        appends = self.more(monkeypatch, 11, moves)
        self.other_contexts()
        third = len(appends) // 3
        for part in (appends[:third], appends[third : 2 * third]):
            store_all(self.log, part, at_once=1)
            assert self.seal() is not None
        store_all(self.log, appends[2 * third :], at_once=1)
        self.catch_up()

    def other_contexts(self) -> None:
        """Something of every other kind of stream: purchases, a discrepancy, a stream's journal and checkpoint, a job."""
        shop = Rig()
        show = shop.create_show(4)
        for seats, method in ((("A0", "A1"), "pm"), (("A2",), "pm")):
            shop.buy(show, seats, method)
            shop.settle_down()
        for recorded in shop.log.read_log(0, 10**6):
            new = NewEvent(recorded.stream, recorded.version, recorded.event, recorded.event_id)
            self.log.append_blocking(Append(events=(new,), metadata=recorded.metadata))
        found = DiscrepancyFound(kind=DiscrepancyKind.RUN_DIFFERS, subject="run_x", expected="a", actual="b")
        events: dict[str, tuple[Event, ...]] = {
            "discrepancy/RUN_DIFFERS/run_x": (found,),
            "journal/run_x": (self._sample("journal.source_opened.v1"), self._sample("journal.records_omitted.v1")),
            "checkpoint/run_x": (self._sample("checkpoint.committed.v1"),),
        }
        for stream, facts in events.items():
            news = tuple(NewEvent(stream, version, event, uuid4()) for version, event in enumerate(facts, 1))
            self.log.append_blocking(Append(events=news))
        jobs = JobRig(self.log)
        jobs.request()
        jobs.runner("somebody").run_once()

    def _sample(self, topic: str) -> Event:
        """A stored sample, about blobs that are there."""
        text = (SAMPLES / f"{topic}.json").read_text("utf-8")
        return decode(topic, re.sub(r"sha256:[0-9a-f]{64}", self.addresses[0], re.sub(r"run_a{64}", "run_x", text)))

    def more(self, monkeypatch: Any, seed: int, moves: int) -> tuple[Append, ...]:
        """What can happen besides: other principals' runs, under event ids of their own."""
        monkeypatch.setattr(histories, "PRINCIPALS", tuple(f"{name}-{seed}" for name in ("ana", "bo", "čeněk")))
        appends = histories.played(histories.seeded_moves(seed, moves)).appends
        return tuple(
            msgspec.structs.replace(
                append, events=tuple(msgspec.structs.replace(new, event_id=uuid4()) for new in append.events)
            )
            for append in appends
        )

    def seal(self) -> Seal | None:
        """Seal what is new, as a sealer that has just started does."""
        return Sealer(SealableChain(self.log.pool), self.seals, self.signer, verify).run_once(now_whatever=True)

    def catch_up(self) -> None:
        """Bring every read model to the end of the log."""
        for name in ASYNCHRONOUS:
            bring_forward(self.dsn, name)

    def audit(self, on_progress: Callable[[int, int], None] = lambda done, total: None, **changes: Any) -> AuditReport:
        """An audit of all of it."""
        parts: dict[str, Any] = {
            "blobs": self.blobs,
            "seals": lambda: verified(self.seals, self.signer.public_key, verify),
            "projections": tuple(PROJECTIONS.values()),
        }
        with log_snapshot(self.dsn) as snapshot:
            return audit(snapshot, AuditParts(**(parts | changes)), on_progress)

    @property
    def events(self) -> list[Recorded]:
        """Every event."""
        return stored(self.log)

    # ---------------------------------------------------------------- damage

    def tamper(self, statement: str, *arguments: Any) -> None:
        """What somebody with the database's owner's rights does, past the triggers."""
        execute(self.dsn, "ALTER TABLE finaz.events DISABLE TRIGGER events_append_only")
        execute(self.dsn, statement, *arguments)
        execute(self.dsn, "ALTER TABLE finaz.events ENABLE ALWAYS TRIGGER events_append_only")

    def rehash(self) -> None:
        """Compute all hashes anew, as a careful tamperer would."""
        from domain.chain import GENESIS, link_of_columns

        chain = GENESIS
        with log_snapshot(self.dsn) as snapshot:
            rows = list(snapshot.events(0, 2**62))
        chains = []
        for row in rows:
            chain = link_of_columns(chain, *row[:10])
            chains.append(chain)
        self.tamper(
            "UPDATE finaz.events AS e SET chain = n.chain FROM unnest(%s::bigint[], %s::bytea[]) AS n(position, chain)"
            " WHERE e.position = n.position",
            [row[0] for row in rows],
            chains,
        )

    def blob_file(self, address: str) -> Path:
        """Where a blob is."""
        digest = address.removeprefix("sha256:")
        return self.cas / digest[:2] / digest[2:4] / digest


class Template:
    """An audited system that others are copied from: a database and a folder."""

    def __init__(self, maintenance: str, folder: Path) -> None:
        self._maintenance = maintenance
        self._folder = folder
        self._name = f"audited_{os.getpid()}_{uuid4().hex[:8]}"

    def __enter__(self) -> "Template":
        execute(self._maintenance, f"CREATE DATABASE {self._name}")
        dsn = make_conninfo(self._maintenance, dbname=self._name)
        migrate(dsn)
        with opened(dsn) as log, pytest.MonkeyPatch.context() as monkeypatch:
            AuditedSystem(dsn, log, self._folder).fill(monkeypatch)
        return self

    def __exit__(self, *failure: object) -> None:
        execute(self._maintenance, f"DROP DATABASE {self._name} WITH (FORCE)")

    @contextmanager
    def copy(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditedSystem]:
        """A system of one's own."""
        name = f"{self._name}_{uuid4().hex[:8]}"
        execute(self._maintenance, f"CREATE DATABASE {name} TEMPLATE {self._name}")
        shutil.copytree(self._folder, folder, dirs_exist_ok=True)
        try:
            dsn = make_conninfo(self._maintenance, dbname=name)
            with opened(dsn) as log:
                system = AuditedSystem(dsn, log, folder)
                monkeypatch.setattr(histories, "ADDRESSES", system.addresses)
                yield system
        finally:
            execute(self._maintenance, f"DROP DATABASE {name} WITH (FORCE)")
