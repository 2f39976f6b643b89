"""Brokers for tests, started when the first test asks for one and ended when pytest ends.

| fixture | what it gives |
| --- | --- |
| `kafka_broker` | the Apache Kafka that all processes of this pytest run share; skips where there is no JDK 17 or no Maven |
| `embedded_broker` | an embedded broker, one per pytest process |
| `broker` | Apache Kafka where it can run, else the embedded one; the header of the run says which |
| `mortal_broker` | a broker of the test's own, of the same kind as `broker`, to `kill()`, `stop()`, `start()` and `restart()` |

The shared broker lives in a folder that the first pytest process makes. That process holds a lock as long as it lives; the
broker's guard ends the broker when nobody holds it any more. Where Java and Maven are found, a start that fails is an error, never
a reason to take the other broker.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SHARED = pytest.StashKey[Path]()
LOCK = pytest.StashKey[int]()
PREFIX = "finaz-shared-"
END_SECONDS_MAX = 60.0
ABANDONED_SECONDS = 60.0
"""A folder of this age on which nobody holds the lock belongs to a run that was killed."""
AUTO, APACHE, EMBEDDED = "auto", "apache", "embedded"


@dataclass(frozen=True)
class RunningBroker:
    """A broker that runs, and where."""

    name: str
    bootstrap: str


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--broker",
        metavar="apache|embedded|HOST:PORT",
        default=AUTO,
        help="the broker of tests: by itself Apache Kafka if it can run; a broker that runs already by its address",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--broker") == APACHE and (lacking := _lacking()) is not None:
        raise pytest.UsageError(f"--broker apache: {lacking}")
    given = getattr(config, "workerinput", {}).get("shared_broker")
    if given is not None:
        config.stash[SHARED] = Path(given)
        return
    _sweep()
    folder = config.stash[SHARED] = Path(tempfile.mkdtemp(prefix=PREFIX))
    config.stash[LOCK] = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(config.stash[LOCK], fcntl.LOCK_SH)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["shared_broker"] = str(node.config.stash[SHARED])


def pytest_unconfigure(config: pytest.Config) -> None:
    lock = config.stash.get(LOCK, None)
    if lock is None:
        return
    os.close(lock)
    folder = config.stash[SHARED]
    _wait_for_guard(folder / "broker" / "guard.lock")
    shutil.rmtree(folder, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    return f"broker: {broker_text(config)}"


def broker_text(config: pytest.Config) -> str:
    """Which broker `broker` gives in this run, and why."""
    from importlib import metadata

    from deployment.brokers.jars import KAFKA_JARS

    lacking = _lacking()
    if (given := given_broker(config)) is not None:
        return f"{given.name}, by --broker"
    if is_apache(config):
        return f"Apache Kafka {KAFKA_JARS.version()}, shared by all processes of this run"
    reason = f"{lacking} for Apache Kafka" if lacking else "asked for by --broker"
    return f"embedded, noida-db {metadata.version('noida-db')} ({reason})"


def is_apache(config: pytest.Config) -> bool:
    """Whether this run's `broker` is Apache Kafka."""
    chosen = config.getoption("--broker")
    return chosen == APACHE or (chosen == AUTO and _lacking() is None)


def given_broker(config: pytest.Config) -> RunningBroker | None:
    """The broker whose address --broker gives, if it gives one."""
    chosen = config.getoption("--broker")
    if chosen in (AUTO, APACHE, EMBEDDED):
        return None
    if ":" not in chosen:
        raise pytest.UsageError(f"--broker {chosen}: expected {APACHE}, {EMBEDDED} or HOST:PORT")
    return RunningBroker(f"the one at {chosen}", chosen)


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> RunningBroker:
    """The shared Apache Kafka."""
    from deployment.brokers.apache import apache_kafka

    lacking = _lacking()
    if lacking is not None:
        pytest.skip(f"Apache Kafka cannot run here: {lacking}")
    folder = pytestconfig.stash[SHARED]
    process = apache_kafka(folder / "broker", users=folder / "users")
    with (folder / "start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "broker" / "ports.json").exists():
            process.start()
    return RunningBroker(process.name, process.bootstrap)


@pytest.fixture(scope="session")
def embedded_broker() -> Iterator[RunningBroker]:
    """An embedded broker of this process."""
    from deployment.brokers.embedded import embedded_broker

    with embedded_broker() as process:
        yield RunningBroker(process.name, process.bootstrap)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> RunningBroker:
    """The broker of this run."""
    if (given := given_broker(request.config)) is not None:
        return given
    found: RunningBroker = request.getfixturevalue("kafka_broker" if is_apache(request.config) else "embedded_broker")
    return found


@pytest.fixture
def mortal_broker(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[Any]:
    """A `BrokerProcess` of the test's own."""
    from deployment.brokers.apache import apache_kafka
    from deployment.brokers.embedded import embedded_broker

    make = apache_kafka if is_apache(pytestconfig) else embedded_broker
    with make(tmp_path / "broker") as process:
        yield process


def _lacking() -> str | None:
    from deployment.brokers.jars import KAFKA_JARS

    return KAFKA_JARS.missing()


def _sweep() -> None:
    """Remove the folders of runs that were killed; their brokers have ended by themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / "users").open("r+") as users:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # somebody's who lives, or somebody else's
            continue


def _wait_for_guard(lock: Path) -> None:
    """Until the shared broker's guard has stopped it and ended, which its own lock tells; at once if it never started."""
    if not lock.exists():
        return
    deadline = time.monotonic() + END_SECONDS_MAX
    with lock.open("a") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            else:
                return
