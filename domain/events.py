"""Events: what happened, for ever.

An event is a frozen struct with an explicit, permanent topic (`run.started.v1`), never a module path: moving code must not
strand stored facts. A new meaning is a new version of the topic with an upcaster from the old one.

What must stay true: every topic is registered when its module is imported, so a fresh process decodes whatever the log holds;
an unknown topic is a typed error, never skipped; decoding is strict, so a document that doesn't fit stops its reader instead of
turning into defaults. Instants inside events are aware and canonical text; when an event was recorded is not part of it: the
database stamps `Recorded.recorded_at`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import msgspec

from domain.canonical import parse
from domain.documents import canonical_struct
from domain.errors import UndecodableEventError, UnknownTopicError


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True, gc=False):
    """Base of all event payloads. Subclasses state their `topic` and are registered with `@registered`.

    `gc=False` here and below: frozen trees of values have no cycles, and readers of long logs hold many of them.
    """

    topic: ClassVar[str]


E = TypeVar("E", bound=Event)
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

_TYPES: dict[str, type[Event]] = {}
_UPCASTERS: dict[str, tuple[str, Upcaster]] = {}
_DECODERS: dict[str, msgspec.json.Decoder[Event]] = {}
"""Of topics that were decoded before."""


class Metadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why an event exists and who asked: kept beside each event, decided by nobody."""

    causation_id: UUID | None = None
    """The event that caused it, when a process manager or a worker reacted to one."""
    correlation_id: str | None = None
    """The request or run that all of this belongs to."""
    principal: str | None = None
    """On whose behalf."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event as the log holds it: the fact and its place.

    `position` counts the whole log from 1 without gaps; `version` counts the stream from 1; `recorded_at` is the database's
    clock when it was appended.
    """

    position: int
    stream: str
    version: int
    event_id: UUID
    recorded_at: datetime
    event: Event
    metadata: Metadata = Metadata()

    @property
    def originator_id(self) -> str:
        """The stream, by the library's name."""
        return self.stream

    @property
    def originator_version(self) -> int:
        """The version, by the library's name."""
        return self.version


def registered(event_type: type[E]) -> type[E]:
    """Class decorator: make the type decodable by its topic. A topic taken twice is a bug and refused at import."""
    topic = event_type.topic
    if topic in _TYPES or topic in _UPCASTERS:
        raise ValueError(f"topic {topic!r} is registered twice")
    _TYPES[topic] = event_type
    return event_type


def upcasts(old_topic: str, new_topic: str) -> Callable[[Upcaster], Upcaster]:
    """Decorator: `old_topic` documents are turned into `new_topic` ones by the function, on every read, for ever."""

    def register(upcaster: Upcaster) -> Upcaster:
        if old_topic in _TYPES or old_topic in _UPCASTERS:
            raise ValueError(f"topic {old_topic!r} is registered twice")
        _UPCASTERS[old_topic] = (new_topic, upcaster)
        return upcaster

    return register


def topics() -> Iterator[str]:
    """Every topic that this version of the code can read, old versions included, sorted."""
    return iter(sorted({*_TYPES, *_UPCASTERS}))


def encode(event: Event) -> bytes:
    """The stored document of an event: canonical JSON. Raises `CanonicalError` for what has no canonical form."""
    return canonical_struct(event)


def decode(topic: str, document: bytes | str) -> Event:
    """The event that a stored document stands for, upcast to the present version.

    Raises `UnknownTopicError` or `UndecodableEventError`, naming the topic and the field.
    """
    try:
        decoder = _DECODERS.get(topic) or _decoder_of(topic)
        return _decode_upcast(topic, parse(document)) if decoder is None else decoder.decode(document)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UndecodableEventError(str(error), at=topic, expected="the form that the topic demands") from error


def _decoder_of(topic: str) -> msgspec.json.Decoder[Event] | None:
    if topic not in _TYPES:
        return None
    return _DECODERS.setdefault(topic, msgspec.json.Decoder(_TYPES[topic]))


def _decode_upcast(topic: str, value: Any) -> Event:
    seen = topic
    while topic in _UPCASTERS:
        topic, upcaster = _UPCASTERS[topic]
        value = upcaster(value)
    if topic not in _TYPES:
        raise UnknownTopicError(
            f"the topic {seen!r} is not known to this version of the code", at=seen, expected="a registered topic"
        )
    return msgspec.convert(value, _TYPES[topic])
