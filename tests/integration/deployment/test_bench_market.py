"""The benchmarks of ops, imports and replays run to their end and answer in the agreed form, too small to say how fast."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deployment.bench import imports, ops, replay, staging
from domain.market.ops import OPS
from services.adapters.kafka import KafkaBroker
from tests.support.brokers import RunningBroker


def test_ops_are_measured_each_against_somebody() -> None:
    """Every op has a figure with a ratio, and gave nearly the same values as its reference."""
    told: list[str] = []
    result = ops.run(1, 0.0005, told.append)
    assert json.loads(json.dumps(result)) == result
    assert {figure["label"].split()[0] for figure in result["figures"]} == {name for name, _ in OPS}
    assert all(figure["ratio"] > 0 and figure["largest_difference"] < 1e-3 for figure in result["figures"])
    assert len(told) == len(result["figures"])


def test_imports_are_measured_apart() -> None:
    """Speed and peak memory of each format and size, each from a process of its own."""
    result = imports.run(1, 0.0005, lambda sentence: None)
    assert json.loads(json.dumps(result)) == result
    assert [figure["unit"] for figure in result["figures"]] == ["rows/s", "MB"] * 3
    assert all(50 < figure["value"] < 2000 for figure in result["figures"] if figure["unit"] == "MB")


def test_replays_are_measured_into_log_topic_and_memory(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each a figure of its own; the topic against a bare producer."""

    @contextmanager
    def running() -> Iterator[tuple[str, KafkaBroker]]:
        client = KafkaBroker(broker.bootstrap)
        yield broker.name, client
        client.close()

    monkeypatch.setattr(replay, "_broker", running)
    told: list[str] = []
    result = replay.run(1, 0.0, told.append)
    assert json.loads(json.dumps(result)) == result
    assert len(result["figures"]) == len(told) == 5
    assert all(figure["value"] > 0 for figure in result["figures"])
    assert [figure["label"] for figure in result["figures"] if figure["ratio"]] == ["into the topic"]
    assert replay.EVENTS_MIN * 0.9 < result["arrivals"] < replay.EVENTS_MIN * 1.1


def test_staging_is_measured_against_a_bare_insert() -> None:
    """Each shape has a figure with a ratio and an aim, from a process of its own."""
    result = staging.run(1, 0.0, lambda sentence: None)
    assert json.loads(json.dumps(result)) == result
    assert len(result["figures"]) == len(result["aims"]) == len(staging.SHAPES)
    assert all(figure["value"] > 0 and figure["ratio"] > 0 for figure in result["figures"])
