"""What is served about runs, as the reconciler looks at it: rows of the read models and of the outbox.

What must stay true: it reads what every reader reads (the active copies), nothing else; it locks nothing. Blocks.
"""

from collections.abc import Mapping

from projections.outbox import postgres as outbox
from projections.outbox.projection import KIND_RUN, OutboxRow
from projections.publications.postgres import PublicationsReader
from projections.publications.projection import PublicationKey, PublicationRow
from projections.reading import Query
from projections.runs.postgres import RunsReader
from projections.runs.projection import RunRow
from projections.status import Projections


class ServedRows:
    """`services.reconciliation.Served` on PostgreSQL."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._projections = Projections(query)
        self._runs = RunsReader(query)
        self._publications = PublicationsReader(query)
        self._outbox = outbox.OutboxReader(query)

    def position(self, projection: str) -> int:
        """How far the projection has come."""
        return self._projections.position(projection)

    def run(self, run_id: str) -> RunRow | None:
        """The run's row, or None."""
        return self._runs.get(run_id)

    def publications(self, run_id: str) -> Mapping[PublicationKey, PublicationRow]:
        """The run's publication rows, by key."""
        return {(row.run_id, row.output): row for row in self._publications.of_run(run_id)}

    def outbox(self, run_id: str) -> OutboxRow | None:
        """The run's outbox row, or None."""
        return self._outbox.get(KIND_RUN, run_id)

    def rewrite_outbox(self, seen: OutboxRow | None, right: OutboxRow) -> bool:
        """See `services.reconciliation.Served`."""
        return outbox.rewrite(self._query, seen, right)
