"""The servers that the demo and the drill of purchases start."""

import signal
import socket
import subprocess
import sys
import time

import pytest

STARTED = """
import time
from deployment.shop_servers import SandboxGateway
with SandboxGateway() as gateway:
    print(gateway.start(), flush=True)
    time.sleep(600)
"""
SECONDS_MAX = 30.0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_ends_with_whoever_started_it(how: signal.Signals) -> None:
    """However that process died: nothing listens any more."""
    starter = subprocess.Popen([sys.executable, "-c", STARTED], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    port = int(starter.stdout.readline().strip().rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port)).close()
    starter.send_signal(how)
    starter.wait(SECONDS_MAX)
    until = time.monotonic() + SECONDS_MAX
    while listens(port):
        assert time.monotonic() < until
        time.sleep(0.05)
    starter.stdout.close()


def listens(port: int) -> bool:
    """Whether somebody listens at the port."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
