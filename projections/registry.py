"""Every projection by its frozen name.

What must stay true: a name, once released, means the same projection for ever; it stands in the database, in metrics and in what
operators type. Asynchronous ones have a runner and a position of their own; inline ones are written inside the append.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from projections.availability import postgres as availability_rows
from projections.availability import projection as availability
from projections.balances import postgres as balance_rows
from projections.balances import projection as balances
from projections.checkpoints import postgres as checkpoint_rows
from projections.checkpoints import projection as checkpoints
from projections.discrepancies import postgres as discrepancy_rows
from projections.discrepancies import projection as discrepancies
from projections.folding import ReadModel
from projections.jobs import postgres as job_rows
from projections.jobs import projection as jobs
from projections.leases import guard
from projections.leases import postgres as lease_rows
from projections.leases import projection as leases
from projections.outbox import postgres as outbox_rows
from projections.outbox import projection as outbox
from projections.postgres import InlineRows, RowStore
from projections.publications import postgres as publication_rows
from projections.publications import projection as publications
from projections.purchases import postgres as purchase_rows
from projections.purchases import projection as purchases
from projections.quarantine import postgres as quarantine_rows
from projections.quarantine import projection as quarantine
from projections.runs import postgres as run_rows
from projections.runs import projection as runs
from projections.sales_per_day import postgres as sales_rows
from projections.sales_per_day import projection as sales_per_day
from projections.shows import postgres as show_rows
from projections.shows import projection as shows
from projections.staging import projection as staging


@dataclass(frozen=True)
class Projection:
    """A projection and where its rows are."""

    model: ReadModel[Any, Any]
    rows: RowStore[Any, Any, Any] | InlineRows[Any, Any]

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def inline(self) -> bool:
        """Whether it is written inside the append."""
        return isinstance(self.rows, InlineRows)


PROJECTIONS: Final[Mapping[str, Projection]] = MappingProxyType(
    {
        projection.name: projection
        for projection in (
            Projection(runs.MODEL, run_rows.ROWS),
            Projection(publications.MODEL, publication_rows.ROWS),
            Projection(leases.MODEL, lease_rows.ROWS),
            Projection(discrepancies.MODEL, discrepancy_rows.ROWS),
            Projection(jobs.MODEL, job_rows.ROWS),
            Projection(checkpoints.MODEL, checkpoint_rows.ROWS),
            Projection(quarantine.MODEL, quarantine_rows.ROWS),
            Projection(shows.MODEL, show_rows.ROWS),
            Projection(availability.MODEL, availability_rows.ROWS),
            Projection(purchases.MODEL, purchase_rows.ROWS),
            Projection(balances.MODEL, balance_rows.ROWS),
            Projection(sales_per_day.MODEL, sales_rows.ROWS),
            Projection(outbox.MODEL, outbox_rows.ROWS),
            Projection(guard.MODEL, lease_rows.GUARD_ROWS),
        )
    }
)
"""Frozen names: `runs`, `publications`, `leases`, `discrepancies`, `jobs`, `checkpoints`, `quarantine`, `shows`, `availability`,
`purchases`, `balances`, `sales_per_day` (asynchronous); `outbox`, `lease_guard` (inline)."""

OPTIONAL: Final[Mapping[str, ReadModel[Any, Any]]] = MappingProxyType({staging.NAME: staging.MODEL})
"""Projections that only some systems have (`staging`, where there is a ClickHouse): their rows are elsewhere, their position is a
row like any other, made by whoever works on them first."""

PROCESS_MANAGERS: Final = frozenset({"orphan_recovery", "payment", "purchase_mail", "reconciler", "staging_reconciler"})
"""Frozen names of the process managers: their instances are folded like read models, so they stand beside them in the status."""
