"""A backup taken while writers write, restored: the log ends earlier and is whole, later seals are told of, and it goes on."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deployment.embedded import _binaries
from services.adapters.seal_folder import SealFolder
from services.audit.findings import FindingKind
from tests.support.audited_system import AuditedSystem
from tests.support.read_models import store_all
from tests.support.store import opened


def _tool(name: str, *arguments: str) -> None:
    subprocess.run([str(_binaries() / name), *arguments], check=True, capture_output=True, timeout=120)


def test_a_backup_taken_during_load_is_a_whole_earlier_log(
    database: str, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runbook's way, step by step: dump under load, restore beside, audit against the seals, set newer seals apart, go on."""
    with opened(database) as log:
        system = AuditedSystem(database, log, tmp_path)
        system.fill(monkeypatch, 120)
        half_way = threading.Event()
        appends = system.more(monkeypatch, 77, 300)

        def write() -> None:
            for n, append in enumerate(appends):
                store_all(log, (append,))
                if n == len(appends) // 4:
                    half_way.set()

        writer = threading.Thread(target=write)
        writer.start()
        half_way.wait(60)
        _tool("pg_dump", "--format=custom", f"--file={tmp_path / 'backup'}", f"--dbname={database}")
        writer.join()
        assert system.seal() is not None  # sealed after the backup: the restored log will lack it
        lost_from = log.high_water_mark()
    restored_name = "restored_from_backup"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {restored_name}")
    restored = make_conninfo(postgres, dbname=restored_name)
    _tool("pg_restore", "--exit-on-error", f"--dbname={restored}", str(tmp_path / "backup"))
    try:
        with opened(restored) as log:
            _goes_on(AuditedSystem(restored, log, tmp_path), monkeypatch, lost_from, tmp_path)
    finally:
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {restored_name} WITH (FORCE)")


def _goes_on(system: AuditedSystem, monkeypatch: pytest.MonkeyPatch, lost_from: int, folder: Path) -> None:
    report = system.audit()
    assert [(finding.kind, finding.subject) for finding in report.findings] == [
        (FindingKind.LOG_CUT, "seal-0000000003")
    ]
    assert report.position < lost_from
    assert report.seals.vouched_seal == "seal-0000000002"
    apart = folder / "seals-before-restore"
    (folder / "seals").rename(apart)
    system.seals = SealFolder(folder / "seals")
    assert system.seal() is not None
    assert system.audit().findings == ()
    mark = system.log.high_water_mark()
    more: tuple[Any, ...] = system.more(monkeypatch, 78, 60)
    store_all(system.log, more, at_once=1)
    system.catch_up()
    assert system.log.high_water_mark() > mark
    assert system.audit().findings == ()
    with psycopg.connect(system.dsn, autocommit=True) as connection, pytest.raises(psycopg.errors.RestrictViolation):
        connection.execute("DELETE FROM finaz.events")  # the triggers came with the backup
