"""Environments for the peers: each pinned by hash, made once under a cache folder, apart from ours and from each other.

What must stay true: nothing is installed that the requirement file beside this module doesn't name with its hash; our own
environment is never touched; `make test` never comes here. A crash half-way leaves a folder without its `complete` mark, which
the next call removes and makes again.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from domain.errors import InfrastructureError

INSTALL_SECONDS_MAX: Final = 600.0
"""Seconds that installing one peer may take."""

_REQUIREMENTS: Final = Path(__file__).parent
_COMPLETE: Final = "complete"


class PeerUnavailableError(InfrastructureError):
    """A peer's environment could not be made, most often because the package index can't be reached."""

    code = "PEER_UNAVAILABLE"


def peer_python(peer: str, cache: Path, report: Callable[[str], None]) -> Path:
    """The Python of the peer's environment, which is made if it isn't there. Raises `PeerUnavailableError`."""
    requirements = _REQUIREMENTS / f"{peer}.txt"
    pins = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache.absolute() / f"{peer}-{pins}"
    python = folder / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / f"{peer}.lock"):
        if not (folder / _COMPLETE).exists():
            report(f"making an environment for {peer}")
            shutil.rmtree(folder, ignore_errors=True)
            _call(peer, [sys.executable, "-m", "venv", str(folder)])
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
            _call(peer, [*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", str(requirements)])
            (folder / _COMPLETE).touch()
    return python


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _call(peer: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailableError(f"the environment could not be made: {error}", at=peer) from error
    if done.returncode != 0:
        raise PeerUnavailableError(f"the environment could not be made: {done.stderr.strip()[-500:]}", at=peer)
