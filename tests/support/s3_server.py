"""A real S3-compatible server for tests: S3Proxy over a folder, on loopback, with signed requests.

The fixture `s3` starts it once in a pytest process and skips where there is no JDK 17 or no Maven. A bucket is a folder below
`S3Server.folder`, an object a file, so that a test can damage what is stored.
"""

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from deployment.jars import JarSet
from services.adapters.s3 import Bucket

JARS = JarSet("s3proxy", "S3Proxy", Path(__file__).with_name("s3proxy.pom.xml"), "s3proxy.version", "s3proxy-*.jar")
ACCESS_KEY, SECRET_KEY = "finaz-tests", "a-secret-of-tests"
START_SECONDS_MAX = 60.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class S3Server:
    """A server that runs."""

    endpoint: str
    folder: Path

    def bucket(self, prefix: str = "") -> Bucket:
        """A bucket of its own, empty."""
        name = f"tests-{uuid4().hex}"
        (self.folder / name).mkdir()
        return Bucket(name, prefix, endpoint=self.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)

    def file(self, bucket: Bucket, key: str) -> Path:
        """Where an object is stored."""
        return self.folder / bucket.name / bucket.prefix / key


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The server of this pytest process."""
    if (lacking := JARS.missing()) is not None:
        pytest.skip(f"{lacking} for S3Proxy")
    folder = Path(tempfile.mkdtemp(prefix="finaz-s3-"))
    port = _free_port()
    process = _started(folder, port)
    try:
        _wait_until_it_listens(process, port, folder / "log")
        yield S3Server(f"http://127.0.0.1:{port}", folder / "buckets")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    (folder / "buckets").mkdir()
    (folder / "s3proxy.conf").write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{port}\n"
        "s3proxy.authorization=aws-v4\n"
        f"s3proxy.identity={ACCESS_KEY}\n"
        f"s3proxy.credential={SECRET_KEY}\n"
        "jclouds.provider=filesystem-nio2\n"
        f"jclouds.filesystem.basedir={folder / 'buckets'}\n"
    )
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS.folder()}/*", "org.gaul.s3proxy.Main"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--properties", str(folder / "s3proxy.conf")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_pytest if sys.platform == "linux" else None,
        )


def _die_with_pytest() -> None:
    """Even if pytest is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"S3Proxy does not start: {log.read_text(errors='replace')[-2000:]}") from None
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
