"""Folding a long stretch of the log with reading, folding and writing going on at once.

While one batch is written in a thread of its own, the next one is folded, and the one after that is being read ahead. What must
stay true: batches are written in their order, each with the position it ends at, and at most one is being written; what a fold sees
of a row is what the batches before it made of it, written or not (`_written` holds the rows under way); after an error nothing
further is written. A crash leaves what the last finished write left.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from domain.errors import RowsRefusedError
from projections.folding import Folded, K, ReadModel, batch_of, fold
from projections.log import Failure, ReadLog
from projections.runner import SPAN_POSITIONS_MAX

KNOWN_KEYS_MAX: Final = 500_000
"""Keys of rows that a fold from nothing remembers having made, so that it need not look for rows that cannot be there."""

R = TypeVar("R")

Load = Callable[[Sequence[K]], Mapping[K, R]]
"""The rows of these keys that exist."""

Write = Callable[[int, Folded[K, R]], None]
"""Write rows and position, if that is still where it was (the first argument). Called in another thread."""


class Pipeline(Generic[K, R]):
    """Folds from `position` on. `one_connection`: loading has to wait for what is being written.

    `fresh`: nothing was folded before `position`, so that rows are there only if they were made here.
    """

    def __init__(
        self,
        model: ReadModel[K, R],
        read: ReadLog,
        load: Load[K, R],
        write: Write[K, R],
        position: int,
        *,
        batch_events_max: int,
        fresh: bool,
        one_connection: bool = False,
    ) -> None:
        self._model = model
        self._read = read
        self._load = load
        self._write = write
        self._batch_events_max = batch_events_max
        self._one_connection = one_connection
        self._known: set[K] | None = set() if fresh else None
        self._written: Mapping[K, R] = {}
        self._writing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="finaz-rebuild-write")
        self.position = position
        """Where the fold is; what is written may be one batch behind, until `flush`."""
        self.failure: Failure | None = None
        """The event that could not be applied, if there was one; everything before it is written."""
        self.refused = False
        """Whether the database refused a row: the batch at hand was not written, and whoever owns this finds the event."""

    def step(self, mark: int) -> bool:
        """Fold one batch of what lies up to `mark`; False where nothing is left, or where it ended with `failure` or `refused`."""
        if self.position >= mark or self.failure is not None or self.refused:
            return False
        up_to = min(mark, self.position + SPAN_POSITIONS_MAX)
        stored = self._read(self.position, up_to, self._batch_events_max)
        full = len(stored) == self._batch_events_max
        batch = batch_of(self._model, stored, stored[-1].position if full else up_to)
        folded = fold(self._model, self._rows(batch.keys), batch)
        self.flush()
        if self.refused:
            return False
        self._written = folded.rows
        self._writing = self._thread.submit(self._write, self.position, folded)
        self._remember(folded.rows)
        self.position, self.failure = folded.up_to, folded.failure
        return True

    def flush(self) -> None:
        """Wait until what is being written is written. Raises what writing raised, but for a refused row."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.result()
            except RowsRefusedError:
                self.refused = True

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _rows(self, keys: Sequence[K]) -> Mapping[K, R]:
        under_way = self._written
        wanted = [key for key in keys if key not in under_way and (self._known is None or key in self._known)]
        if wanted and self._one_connection:
            self.flush()
        found = self._load(wanted) if wanted else {}
        return {**found, **{key: under_way[key] for key in keys if key in under_way}}

    def _remember(self, rows: Mapping[K, R]) -> None:
        if self._known is not None:
            self._known.update(rows)
            if len(self._known) > KNOWN_KEYS_MAX:
                self._known = None
