"""The jars of Apache Kafka: copied once from Maven's repositories into the cache folder, used from there ever after.

Which jars stands in `deployment/pom.xml`; the folder's name carries that file's hash, so another version is another folder. What
must stay true: a folder of jars is whole or absent (copied under another name, then renamed, under a lock); with the folder there,
neither Maven nor a network is needed. A crash half-way leaves a folder `….new` that the next try throws away.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deployment.brokers.process import EmbeddedBrokerError
from deployment.progress import Progress
from deployment.settings import cache_folder, child_environment

POM: Final = Path(__file__).parents[1] / "pom.xml"
JAVA_VERSION_MIN: Final = 17

MAVEN_SECONDS_MAX: Final = 600.0
"""How long copying the jars may take, on a slow network."""

SAID_LINES_MAX: Final = 20
"""Lines of Maven's output that an error repeats."""


def kafka_version() -> str:
    """The version of Apache Kafka that `pom.xml` asks for."""
    found = re.search(r"<kafka\.version>([^<]+)<", POM.read_text("utf-8"))
    assert found is not None
    return found[1]


def missing() -> str | None:
    """What this machine lacks to run Apache Kafka, in words; None if it lacks nothing."""
    java = shutil.which("java")
    if java is None:
        return "no java"
    version = java_version(java)
    if version < JAVA_VERSION_MIN:
        return f"java {version}, older than {JAVA_VERSION_MIN}"
    if shutil.which("mvn") is None and not _place(cache_folder()).exists():
        return "no mvn, and no jars in the cache folder"
    return None


def java_version(java: str) -> int:
    """The major version of a Java program, 0 if it does not say."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def kafka_jars(*, quiet: bool = False) -> Path:
    """The folder of the jars; fills it first, telling progress, if it isn't there. Raises `EmbeddedBrokerError`."""
    cache = cache_folder()
    place = _place(cache)
    if place.exists():
        return place
    with _locked(cache):
        if not place.exists():
            fresh = place.with_name(place.name + ".new")
            shutil.rmtree(fresh, ignore_errors=True)
            _copy(fresh, quiet)
            fresh.rename(place)
    return place


def _place(cache: Path) -> Path:
    return cache / f"apache-kafka-{kafka_version()}-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"


def _copy(folder: Path, quiet: bool) -> None:
    """Let Maven copy the jars and all that they need into a folder, sums checked."""
    maven = shutil.which("mvn")
    if maven is None:
        raise EmbeddedBrokerError("there is no Maven to fetch Apache Kafka with", expected="mvn on the PATH")
    command = [maven, "-B", "-C", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=child_environment(),
    )
    late = threading.Timer(MAVEN_SECONDS_MAX, process.kill)
    late.start()
    said: list[str] = []
    try:
        assert process.stdout is not None
        with Progress("files of Apache Kafka", quiet=quiet) as progress:
            for line in process.stdout:
                said = [*said[1 - SAID_LINES_MAX :], line.rstrip()]
                if "Downloaded from" in line:
                    progress.advance()
        status = process.wait()
    finally:
        late.cancel()
        process.kill()
        process.wait()
    if status != 0 or not any(folder.glob("kafka_*.jar")):
        raise EmbeddedBrokerError(f"Maven ended with status {status}:\n" + "\n".join(said), at=str(POM))


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Let one process at a time fill the cache; the lock dies with its holder."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "apache-kafka.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
