"""Loading the rows of a copy that is being built, on a connection of one's own, while others of its rows are being written."""

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from projections.folding import K, ReadModel
from projections.postgres import LogSession, Rows, store_errors

R = TypeVar("R")


class LoadingSession(LogSession, Generic[K, R]):
    """A connection of one's own that reads the committed rows of one copy."""

    def __init__(self, dsn: str, model: ReadModel[K, R], rows: Rows[K, R], generation: int) -> None:
        super().__init__(dsn, model)
        self._rows = rows
        self._generation = generation

    def load(self, keys: Sequence[K]) -> Mapping[K, R]:
        """The rows of these keys that exist."""
        with store_errors():
            return self._rows.load(self._cursor, self._generation, keys)
