"""What the benchmarks of the stream conclude from what processes answered and drills gathered. Nothing is measured here."""

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployment.bench import stream_peers, takeover
from deployment.bench.contenders import TrialFailedError
from deployment.bench.peers import environments
from deployment.bench.stream import Read
from deployment.bench.stream_memory import flatness
from deployment.bench.stream_peers import READERS, Contest, Reader, Reading, Topic
from deployment.drills.two_owners_evidence import Phase
from domain.market.ops_averages import ema_step

PEERS = Path(environments.__file__).parent
ANSWER = {"seconds": 2.0, "cpu_seconds": 1.0, "results": 10, "copies": 0, "digest": "d", "versions": {"python": "3"}}
RATES = st.lists(st.floats(1.0, 1e6), min_size=3, max_size=3)
TOPIC = Topic(bootstrap="nowhere:1", topic="t", partitions=4, records=10, length=20)


def silent(sentence: str) -> None:
    """Progress that nobody reads."""


def reading(**changed: Any) -> Reading:
    """What a reader answered that did everything right, but for what is changed."""
    return stream_peers.parse_reading(json.dumps(ANSWER | changed).encode(), at="x")


def test_an_answer_is_the_last_line_whatever_libraries_print_before() -> None:
    """Libraries print as they like."""
    output = b"a warning\n{not json}\n" + json.dumps(ANSWER).encode() + b"\n"
    assert stream_peers.parse_reading(output, at="x") == reading()


@pytest.mark.parametrize("output", [b"", b"nothing", b'{"seconds": 2.0}', b"{}\nTraceback"])
def test_no_answer_is_a_failed_trial_that_names_the_reader(output: bytes) -> None:
    """Never a figure."""
    with pytest.raises(TrialFailedError) as failed:
        stream_peers.parse_reading(output, at="somebody")
    assert failed.value.at == "somebody"


@pytest.mark.parametrize("changed", [{"results": 9}, {"results": 11}, {"copies": 1}, {"digest": "e"}, {"seconds": 0.0}])
def test_a_reading_that_lost_repeated_or_miscalculated_gives_no_figure(changed: dict[str, Any]) -> None:
    """Speed by leaving something out doesn't count."""
    stream_peers.checked(reading(), 10, "d", "x")
    with pytest.raises(TrialFailedError):
        stream_peers.checked(reading(**changed), 10, "d", "x")


@given(RATES, RATES, RATES)
def test_the_better_peer_is_the_faster_of_each_repeat(ours: list[float], one: list[float], other: list[float]) -> None:
    """So the ratio is never above the one to either peer in every repeat, and equal to it for a single peer."""
    both = stream_peers.to_better(ours, [one, other])
    assert both <= stream_peers.to_better(ours, [one])
    assert both <= stream_peers.to_better(ours, [other])
    assert stream_peers.to_better(one, [one, one]) == 1.0


def test_peers_that_cannot_be_had_or_fail_are_noted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's figure is lost, and no aim is judged without a peer."""

    def unavailable(peer: str, *_: Any) -> Path:
        if peer == "bytewax":
            raise environments.PeerUnavailableError("no wheel for this Python", at=peer)
        return Path("python")

    def read_once(reader: Reader, *_: Any) -> Reading:
        return reading(results=10 if reader.peer is None else 9)

    monkeypatch.setattr(stream_peers, "peer_python", unavailable)
    monkeypatch.setattr(stream_peers, "read_once", read_once)
    contest = Contest(READERS, silent)
    contest.measure(TOPIC)
    contest.measure(TOPIC)
    assert [figure["label"] for figure in contest.figures([5.0, 5.0])] == [stream_peers.PLAIN.name]
    assert contest.aims([50.0, 50.0]) == []
    assert [note.split(" ")[0] for note in contest.notes] == ["bytewax", "bytewax,", "quixstreams", "quixstreams,"]
    assert list(contest.versions) == [stream_peers.PLAIN.name]


def test_without_readers_nothing_is_made_and_nothing_said() -> None:
    """What tests and those without an index ask for."""
    contest = Contest((), silent)
    contest.measure(TOPIC)
    assert (contest.figures([1.0]), contest.aims([1.0]), contest.notes) == ([], [], [])


def test_memory_is_looked_at_by_the_first_commit_with_a_share_of_the_records() -> None:
    """Half, end, and their ratio."""
    read = Read(1.0, 1.0, ((10, 80.0), (50, 100.0), (90, 130.0), (100, 110.0)))
    assert (read.mebibytes_at(0.1), read.second_half_mebibytes, flatness(read)) == (80.0, 10.0, 1.1)


def test_a_takeover_is_measured_by_the_databases_clock() -> None:
    """From the death and from the lease's end by its last renewal, to the first commit under the next token."""
    assert takeover.takeover_of(phase(commits=True)) == (7.5, 1.5)
    with pytest.raises(TrialFailedError):
        takeover.takeover_of(phase(commits=False))


def phase(*, commits: bool) -> Phase:
    """A drill's kill: granted at 0, renewed at 2, killed at 2, over at 8, taken at 8.5, committed to at 9.5."""
    events = [
        ("lease.granted.v1", 0.0, {"token": 1, "ttl_seconds": 6.0}),
        ("lease.renewed.v1", 2.0, {"token": 1, "ttl_seconds": 6.0}),
        ("lease.granted.v1", 8.5, {"token": 2, "ttl_seconds": 6.0}),
        *([("checkpoint.committed.v1", 9.5, {"token": 2})] if commits else []),
    ]
    log = [{"topic": topic, "recorded_at": at(second), "event": event} for topic, second, event in events]
    return Phase(run_id="r", instants={"b2_killed": at(2.0)}, facts={}, actors={}, log=tuple(log), manifests={})


def at(second: float) -> str:
    """That second of a minute."""
    return f"2026-01-05T09:00:{int(second):02d}.{round(second % 1 * 1e6):06d}Z"


def driver() -> ModuleType:
    """The script that drives all readers, loaded as it is loaded in their environments."""
    spec = importlib.util.spec_from_file_location("stream_driver", PEERS / "stream_driver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DRIVER = driver()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 20))
def test_the_readers_ema_is_ours(values: list[float], length: int) -> None:
    """To the bit, from the seed on: they do the same work."""
    step: Any = ema_step
    state, scalars = [0, 0.0, 0.0], (0, 0.0, 0.0)
    for value in values:
        theirs = DRIVER.next_ema(state, length, value)
        scalars, ours = step.py_func(scalars, None, length, 2.0 / (length + 1), value)
        assert math.isnan(ours) if theirs is None else theirs == ours
