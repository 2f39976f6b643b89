"""Java programs from Maven's repositories: jars copied once into the cache folder, used from there ever after.

Which jars stands in a `pom.xml`; the folder's name carries that file's hash, so another version is another folder. What must stay
true: a folder of jars is whole or absent (copied under another name, then renamed, under a lock); with the folder there, neither
Maven nor a network is needed. A crash half-way leaves a folder `….new` that the next try throws away.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deployment.progress import Progress
from deployment.settings import cache_folder, child_environment
from domain.errors import InfrastructureError

JAVA_VERSION_MIN: Final = 17

MAVEN_SECONDS_MAX: Final = 600.0
"""How long copying the jars may take, on a slow network."""

SAID_LINES_MAX: Final = 20
"""Lines of Maven's output that an error repeats."""


@dataclass(frozen=True)
class JarSet:
    """The jars of one program."""

    name: str
    """The folder's, without version and hash."""
    title: str
    """The program's, for people."""
    pom: Path
    version_property: str
    """Of `pom`: the version of the program."""
    main: str
    """Pattern of the jar without which there is nothing."""
    error: type[InfrastructureError] = InfrastructureError

    def version(self) -> str:
        """The version of the program that `pom` asks for."""
        found = re.search(rf"<{re.escape(self.version_property)}>([^<]+)<", self.pom.read_text("utf-8"))
        assert found is not None
        return found[1]

    def missing(self) -> str | None:
        """What this machine lacks to run the program, in words; None if it lacks nothing."""
        java = shutil.which("java")
        if java is None:
            return "no java"
        version = java_version(java)
        if version < JAVA_VERSION_MIN:
            return f"java {version}, older than {JAVA_VERSION_MIN}"
        if shutil.which("mvn") is None and not self._place(cache_folder()).exists():
            return "no mvn, and no jars in the cache folder"
        return None

    def folder(self, *, quiet: bool = False) -> Path:
        """The folder of the jars; fills it first, telling progress, if it isn't there. Raises `error`."""
        cache = cache_folder()
        place = self._place(cache)
        if place.exists():
            return place
        with self._locked(cache):
            if not place.exists():
                fresh = place.with_name(place.name + ".new")
                shutil.rmtree(fresh, ignore_errors=True)
                self._copy(fresh, quiet)
                fresh.rename(place)
        return place

    def _place(self, cache: Path) -> Path:
        return cache / f"{self.name}-{self.version()}-{hashlib.sha256(self.pom.read_bytes()).hexdigest()[:12]}"

    @contextmanager
    def _locked(self, cache: Path) -> Iterator[None]:
        """Let one process at a time fill the cache; the lock dies with its holder."""
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{self.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _copy(self, folder: Path, quiet: bool) -> None:
        """Let Maven copy the jars and all that they need into a folder, sums checked."""
        maven = shutil.which("mvn")
        if maven is None:
            raise self.error(f"there is no Maven to fetch {self.title} with", expected="mvn on the PATH")
        command = [
            maven,
            "-B",
            "-C",
            "-f",
            str(self.pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
        ]
        with Progress(f"files of {self.title}", quiet=quiet) as progress:

            def hear(line: str) -> None:
                if "Downloaded from" in line:
                    progress.advance()

            status, said = _ran(command, hear)
        if status != 0 or not any(folder.glob(self.main)):
            raise self.error(f"Maven ended with status {status}:\n" + "\n".join(said), at=str(self.pom))


def java_version(java: str) -> int:
    """The major version of a Java program, 0 if it does not say."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def _ran(command: list[str], hear: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run to the end, within `MAVEN_SECONDS_MAX`; the exit status and the last lines of what it said."""
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
        for line in process.stdout:
            said = [*said[1 - SAID_LINES_MAX :], line.rstrip()]
            hear(line)
        return process.wait(), said
    finally:
        late.cancel()
        process.kill()
        process.wait()
