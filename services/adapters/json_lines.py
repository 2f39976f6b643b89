"""JSON Lines as tables: one object per line, read in blocks.

What must stay true: a line is read as `domain.market.records` reads a record: keys once, one rule for missing values, NaN and
infinities allowed in value columns and nowhere else. Blocks of plain lines take a fast reader; at the least sign of anything else
the strict one reads the block again and names the row and column of what it refuses.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from domain.market.errors import ImportInvalidError, RecordInvalidError, ValueUnreadableError
from domain.market.records import COLUMNS_MAX, FIELDS, parse_members, to_value
from services.import_options import ImportOptions

READERS_MAX: Final = 64
"""Sets of keys whose compiled readers are kept."""


def read_json_lines(stream: Any, block_bytes: int, options: ImportOptions) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of rows, each with the number of its first. `ImportInvalidError` names the row and column of the first bad cell."""
    fields = [getattr(options, field) or field for field in FIELDS]
    wanted = None if options.values is None else frozenset(options.values.values())
    keys: tuple[str, ...] = ()
    first = 1
    for block in _blocks(stream, block_bytes):
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        batch = _read_fast(block, count, keys, fields) if keys else None
        if batch is None:
            batch = _read_strictly(block, first, fields, wanted)
            keys = tuple(batch.schema.names)
        yield first, batch
        first += count


def _blocks(stream: Any, block_bytes: int) -> Iterator[bytes]:
    """The stream cut at line ends."""
    rest = b""
    while block := stream.read(block_bytes):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > block_bytes:
            raise ImportInvalidError("a line is too long", at="the source", expected=f"at most {block_bytes} bytes")
    if rest:
        yield rest


@lru_cache(maxsize=READERS_MAX)
def _decoder(keys: tuple[str, ...], fields: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    kinds = dict.fromkeys(fields, str | int)
    members = [(f"c{index}", kinds.get(key, float | None)) for index, key in enumerate(keys)]
    rename = {f"c{index}": key for index, key in enumerate(keys)}
    line = msgspec.defstruct("Line", members, rename=rename, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(line)


def _read_fast(block: bytes, count: int, keys: tuple[str, ...], fields: Sequence[str]) -> pa.RecordBatch | None:
    if block.count(b'":') - block.count(b'\\":') != count * len(keys) or b"\\u" in block or b"\n\n" in block:
        return None
    if any("\\" in key or '"' in key for key in keys):
        return None
    try:
        lines = _decoder(keys, tuple(fields)).decode_lines(block)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if len(lines) != count:
        return None
    columns = {}
    for index, key in enumerate(keys):
        cells = [getattr(line, f"c{index}") for line in lines]
        column = _field_column(cells) if key in fields else np.array(cells, dtype=np.float64)
        if column is None:
            return None
        columns[key] = column
    return pa.RecordBatch.from_pydict(columns)


def _read_strictly(block: bytes, first: int, fields: Sequence[str], wanted: frozenset[str] | None) -> pa.RecordBatch:
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    rows = [_row(line, first + index, fields, wanted) for index, line in enumerate(lines)]
    keys = sorted({key for row in rows for key in row})
    if len(keys) > COLUMNS_MAX:
        raise ImportInvalidError(f"{len(keys)} columns", at=f"row {first}", expected=f"at most {COLUMNS_MAX}")
    columns = {}
    for key in keys:
        cells = [row.get(key) for row in rows]
        column = _field_column(cells) if key in fields else np.array(cells, dtype=np.float64)
        if column is None:
            kind = type(cells[0])
            odd = (i for i, cell in enumerate(cells) if type(cell) is not kind or kind not in (str, int))
            index = next(odd, 0)
            shown = f"{cells[index]!r}"[:64]
            raise ImportInvalidError(
                shown, at=f"row {first + index}, column {key}", expected="text, or a 64-bit integer"
            )
        columns[key] = column
    return pa.RecordBatch.from_pydict(columns)


def _row(line: bytes, number: int, fields: Sequence[str], wanted: frozenset[str] | None) -> dict[str, Any]:
    at = f"row {number}"
    try:
        members = parse_members(line, at)
        row = {key: members[key] for key in fields if key in members}
        for key in members.keys() - set(fields) if wanted is None else wanted & members.keys():
            row[key] = to_value(members[key], at=f"{at}, column {key}")
    except (RecordInvalidError, ValueUnreadableError) as error:
        raise ImportInvalidError(error.detail, at=error.at, expected=error.expected) from None
    return row


def _field_column(cells: list[Any]) -> Any:
    """A column of texts or of 64-bit integers, or None where the cells are neither or mixed."""
    kinds = set(map(type, cells))
    if kinds == {str}:
        return pa.array(cells, type=pa.string())
    if kinds == {int} and all(-(2**63) <= cell < 2**63 for cell in cells):
        return pa.array(cells, type=pa.int64())
    return None
