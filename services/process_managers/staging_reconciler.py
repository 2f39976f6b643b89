"""The reconciler of staged rows: compares what ClickHouse shows of each run with the run's artifacts.

As `services.process_managers.reconciler`, with a look of its own, and a name and a place of its own: it runs in the process that
owns ClickHouse. A run is verified once staging has come to its publication; where that takes too long, the next sweep does it.
"""

from typing import Final
from uuid import UUID

from services.ports import EventLog
from services.process_managers.contract import Again, Command
from services.process_managers.reconciler import ROUND_SECONDS, VERIFY, Reconciler
from services.staged_rows import StagedRowsReconciliation

NAME: Final = "staging_reconciler"

LOOKS_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds before staging is looked at again that has not come to a run's publication; after the last it is left to the sweep."""


class StagingReconciler(Reconciler):
    """The process manager (`services.process_managers.contract.ProcessManager`)."""

    name = NAME

    def __init__(
        self, log: EventLog, reconciliation: StagedRowsReconciliation, round_seconds: float = ROUND_SECONDS
    ) -> None:
        super().__init__(log, reconciliation, round_seconds)
        self._staged = reconciliation

    def execute(self, command: Command, command_id: UUID) -> Again | None:
        """Look at one run, or at the next page of all."""
        if command.name == VERIFY and self._staged.is_behind(command.document["run_id"]):
            looks = int(command.document.get("looks", 0))
            if looks == len(LOOKS_SECONDS):
                return None
            return Again(LOOKS_SECONDS[looks], {**command.document, "looks": looks + 1})
        return super().execute(command, command_id)
