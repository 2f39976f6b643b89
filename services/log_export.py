"""The log as a file: JSON Lines, every event with all that is known of it, and hashes by which it can be taken in again.

The first line is the head: format, range, how many events, the chain value before the first and that of the last. Each further line
is one event; its document stands there byte for byte as it is stored. What must stay true: what is written hashes as it is written,
row by row, or the export ends with `LogDamagedError`; what is read is refused at the first line that is not what the head and its
own hash say, and only whole logs, from the first event on, are read. Both hold one line at a time. A crash while writing leaves a
file with fewer events than its head says, which reading refuses.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from domain.chain import GENESIS, link_of_columns
from domain.errors import InstantInvalidError
from domain.instants import format_micros, parse_instant, to_micros
from domain.log_errors import ExportInvalidError, LogDamagedError, StreamNotFoundError

FORMAT: Final = "finaz.log.v1"

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one line; the append function takes no larger document."""


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line. `stream` is None for a range of the log; `chain_before` and `chain` are hexadecimal."""

    format: str
    stream: str | None
    first_position: int
    last_position: int
    events: int
    chain_before: str
    chain: str
    exported_at: datetime

    @property
    def whole(self) -> bool:
        """Whether it is a log from its first event on."""
        return self.stream is None and self.first_position == 1


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One event. `event` is the stored document, as it is."""

    position: int
    stream: str
    version: int
    event_id: str
    topic: str
    recorded_at: str
    causation_id: str | None
    correlation_id: str | None
    principal: str | None
    event: msgspec.Raw
    chain: str


class ReadableLog(Protocol):
    """What is exported (`services.store.log_snapshot.LogSnapshot`): rows as `link_of_columns` takes them, and the chain."""

    def head(self) -> tuple[int, bytes, datetime]: ...

    def chain_at(self, position: int) -> bytes | None: ...

    def events(self, after: int, up_to: int) -> Iterator[Any]: ...

    def stream(self, name: str) -> Iterator[Any]: ...


_ENCODER: Final = msgspec.json.Encoder()
_HEAD: Final = msgspec.json.Decoder(Head)
_LINE: Final = msgspec.json.Decoder(Line)


def exported(log: ReadableLog, first: int = 1, last: int | None = None) -> tuple[Head, Iterator[bytes]]:
    """The head of a range of positions (`last` None: to the end), and the lines of its events.

    The lines raise `LogDamagedError` at the first row that is missing or does not hash.
    """
    end, _, now = log.head()
    last = end if last is None else min(last, end)
    first = min(first, end + 1)
    last = max(last, first - 1)
    before, chain = log.chain_at(first - 1), log.chain_at(last)
    if before is None or chain is None:
        raise LogDamagedError(f"there is no position {first - 1 if before is None else last}", at="log")
    head = Head(
        format=FORMAT,
        stream=None,
        first_position=first,
        last_position=max(last, first - 1),
        events=max(0, last - first + 1),
        chain_before=before.hex(),
        chain=chain.hex(),
        exported_at=now,
    )
    return head, _range_lines(log, head)


def exported_stream(log: ReadableLog, stream: str) -> tuple[Head, Iterator[bytes]]:
    """The head of one stream and the lines of its events, to be looked at: it cannot be taken in. Raises `StreamNotFoundError`."""
    _, chain, now = log.head()
    first = last = events = 0
    for row in log.stream(stream):
        first, last, events, chain = first or row[0], row[0], events + 1, bytes(row[10])
    if not events:
        raise StreamNotFoundError(
            "the stream has no events", at=stream[:200], expected="one that `finaz log streams` lists"
        )
    head = Head(
        format=FORMAT,
        stream=stream,
        first_position=first,
        last_position=last,
        events=events,
        chain_before="",
        chain=chain.hex(),
        exported_at=now,
    )
    return head, (encoded(row) for row in log.stream(stream))


def head_line(head: Head) -> bytes:
    """The head as a line."""
    return _ENCODER.encode(head) + b"\n"


