"""A database without its schema: whoever works on it says so, and what to do."""

from collections.abc import Callable

import pytest

from domain.log_errors import SchemaMissingError
from services.log_export import exported, head_line
from services.ports import Append
from services.store.connections import Pool
from services.store.log_import import import_log
from services.store.log_snapshot import SealableChain, log_snapshot
from tests.support.store import fact, new, opened


def _append(dsn: str) -> None:
    with opened(dsn) as log:
        log.append_blocking(Append(events=(new("run/a", 1, fact("x")),)))


def _read(dsn: str) -> None:
    with opened(dsn) as log:
        log.read_log(0, 10)


def _export(dsn: str) -> None:
    with log_snapshot(dsn) as snapshot:
        exported(snapshot)


def _seal(dsn: str) -> None:
    pool = Pool(dsn, 1)
    try:
        SealableChain(pool).head()
    finally:
        pool.close()


@pytest.mark.parametrize("work", [_append, _read, _export, _seal])
def test_whoever_works_on_it_names_the_command(empty_database: str, work: Callable[[str], None]) -> None:
    """Appending, reading, exporting or auditing, sealing: one code, and `finaz migrate`, no traceback of the driver's."""
    with pytest.raises(SchemaMissingError, match="finaz migrate"):
        work(empty_database)


def test_an_import_does_too(empty_database: str, database: str) -> None:
    """Taking a log in likewise."""
    with log_snapshot(database) as snapshot:
        lines = [head_line(exported(snapshot)[0])]
    with pytest.raises(SchemaMissingError, match="finaz migrate"):
        import_log(empty_database, lines)
