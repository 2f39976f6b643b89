"""Events are for ever: one stored sample of each topic is decoded by every later version of the code."""

import importlib
import pkgutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

import domain
from domain import events
from domain.canonical import canonical, parse
from domain.errors import UndecodableEventError, UnknownTopicError
from domain.events import Event, decode, encode, registered, topics, upcasts
from projections.folding import batch_of
from projections.log import StoredEvent
from projections.registry import PROJECTIONS

SAMPLES = Path(__file__).parents[3] / "fixtures" / "events"

for module in pkgutil.walk_packages(domain.__path__, "domain."):
    importlib.import_module(module.name)

TOPICS = list(topics())


def test_every_topic_has_a_sample_and_every_sample_a_topic() -> None:
    """A topic without a sample could change unseen; a sample without a topic was lost."""
    assert sorted(path.name.removesuffix(".json") for path in SAMPLES.glob("*.json")) == TOPICS


@pytest.mark.parametrize("topic", TOPICS)
def test_a_stored_sample_is_read_today_and_written_the_same(topic: str) -> None:
    """What was stored is decoded, and if it is of the present version, encodes to the very same bytes."""
    stored = (SAMPLES / f"{topic}.json").read_bytes().rstrip(b"\n")
    assert canonical(parse(stored)) == stored
    event = decode(topic, stored)
    if event.topic == topic:
        assert encode(event) == stored


@pytest.mark.parametrize("topic", TOPICS)
def test_a_document_that_does_not_fit_is_refused_by_name(topic: str) -> None:
    """An unknown field, a missing one, a wrong type: never turned into a default."""
    stored = parse((SAMPLES / f"{topic}.json").read_bytes())
    first = next(iter(stored))
    for bad in ({**stored, "surprise": 1}, {**stored, first: [{}]}, [stored], {}):
        with pytest.raises(UndecodableEventError) as refused:
            decode(topic, canonical(bad))
        assert refused.value.at == topic
    with pytest.raises(UndecodableEventError):
        decode(topic, b"{")


def test_an_unknown_topic_is_an_error_and_never_skipped() -> None:
    """A log written by newer code stops an older reader with the topic's name."""
    with pytest.raises(UnknownTopicError) as refused:
        decode("run.teleported.v1", b"{}")
    assert refused.value.at == "run.teleported.v1"


def test_old_versions_are_upcast_on_every_read_through_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """v1 → v2 → v3; a topic taken twice is refused at import. Other tests see nothing of these topics."""
    monkeypatch.setattr(events, "_TYPES", dict(events._TYPES))
    monkeypatch.setattr(events, "_UPCASTERS", dict(events._UPCASTERS))

    @registered
    class Measured(Event, frozen=True, kw_only=True):
        topic = "test.measured.v3"
        metres: float
        unit: str

    @upcasts("test.measured.v1", "test.measured.v2")
    def centimetres_to_metres(document: dict[str, float]) -> dict[str, float]:
        return {"metres": document["centimetres"] / 100}

    @upcasts("test.measured.v2", "test.measured.v3")
    def name_the_unit(document: dict[str, object]) -> dict[str, object]:
        return {**document, "unit": "m"}

    assert decode("test.measured.v1", b'{"centimetres":250}') == Measured(metres=2.5, unit="m")
    assert decode("test.measured.v2", b'{"metres":2.5}') == Measured(metres=2.5, unit="m")
    assert isinstance(msgspec.to_builtins(Measured(metres=1.0, unit="m")), dict)
    with pytest.raises(UndecodableEventError):
        decode("test.measured.v2", b'{"feet":2.5}')
    for again in ("test.measured.v1", "test.measured.v3"):
        with pytest.raises(ValueError, match="twice"):
            upcasts(again, "test.measured.v9")(centimetres_to_metres)
    with pytest.raises(ValueError, match="twice"):
        registered(Measured)


@pytest.mark.parametrize("path", sorted((SAMPLES / "earlier").glob("*.json")), ids=lambda path: path.name)
def test_what_was_stored_before_a_field_was_there_is_read(path: Path) -> None:
    """A field that came later has its default, and everything else of the event is as it was stored."""
    stored = parse(path.read_bytes())
    event = decode(path.name.removesuffix(".json"), canonical(stored))
    assert _has(parse(encode(event)), stored)


def _has(value: Any, part: Any) -> bool:
    """Whether all of `part` stands in `value`."""
    if isinstance(part, dict):
        return all(key in value and _has(value[key], item) for key, item in part.items())
    return bool(value == part)


def lineage(topic: str) -> tuple[str, int]:
    """A topic without its version, and the version."""
    name, _, version = topic.rpartition(".v")
    return name, int(version)


def test_no_version_of_a_topic_is_missing() -> None:
    """v3 is read, so v1 and v2 are: somebody's log has them. Each is upcast to the newest, which alone is written."""
    versions: dict[str, set[int]] = {}
    for topic in TOPICS:
        name, version = lineage(topic)
        versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if found != set(range(1, max(found) + 1))} == {}
    for topic in TOPICS:
        name, _ = lineage(topic)
        event = decode(topic, (SAMPLES / f"{topic}.json").read_bytes())
        assert lineage(event.topic) == (name, max(versions[name]))


def test_every_projection_takes_every_event() -> None:
    """Which rows an event touches is told, or that it touches none, for every event there is: no model breaks on a new one."""
    for position, topic in enumerate(TOPICS, 1):
        document = (SAMPLES / f"{topic}.json").read_text()
        stored = StoredEvent(position, "a/stream", 1, UUID(int=position), datetime.now(UTC), topic, document)
        for projection in PROJECTIONS.values():
            assert batch_of(projection.model, (stored,), position).failure is None, (projection.name, topic)
