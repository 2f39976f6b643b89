"""Others who read the same topic and do the same work: bytewax, quixstreams, and a plain loop that keeps nothing.

Each reads in a process and, if it is a peer, in an environment of its own (`peers/`), driven by one script, which decodes,
calculates and writes results alike for all. The clock starts at a contender's first record, so joining a group and importing
cost it nothing, and stops when its results and its state are safe in its own sense. What must stay true: a figure stands only
for a reading that gave a result for every record, and the same last values as the plain loop. A peer that can't be had or fails
is left out and said so; processes and folders end with the reading.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from deployment.bench.contenders import CACHE, TrialFailedError
from deployment.bench.figures import aim, figure, median, ratio
from deployment.bench.peers.environments import PeerUnavailableError, peer_python

READING_SECONDS_MAX: Final = 600.0
"""Seconds after which a contender's reading is given up, at 200 000 records or fewer; in proportion above."""

READING_RECORDS: Final = 200_000

AIM_TO_BETTER_PEER: Final = 5.0

_PEERS: Final = Path(__file__).parent / "peers"


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """Who reads: the `*_stream.py` file, the pinned environment (None for our own), and whether identities are remembered."""

    name: str
    file: str
    peer: str | None = None
    dedupe: bool = True


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """What is read: all `records` of a topic, and the length of the EMA."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    length: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender's process answers; `digest` is of the last result of each key, `copies` what it took for repeated.

    `cpu_seconds` are those of all its threads between the same two instants.
    """

    seconds: float
    cpu_seconds: float
    results: int
    copies: int
    digest: str
    versions: dict[str, str]


PLAIN: Final = Reader(name="plain loop", file="plain_stream.py")
READERS: Final = (
    Reader(name="bytewax", file="bytewax_stream.py", peer="bytewax"),
    Reader(name="quixstreams", file="quixstreams_stream.py", peer="quixstreams"),
    Reader(name="bytewax, no dedupe", file="bytewax_stream.py", peer="bytewax", dedupe=False),
    Reader(name="quixstreams, no dedupe", file="quixstreams_stream.py", peer="quixstreams", dedupe=False),
)
NOTES: Final = (
    "plain loop: consume(500), decode, a set of identities, EMA, results to a file; no state is kept.",
    "bytewax: recovery store, an epoch of a second. quixstreams: RocksDB and changelog topic, a commit each second.",
    "Neither deduplicates by identity: our code in their state does it, forgetting nothing; 'no dedupe' is without it.",
)


