"""What an operation answers: whole, or as a stream of chunks.

What must stay true: JSON leaves in canonical form, so integers of any size are exact, equal answers have equal bytes, and a NaN
can't slip out. Values only; sending them is `operations`' affair.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeAlias

import msgspec

from domain.canonical import canonical

JSON_MEDIA_TYPE: Final = "application/json"
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class Answer(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    body: bytes
    media_type: str = JSON_MEDIA_TYPE
    headers: Headers = ()
    cache: bytes = b"no-store"


class Stream(msgspec.Struct, frozen=True):
    """An answer that goes on. `close` is called once it has ended, however it ended, also if no chunk was ever asked for."""

    chunks: AsyncGenerator[bytes, None]
    close: Callable[[], None]
    media_type: str
    headers: Headers = ()
    status: int = 200
    cache: bytes = b"no-store"


def json_answer(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """A value (structs, enums and instants at will) as canonical JSON."""
    return Answer(status, canonical(msgspec.to_builtins(value)), JSON_MEDIA_TYPE, headers)
