"""The parts of starting up that need no database: waiting for readiness, the development token, documents from files."""

import asyncio
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from api.auth import load_tokens
from deployment import components, up
from deployment.cli import documents
from deployment.cli.documents import flow_argument, write_out
from deployment.supervision import Component, ComponentFailedError, Supervisor, listening_socket
from domain.errors import CanonicalError, InfrastructureError

MUTE = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\ntime.sleep(600)"


def supervisor() -> Supervisor:
    """Of a component that never says that it is ready."""
    mute = Component("mute", (sys.executable, "-c", MUTE))
    return Supervisor([mute], dict(os.environ), lambda *_, **__: None, stop_seconds_max=10)


async def test_what_never_becomes_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the named time a component that isn't ready ends everything, with a typed error."""
    monkeypatch.setattr(up, "READY_SECONDS_MAX", 0.3)
    keeper = supervisor()
    with pytest.raises(ComponentFailedError, match="ready"):
        async with up._supervised(keeper, asyncio.Event()):
            pass
    assert keeper.pids == {}


async def test_stopping_while_starting_ends_everything() -> None:
    """Asked to stop before all are ready: no waiting for it, no error, nothing left alive."""
    keeper, stop = supervisor(), asyncio.Event()
    stop.set()
    async with up._supervised(keeper, stop):
        pass
    assert keeper.pids == {}


def test_the_development_token_stays(tmp_path: Path) -> None:
    """The token of a folder is made once, readable by its owner only, and always known to the tokens file."""
    tokens = tmp_path / "tokens.json"
    first = up._development_token(tmp_path, tokens)
    assert up._development_token(tmp_path, tokens) == first
    assert len(load_tokens(tokens)) == 1
    assert stat.S_IMODE((tmp_path / "development-token").stat().st_mode) == 0o600
    tokens.unlink()
    assert up._development_token(tmp_path, tokens) == first
    assert len(load_tokens(tokens)) == 1


def test_a_taken_port_is_a_typed_error() -> None:
    """Two listeners on one port: the second is told which place is taken."""
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(InfrastructureError) as caught:
            listening_socket("127.0.0.1", port)
        assert caught.value.at == f"127.0.0.1:{port}"


def test_a_document_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of exactly the limit is read, one byte more is refused by name."""
    monkeypatch.setattr(documents, "DOCUMENT_BYTES_MAX", 10)
    file = tmp_path / "flow.json"
    file.write_text("[1,2,3,45]")
    assert flow_argument(str(file)) == [1, 2, 3, 45]
    file.write_text("[1,2,3,456]")
    with pytest.raises(CanonicalError, match="too long") as caught:
        flow_argument(str(file))
    assert caught.value.at == str(file)


def test_what_is_written_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file and no temporary one."""
    file = tmp_path / "out"
    write_out(b"old", str(file), binary=True)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(documents.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_out(b"new", str(file), binary=True)
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


class Stuck:
    """A runner that doesn't end its batch until it is interrupted, or not even then."""

    name = "stuck"

    def __init__(self, obeys: bool) -> None:
        self.told: list[str] = []
        self._obeys = obeys
        self._end = threading.Event()

    def run(self) -> None:
        self._end.wait(60)

    def stop(self) -> None:
        self.told.append("stop")

    def interrupt(self) -> None:
        self.told.append("interrupt")
        if self._obeys:
            self._end.set()

    def let_go(self) -> None:
        self._end.set()


@pytest.mark.parametrize("obeys", [True, False])
async def test_a_batch_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, obeys: bool) -> None:
    """A runner still busy after the named time is interrupted; one that ignores even that does not keep the process."""
    monkeypatch.setattr(components, "BATCH_STOP_SECONDS_MAX", 0.05)
    monkeypatch.setattr(components, "CUT_OFF_SECONDS_MAX", 0.05)
    stuck = Stuck(obeys)

    class Line:
        stop = asyncio.Event()

        def ready(self) -> None:
            self.stop.set()

    async with asyncio.timeout(30):
        await components._run_threads([stuck], Line())  # type: ignore[list-item, arg-type]
    assert stuck.told == ["stop", "interrupt"]
    stuck.let_go()
