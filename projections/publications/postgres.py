"""Publications in PostgreSQL: the rows for the runner, and the reader for everybody else.

What must stay true: publications are listed in the order of their positions, which never change, so a reader that remembers the
last one it saw misses none.
"""

from collections.abc import Sequence
from typing import Final

from projections.postgres import RowStore, same
from projections.publications.projection import PublicationKey, PublicationRow
from projections.reading import Query, checked_limit

ROWS: Final = RowStore[PublicationKey, PublicationRow, PublicationRow](
    __package__, PublicationRow, same, same, lambda row: (row.run_id, row.output), lambda key: key[0]
)


class PublicationsReader:
    """Looks up publications. Blocks: call it in a thread from an event loop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def of_run(self, run_id: str) -> Sequence[PublicationRow]:
        """What the run has published, in order."""
        return [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["of_run"], {"run_id": run_id})]

    def list(self, after: int = 0, limit: int = 100, artifact: str | None = None) -> Sequence[PublicationRow]:
        """Publications with a position after `after`, in order, at most `limit`; of one artifact, if it is given."""
        arguments = {"after": after, "limit": checked_limit(limit), "artifact": artifact}
        return [ROWS.decode(document) for (document,) in self._query.rows(ROWS.sql["list"], arguments)]