class Contest:
    """The readers that can be had, and what each read so far; used by one thread."""

    def __init__(self, readers: Sequence[Reader], report: Callable[[str], None]) -> None:
        """Make the environments, which may take minutes at the first time."""
        self.notes: list[str] = []
        self._report = report
        self._rates: dict[str, list[float]] = {}
        self._micros: dict[str, list[float]] = {}
        self._versions: dict[str, dict[str, str]] = {}
        self._pythons: dict[str, Path] = {}
        self._readers: list[Reader] = []
        for reader in (PLAIN, *readers) if readers else ():
            try:
                self._pythons[reader.name] = _python(reader, report)
            except PeerUnavailableError as error:
                self.notes.append(f"{reader.name} was not measured: {error}")
            else:
                self._readers.append(reader)

    def measure(self, topic: Topic) -> None:
        """Let each reader read the topic once. One that fails is out of the contest, with a note."""
        digest = ""
        for reader in tuple(self._readers):
            try:
                done = read_once(reader, self._pythons[reader.name], topic)
                digest = digest or done.digest
                checked(done, topic.records, digest, reader.name)
            except TrialFailedError as error:
                self._dropped(reader, error)
                continue
            rate = topic.records / done.seconds
            self._report(f"stream: {reader.name} {rate:,.0f}/s")
            self._rates.setdefault(reader.name, []).append(rate)
            self._micros.setdefault(reader.name, []).append(done.cpu_seconds / topic.records * 1e6)
            self._versions[reader.name] = done.versions

    def figures(self, bare: Sequence[float]) -> list[dict[str, Any]]:
        """Records per second of each, with the ratio to the bare loop's."""
        return [figure(name, rates, "records/s", ratio=ratio(rates, bare)) for name, rates in self._rates.items()]

    def processor(self) -> list[dict[str, Any]]:
        """Processor time of each, the broker's and the database's not counted."""
        return [figure(reader.name, self._micros[reader.name], "µs/record") for reader in self._readers]

    def aims(self, ours: Sequence[float]) -> list[dict[str, Any]]:
        """Ours to the better of the peers that do the whole work; nothing if none is left."""
        peers = [self._rates[each.name] for each in self._readers if each.peer and each.dedupe]
        if not peers:
            return []
        return [
            aim("worker to the better of bytewax and quixstreams", to_better(ours, peers), at_least=AIM_TO_BETTER_PEER)
        ]

    @property
    def versions(self) -> dict[str, dict[str, str]]:
        """What each reader is, by name."""
        return {reader.name: self._versions[reader.name] for reader in self._readers if reader.dedupe}

    def _dropped(self, reader: Reader, error: TrialFailedError) -> None:
        self._report(f"stream: {error}")
        self.notes.append(f"{reader.name} failed and was left out: {error}")
        self._readers.remove(reader)
        self._rates.pop(reader.name, None)


def to_better(ours: Sequence[float], peers: Sequence[Sequence[float]]) -> float:
    """Ours to the best of the peers, repeat by repeat; the median."""
    return median([mine / max(others) for mine, *others in zip(ours, *peers, strict=True)])


def read_once(reader: Reader, python: Path, topic: Topic) -> Reading:
    """Have the reader read the whole topic in a process of its own. Raises `TrialFailedError`."""
    with tempfile.TemporaryDirectory(prefix="finaz-bench-") as folder:
        plan = {**msgspec.structs.asdict(topic), "dedupe": reader.dedupe, "folder": folder}
        command = [str(python), "-I", str(_PEERS / "stream_driver.py"), str(_PEERS / reader.file), json.dumps(plan)]
        limit = READING_SECONDS_MAX * max(1.0, topic.records / READING_RECORDS)
        try:
            done = subprocess.run(command, capture_output=True, cwd=folder, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            raise TrialFailedError(f"not done after {limit:.0f} s", at=reader.name) from None
    if done.returncode != 0:
        text = done.stderr.decode("utf-8", "replace").strip()[-1000:]
        raise TrialFailedError(f"ended with status {done.returncode}: {text}", at=reader.name)
    return parse_reading(done.stdout, at=reader.name)


def parse_reading(output: bytes, *, at: str) -> Reading:
    """The last line that a reader's process wrote; what its libraries print before is passed over. Raises `TrialFailedError`."""
    last = output.strip().rpartition(b"\n")[2]
    try:
        return msgspec.json.decode(last, type=Reading)
    except msgspec.MsgspecError as error:
        raise TrialFailedError(f"unreadable answer {last[-200:]!r}: {error}", at=at) from error


def checked(reading: Reading, records: int, digest: str, name: str) -> None:
    """Refuse a reading that lost, repeated or miscalculated something. Raises `TrialFailedError`."""
    if (reading.results, reading.copies) != (records, 0):
        raise TrialFailedError(f"{reading.results} results, {reading.copies} copies of {records} records", at=name)
    if reading.digest != digest:
        raise TrialFailedError("the last results differ from the plain loop's", at=name)
    if reading.seconds <= 0.0:
        raise TrialFailedError(f"took {reading.seconds} s", at=name)


def _python(reader: Reader, report: Callable[[str], None]) -> Path:
    return Path(sys.executable) if reader.peer is None else peer_python(reader.peer, CACHE, report)
