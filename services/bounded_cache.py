"""A cache bounded by bytes, for things under content addresses: what is under an address never changes, so nothing goes stale.

What must stay true: the sum of the sizes never exceeds `bytes_max`; what is larger than that is not kept; two callers who miss
the same key at once share one load, and a load that failed is not remembered. `held` and `put` may be called from any thread,
`get` from one event loop. Losing it loses time only.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Least recently used goes first. `load` of `get` returns the value and its size in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._held: OrderedDict[str, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._loading: dict[str, asyncio.Future[V]] = {}

    def held(self, key: str) -> V | None:
        """The value if it is here, which makes it the last to go."""
        with self._lock:
            entry = self._held.get(key)
            if entry is None:
                return None
            self._held.move_to_end(key)
            return entry[0]

    async def get(self, key: str, load: Callable[[], Awaitable[tuple[V, int]]]) -> V:
        """The value, loaded if need be. Raises what `load` raises."""
        value = self.held(key)
        if value is not None:
            return value
        loading = self._loading.get(key)
        if loading is not None:
            return await asyncio.shield(loading)
        future = self._loading[key] = asyncio.get_running_loop().create_future()
        try:
            value, size = await load()
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            future.exception()  # somebody has seen it, even if nobody else waits
            raise
        else:
            self.put(key, value, size)
            future.set_result(value)
            return value
        finally:
            del self._loading[key]

    def put(self, key: str, value: V, size_bytes: int) -> None:
        """Keep the value, if it fits at all."""
        with self._lock:
            old = self._held.pop(key, None)
            self.bytes_held -= old[1] if old else 0
            if size_bytes > self.bytes_max:
                return
            self._held[key] = (value, size_bytes)
            self.bytes_held += size_bytes
            while self.bytes_held > self.bytes_max:
                _, (_, size) = self._held.popitem(last=False)
                self.bytes_held -= size
