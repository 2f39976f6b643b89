"""The bytes of an omitted record, as they are kept: canonical JSON in CAS, by topic, partition and offset.

What must stay true: every record that a broker can give can be kept and comes back as it was, whatever its bytes are. Pure.
"""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64Error
from typing import Any, Final

import msgspec

from domain.canonical import canonical
from domain.stream.errors import CheckpointInvalidError
from domain.stream.records import StreamRecord

QUARANTINE_FORMAT: Final = "FINAZ_QUARANTINED_RECORD_V1"


class Quarantined(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An omitted record. `key`, `value`, and the headers' names and values are base64: they may be no text at all."""

    format: str
    source: str
    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str], ...]


def encode_quarantined(source: str, record: StreamRecord) -> bytes:
    """The canonical bytes of the record at its place in the topic `source`."""
    headers = sorted(
        (_text(name.encode("utf-8", "surrogatepass")), _text(value)) for name, value in record.headers.items()
    )
    kept = Quarantined(
        format=QUARANTINE_FORMAT,
        source=source,
        partition=record.partition,
        offset=record.offset,
        key=None if record.key is None else _text(record.key),
        value=None if record.value is None else _text(record.value),
        headers=tuple(headers),
    )
    return canonical(msgspec.to_builtins(kept))


def parse_quarantined(data: bytes, at: str) -> tuple[str, StreamRecord]:
    """The topic and the record. `CheckpointInvalidError` at `at` (its address) for something else."""
    try:
        kept = msgspec.json.decode(data, type=Quarantined)
        if kept.format != QUARANTINE_FORMAT:
            raise ValueError(kept.format)
        record = StreamRecord(
            partition=kept.partition,
            offset=kept.offset,
            key=_bytes(kept.key),
            value=_bytes(kept.value),
            headers={_some(name).decode("utf-8", "surrogatepass"): _some(value) for name, value in kept.headers},
        )
    except (msgspec.DecodeError, NotBase64Error, ValueError) as error:
        raise CheckpointInvalidError(f"no quarantined record: {error}", at=at, expected=QUARANTINE_FORMAT) from None
    return kept.source, record


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _some(text: str) -> bytes:
    return b64decode(text, validate=True)


def _bytes(text: str | None) -> Any:
    return None if text is None else _some(text)
