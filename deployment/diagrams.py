"""The state diagrams of `docs/architecture.md`, drawn from the transition tables.

What must stay true: the page shows the tables that the code interprets, no others; a test compares them. Run
`python -m deployment.diagrams` to rewrite the page; a crash half-way leaves the old page.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

from domain.admission.aggregate import ADMISSION_TRANSITIONS
from domain.checkpoints.aggregate import CHECKPOINT_TRANSITIONS
from domain.discrepancies.aggregate import DISCREPANCY_TRANSITIONS
from domain.jobs.aggregate import JOB_TRANSITIONS
from domain.jobs.slot import SLOT_TRANSITIONS
from domain.leases.aggregate import LEASE_TRANSITIONS
from domain.purchases.ledger import LEDGER_TRANSITIONS
from domain.purchases.saga import SAGA_TRANSITIONS
from domain.purchases.seats import RESERVATION_TRANSITIONS, SEAT_TRANSITIONS
from domain.runs.aggregate import RUN_TRANSITIONS
from domain.stream.journal import JOURNAL_TRANSITIONS
from domain.transitions import TransitionTable

TABLES: Final[dict[str, TransitionTable[Any]]] = {
    table.name: table
    for table in (
        ADMISSION_TRANSITIONS,
        RUN_TRANSITIONS,
        LEASE_TRANSITIONS,
        CHECKPOINT_TRANSITIONS,
        JOURNAL_TRANSITIONS,
        DISCREPANCY_TRANSITIONS,
        SEAT_TRANSITIONS,
        RESERVATION_TRANSITIONS,
        SAGA_TRANSITIONS,
        LEDGER_TRANSITIONS,
        JOB_TRANSITIONS,
        SLOT_TRANSITIONS,
    )
}

_SECTION = re.compile(r"(?<=<!-- diagram: )(\w+) -->\n.*?<!-- end -->", re.DOTALL)


def render(page: str) -> str:
    """The page with each marked section replaced by its table's diagram. Raises `KeyError` for a table that isn't there."""
    return _SECTION.sub(
        lambda match: f"{match[1]} -->\n```mermaid\n{TABLES[match[1]].mermaid()}\n```\n<!-- end -->", page
    )


def main() -> None:
    """Rewrite the architecture page in place."""
    page = Path(__file__).parent.parent / "docs" / "architecture.md"
    rendered = render(page.read_text(encoding="utf-8"))
    fresh = page.with_suffix(".tmp")
    fresh.write_text(rendered, encoding="utf-8")
    os.replace(fresh, page)


if __name__ == "__main__":
    main()
