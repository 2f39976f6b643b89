"""Ours as a contender."""

from pathlib import Path
from typing import Final

from deployment.bench.contenders import Contender

OWN: Final = Contender(
    name="finaz",
    file=Path(__file__).parent / "own_jobs.py",
    done="SELECT count(*) FROM finaz.outbox WHERE state = 'delivered'",
)
