"""One run and no more: what `finaz worker --once` does.

With the fixture and without any database in the settings it starts an embedded one in a temporary folder, migrates it, and removes
everything at the end: the fixture needs nothing from outside. What must stay true: the run goes the ordinary way of admission,
claim, execution and publication, whoever's database it is.
"""

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from deployment import wiring
from deployment.components import run_uvloop
from deployment.embedded import EmbeddedPostgres
from deployment.fixture_run import admit_fixture_run
from deployment.migrate import migrate
from deployment.settings import Settings


def work_once(settings: Settings, *, fixture: bool) -> dict[str, Any] | None:
    """Execute one run, if there is one, and return its ResultRef as plain data. `fixture`: admit the fixture run first.

    Raises `RunFailedError` or `RunCancelledError` if the run ended otherwise, `SettingsError` without a database or blobs.
    """
    if fixture and settings.postgres_dsn is None:
        with tempfile.TemporaryDirectory(prefix="finaz-") as folder, EmbeddedPostgres() as database:
            migrate(database.dsn())
            own = msgspec.structs.replace(
                settings, postgres_dsn=database.dsn(), cas_dir=settings.cas_dir or Path(folder) / "cas"
            )
            return run_uvloop(_worked(own, fixture))
    return run_uvloop(_worked(settings, fixture))


async def _worked(settings: Settings, fixture: bool) -> dict[str, Any] | None:
    if fixture:
        await admit_fixture_run(settings)
    async with wiring.batch_worker(settings, "once") as worker:
        result = await worker.run_one()
    made: dict[str, Any] | None = msgspec.to_builtins(result)
    return made
