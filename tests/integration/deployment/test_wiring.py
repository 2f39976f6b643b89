"""What the composition root gives each process."""

from pathlib import Path

from deployment.settings import load_settings
from deployment.wiring import batch_worker


async def test_every_start_of_a_worker_is_an_owner_of_its_own(database: str, tmp_path: Path) -> None:
    """Two processes under one label are two owners: neither can keep alive or give back what the other holds."""
    settings = load_settings(
        {"FINAZ_POSTGRES_DSN": database, "FINAZ_CAS_DIR": str(tmp_path), "FINAZ_WORKER_LABEL": "x"}
    )
    async with batch_worker(settings, "pod-0") as first, batch_worker(settings, "pod-0") as second:
        owners = {worker._tools.claimant.owner for worker in (first, second)}
        labels = {worker._tools.claimant.label for worker in (first, second)}
    assert (len(owners), labels) == (2, {"pod-0"})
