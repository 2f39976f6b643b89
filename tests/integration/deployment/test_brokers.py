"""Brokers on this machine survive whatever is killed, listen on loopback alone, and leave nothing behind."""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from deployment import jars
from deployment.brokers import process
from deployment.brokers.apache import apache_kafka
from deployment.brokers.embedded import embedded_broker
from deployment.brokers.jars import KAFKA_JARS
from deployment.brokers.process import PORT_TRIES_MAX, BrokerProcess, EmbeddedBrokerError, Recipe
from deployment.guarding import LOG_BYTES_MAX
from domain.stream.errors import BrokerUnavailableError, RecoveryBlockedError
from services.adapters.kafka import KafkaBroker
from services.broker import Marks, RecordSource
from tests.support.brokers import RunningBroker
from tests.support.processes import wait_gone

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes by pidfd, which is Linux")


@pytest.fixture(params=["embedded", "apache"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of broker that can run here."""
    if request.param == "apache" and (lacking := KAFKA_JARS.missing()) is not None:
        pytest.skip(f"Apache Kafka cannot run here: {lacking}")
    return str(request.param)


def made(kind: str, folder: Path | None = None, users: Path | None = None) -> BrokerProcess:
    return {"embedded": embedded_broker, "apache": apache_kafka}[kind](folder, users=users)


def owner(code: str, *arguments: str) -> "subprocess.Popen[str]":
    """A process of its own that owns a broker; it prints what the test waits for."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


OWNER = """
    import sys
    from deployment.brokers.apache import apache_kafka
    from deployment.brokers.embedded import embedded_broker
    broker = {"embedded": embedded_broker, "apache": apache_kafka}[sys.argv[1]]()
    broker.start()
    print(broker.pid, broker._guard.pid, broker.folder, flush=True)
    sys.stdin.read()
"""


def test_a_killed_owner_takes_broker_and_folder_along(kind: str) -> None:
    """SIGKILL gives nobody a chance to clean up; still the broker ends and its temporary folder is removed."""
    owning = owner(OWNER, kind)
    assert owning.stdout is not None
    pid, guard, folder = owning.stdout.readline().split()
    assert Path(folder).is_dir()
    owning.kill()
    for number in (int(pid), int(guard)):
        wait_gone(number)
    assert not Path(folder).exists()
    owning.communicate()


def test_a_killed_guard_leaves_no_orphan_and_a_folder_that_goes_on(kind: str, tmp_path: Path) -> None:
    """The kernel kills the broker with its guard; the folder's next start has the records, under the same address.

    Every port on which the broker takes connections is bound to loopback.
    """
    with made(kind, tmp_path / "broker") as broker:
        bootstrap, pid = broker.bootstrap, broker.pid
        assert pid is not None
        addresses = listening(pid)
        assert bootstrap.rpartition(":")[2] in {str(port) for _, port in addresses}
        assert {address for address, _ in addresses} <= {"127.0.0.1", "::ffff:127.0.0.1"}
        client = KafkaBroker(bootstrap)
        client.topics().create("kept", 2, {})
        publisher = client.publisher()
        publisher.send("kept", 1, b"key", b"value", {})
        publisher.flush(30)
        publisher.close()
        if kind == "embedded":
            broker.restart()  # it is not durable before an orderly stop
        assert broker.pid is not None
        assert broker._guard is not None
        broker._guard.kill()
        wait_gone(broker.pid)
    with made(kind, tmp_path / "broker") as broker:
        assert broker.bootstrap == bootstrap
        source = client.source("kept")
        assert source.marks() == {0: Marks(0, 0), 1: Marks(0, 1)}
        source.assign({0: 0, 1: 0})
        assert [record.value for record in source.poll(10, 30).records] == [b"value"]
        source.close()
        client.close()


def listening(pid: int) -> set[tuple[str, int]]:
    """The (address, port) pairs on which a process listens."""
    inodes = {
        os.readlink(place).removeprefix("socket:[").rstrip("]")
        for place in Path(f"/proc/{pid}/fd").iterdir()
        if os.readlink(place).startswith("socket:[")
    }
    found = set()
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                words = struct.pack(
                    f"={len(address) // 8}I", *(int(address[n : n + 8], 16) for n in range(0, len(address), 8))
                )
                found.add((socket.inet_ntop(family, words), int(port, 16)))
    return found


def test_what_the_embedded_broker_lost_is_noticed(tmp_path: Path) -> None:
    """Killed behind an acknowledgement, it may lose the record: a reader that was there, and a journal, are told, not misled."""
    with embedded_broker(tmp_path / "broker") as broker:
        client = KafkaBroker(broker.bootstrap)
        client.topics().create("lost", 1, {})
        broker.restart()
        source = client.source("lost")
        source.assign({0: 0})
        publisher = client.publisher()
        publisher.send("lost", 0, b"key", b"value", {})
        publisher.flush(30)
        publisher.close()
        assert [record.value for record in source.poll(10, 30).records] == [b"value"]
        broker.kill()
        broker.start()
        if client.topics().marks("lost", 1) == {0: Marks(0, 0)}:  # it is, unless the kill came late
            assert is_told_of_a_loss(source)
            with pytest.raises(RecoveryBlockedError):
                source.assign({0: 1})
        source.close()
        client.close()


def is_told_of_a_loss(source: RecordSource) -> bool:
    """Whether polls end in RECOVERY_BLOCKED before long, outages aside."""
    for _ in range(30):
        try:
            assert source.poll(10, 1.0).next_offsets == {}
        except BrokerUnavailableError:
            continue
        except RecoveryBlockedError:
            return True
    return False


def test_a_folder_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused, naming the process that has it, and disturbs nothing."""
    monkeypatch.setattr(process, "LOCK_SECONDS_MAX", 0.1)
    with embedded_broker(tmp_path / "broker") as broker:
        second = embedded_broker(tmp_path / "broker")
        with pytest.raises(EmbeddedBrokerError, match="in use by the process"):
            second.start()
        second.close()
        assert broker.is_running()


def test_a_shared_broker_lives_until_the_last_user_has_gone(tmp_path: Path) -> None:
    """Whoever holds the file's lock keeps it alive, whether or not they started it; then it ends, its folder too."""
    users = tmp_path / "users"
    handles = [os.open(users, os.O_RDWR | os.O_CREAT) for _ in range(2)]
    for handle in handles:
        fcntl.flock(handle, fcntl.LOCK_SH)
    broker = embedded_broker(tmp_path / "broker", users=users)
    broker.start()
    bootstrap, pid = broker.bootstrap, broker.pid
    assert pid is not None
    broker.close()
    os.close(handles[0])
    KafkaBroker(bootstrap).topics().reach()
    os.close(handles[1])
    wait_gone(pid)


def test_a_start_that_fails_says_why(kafka_broker: RunningBroker, tmp_path: Path) -> None:
    """The error ends with what the broker itself said, and nothing is left running."""
    broker = apache_kafka(tmp_path / "broker", settings={"log.segment.bytes": "no number"})
    with pytest.raises(EmbeddedBrokerError, match="no number"):
        broker.start()
    assert not broker.is_running()
    broker.close()


def test_a_port_that_somebody_took_is_drawn_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Between drawing a free port and binding it somebody may be faster: the first start of a folder tries others, a few times."""
    monkeypatch.setattr(process, "READY_ANSWER_SECONDS_MAX", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        drawn = [[taken.getsockname()[1]]]
        real = process.free_ports
        monkeypatch.setattr(process, "free_ports", lambda count: drawn.pop() if drawn else real(count))
        with embedded_broker(tmp_path / "broker") as broker:
            assert int(broker.bootstrap.rpartition(":")[2]) != taken.getsockname()[1]
            KafkaBroker(broker.bootstrap).topics().reach()
        assert drawn == []
        drawn = [[taken.getsockname()[1]] for _ in range(PORT_TRIES_MAX)]
        unlucky = embedded_broker(tmp_path / "unlucky")
        with pytest.raises(EmbeddedBrokerError, match="in use"):
            unlucky.start()
        unlucky.close()
    assert drawn == []


def test_a_log_beyond_its_limit_starts_anew(tmp_path: Path) -> None:
    """What a broker says in years does not fill the disk."""
    with embedded_broker(tmp_path / "broker") as broker:
        broker.stop()
        with (tmp_path / "broker" / "log").open("ab") as log:
            log.truncate(LOG_BYTES_MAX + 1)
        broker.start()
        assert (tmp_path / "broker" / "log").stat().st_size < LOG_BYTES_MAX


def test_a_start_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is not ready in time is killed, and the start says so; so is a command before it that doesn't end."""
    monkeypatch.setattr(process, "START_SECONDS_MAX", 0.3)
    sleep = ("/bin/sleep", "600")
    silent = Recipe("silent", 1, lambda _, __: (), lambda _, __: sleep)
    slow = Recipe("slow", 1, lambda _, __: [sleep], lambda _, __: sleep)
    for recipe in (silent, slow):
        broker = BrokerProcess(recipe, tmp_path / recipe.name)
        with pytest.raises(EmbeddedBrokerError, match=r"not ready within|ended with -9"):
            broker.start()
        assert not broker.is_running()
        broker.close()


def test_a_guard_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for it without end; closing kills it, and the kernel its broker."""
    broker = embedded_broker(tmp_path / "broker")
    broker.start()
    pid = broker.pid
    assert pid is not None
    assert broker._guard is not None
    os.kill(broker._guard.pid, signal.SIGSTOP)
    for name in ("START_SECONDS_MAX", "LOCK_SECONDS_MAX", "STOP_SECONDS_MAX", "REPLY_SECONDS_MARGIN"):
        monkeypatch.setattr(process, name, 0.1)
    with pytest.raises(EmbeddedBrokerError, match="does not answer"):
        broker.is_running()
    broker.close()
    wait_gone(pid)


def test_a_closed_one_has_no_address_and_no_second_life(tmp_path: Path) -> None:
    """Asking for the address before a start, or for anything after the end, is a typed error."""
    broker = embedded_broker(tmp_path / "broker")
    with pytest.raises(EmbeddedBrokerError):
        _ = broker.bootstrap
    broker.close()
    broker.close()
    with pytest.raises(EmbeddedBrokerError):
        broker.start()


# ------------------------------------------------------------------------------------------------ what it is made of


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EmbeddedBrokerError) as absent:
        embedded_broker()
    assert absent.value.expected is not None
    assert "FINAZ_KAFKA_BOOTSTRAP" in absent.value.expected


@pytest.fixture
def no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """An empty cache folder, and a `mvn` and a `java` that do what a shell script says; nothing else is on the PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("FINAZ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(programs))

    def program(name: str, script: str) -> None:
        place = programs / name
        place.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        place.chmod(0o755)

    return program  # type: ignore[return-value]


JAVA_17 = """echo 'openjdk version "17.0.15" 2025-04-15' >&2"""
COPIES = r"""for word; do case "$word" in -DoutputDirectory=*) folder="${word#*=}";; esac; done
mkdir -p "$folder"; echo '[INFO] Downloaded from there: kafka.jar'; touch "$folder/kafka_2.13-1.jar" """


def test_the_jars_are_copied_once_and_then_need_nobody(no_jars: Callable[..., None]) -> None:
    """The folder of jars is whole or absent; with it there, neither Maven nor a network is asked again."""
    assert KAFKA_JARS.missing() == "no java"
    no_jars("java", "echo 'java version \"1.8.0_372\"' >&2")
    assert KAFKA_JARS.missing() == "java 8, older than 17"
    no_jars("java", JAVA_17)
    assert KAFKA_JARS.missing() == "no mvn, and no jars in the cache folder"
    with pytest.raises(EmbeddedBrokerError, match="no Maven"):
        KAFKA_JARS.folder(quiet=True)
    no_jars("mvn", "echo '[ERROR] no such host'; exit 1")
    with pytest.raises(EmbeddedBrokerError, match="no such host"):
        KAFKA_JARS.folder(quiet=True)
    no_jars("mvn", "echo nothing; exit 0")
    with pytest.raises(EmbeddedBrokerError, match="status 0"):
        KAFKA_JARS.folder(quiet=True)
    no_jars("mvn", COPIES)
    folder = KAFKA_JARS.folder(quiet=True)
    assert [file.name for file in folder.iterdir()] == ["kafka_2.13-1.jar"]
    assert [place.suffix for place in folder.parent.iterdir() if place.is_dir()] == [folder.suffix]
    no_jars("mvn", "exit 1")
    assert KAFKA_JARS.folder(quiet=True) == folder
    assert KAFKA_JARS.missing() is None


def test_maven_that_hangs_is_given_up(no_jars: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying has a limit; what it left half-way is thrown away at the next try."""
    monkeypatch.setattr(jars, "MAVEN_SECONDS_MAX", 0.2)
    no_jars("mvn", COPIES + "\nexec sleep 600")
    with pytest.raises(EmbeddedBrokerError, match="-9"):
        KAFKA_JARS.folder(quiet=True)
    no_jars("mvn", COPIES)
    monkeypatch.setattr(jars, "MAVEN_SECONDS_MAX", 60.0)
    assert KAFKA_JARS.folder(quiet=True).is_dir()


def test_a_broker_that_ignores_a_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that hangs ends all the same, within the limit."""
    monkeypatch.setattr(process, "STOP_SECONDS_MAX", 0.3)
    with embedded_broker(tmp_path / "broker") as broker:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        broker.stop()
        assert not broker.is_running()
