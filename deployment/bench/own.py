"""Ours as a contender."""

from pathlib import Path
from typing import Final

from deployment.bench.contenders import Contender

OWN: Final = Contender(
    name="finaz",
    file=Path(__file__).parent / "own_jobs.py",
    remaining="SELECT count(*) FROM finaz.outbox WHERE state = 'pending'"
    " UNION ALL SELECT count(*) FROM finaz.outbox WHERE state = 'claimed' ORDER BY 1 DESC LIMIT 1",
    done="SELECT count(*) FROM finaz.outbox WHERE state = 'delivered'",
)