def encoded(row: Any) -> bytes:
    """The line of a row."""
    position, version, micros, event_id, causation_id, stream, topic, correlation_id, principal, state, chain = row[:11]
    line = Line(
        position=position,
        stream=stream,
        version=version,
        event_id=event_id,
        topic=topic,
        recorded_at=format_micros(micros),
        causation_id=causation_id,
        correlation_id=correlation_id,
        principal=principal,
        event=msgspec.Raw(state.encode("utf-8")),
        chain=bytes(chain).hex(),
    )
    return _ENCODER.encode(line) + b"\n"


def _range_lines(log: ReadableLog, head: Head) -> Iterator[bytes]:
    chain, position = bytes.fromhex(head.chain_before), head.first_position - 1
    for row in log.events(position, head.last_position):
        chain = link_of_columns(chain, *row[:10])
        if row[0] != position + 1 or chain != bytes(row[10]):
            raise LogDamagedError(
                "the row does not follow the one before by its hash",
                at=f"position {position + 1}",
                expected="a log that `finaz audit replay` finds whole",
                position=position + 1,
                stream=row[5],
            )
        position = row[0]
        yield encoded(row)
    if position != head.last_position:
        raise LogDamagedError("the log ends here", at=f"position {position}", expected=f"position {head.last_position}")


def read_export(lines: Iterable[bytes]) -> tuple[Head, Iterator[Line]]:
    """The head of a file and its events, each checked as it comes. Raises `ExportInvalidError`, naming the line."""
    given = iter(lines)
    try:
        head = _HEAD.decode(next(given, b""))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ExportInvalidError(f"no head: {error}", at="line 1", expected=f"the head of a {FORMAT} file") from error
    if head.format != FORMAT:
        raise ExportInvalidError(f"the format is {head.format[:64]!r}", at="line 1", expected=FORMAT)
    if not head.whole:
        raise ExportInvalidError(
            "it is not a whole log", at="line 1", expected="an export from position 1 on: no stream, no later range"
        )
    return head, _checked(head, given)


def _checked(head: Head, lines: Iterator[bytes]) -> Iterator[Line]:
    chain, position = GENESIS, 0
    for number, text in enumerate(lines, 2):
        at = f"line {number}"
        try:
            line = _LINE.decode(text)
            state = bytes(line.event).decode("utf-8")
            micros = to_micros(parse_instant(line.recorded_at, at="recorded_at"))
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, InstantInvalidError) as error:
            raise ExportInvalidError(f"it is no event: {error}", at=at, expected="an event") from error
        if line.position != position + 1:
            raise ExportInvalidError(f"position {line.position}", at=at, expected=f"position {position + 1}")
        chain = link_of_columns(
            chain,
            line.position,
            line.version,
            micros,
            line.event_id,
            line.causation_id,
            line.stream,
            line.topic,
            line.correlation_id,
            line.principal,
            state,
        )
        if chain.hex() != line.chain:
            raise ExportInvalidError("the event does not hash as it says", at=at, expected=f"chain {chain.hex()}")
        position = line.position
        yield line
    if position != head.events or chain.hex() != head.chain:
        raise ExportInvalidError(
            f"it ends with event {position} and chain {chain.hex()}",
            at=f"line {position + 1}",
            expected=f"event {head.events} and chain {head.chain}",
        )


class OpenExport:
    """An export under way: its head and all its lines, the head's first; close it when it is read or given up."""

    def __init__(self, head: Head, lines: Iterator[bytes], close: Callable[[], None]) -> None:
        self.head = head
        self.lines: Iterator[bytes] = itertools.chain((head_line(head),), lines)
        self.close = close


class ExportSource:
    """Opens exports, each on a snapshot of its own. Blocks."""

    def __init__(self, open_log: Callable[[], AbstractContextManager[ReadableLog]]) -> None:
        self._open_log = open_log

    def open(self, stream: str | None = None, first: int = 1, last: int | None = None) -> OpenExport:
        """An export of one stream, or of a range of positions. Raises `StreamNotFoundError`, `LogDamagedError`."""
        stack = ExitStack()
        try:
            log = stack.enter_context(self._open_log())
            head, lines = exported(log, first, last) if stream is None else exported_stream(log, stream)
        except BaseException:
            stack.close()
            raise
        return OpenExport(head, lines, stack.close)
