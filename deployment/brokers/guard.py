"""The guard of a broker: `deployment.guarding` says what a guard is, who its owner is, and what each crash leaves.

What must stay true beyond that: the kernel kills the broker when this process dies (Linux); elsewhere the next start of the folder
kills it, by the number in `broker.pid`, if the process of that number is at work in the folder.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployment.guarding import Guard, guard_until_gone


class BrokerGuard(Guard):
    """One broker in one folder. Its plan has also the broker's `environment`."""

    lock_name = "guard.lock"
    end_of_guard = signal.SIGKILL
    handlers = ("run", "start", "stop", "kill", "status")

    def __init__(self, plan: Mapping[str, Any]) -> None:
        super().__init__(plan)
        self.environment: dict[str, str] = plan["environment"]

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command of the broker's to its end; it must succeed within `seconds`."""
        self.take_lock()
        self.complete(request["command"], request["seconds"])
        return self.status({})

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start the broker, which need not be ready yet; a running one stays as it is."""
        self.take_lock()
        if not self.is_running():
            self._end_predecessor()
            self.log_size()
            pid = self.spawn(request["command"])
            (self.folder / "broker.pid").write_text(f"{pid}\n", encoding="ascii")
        return self.status({})

    def stop(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Tell the broker to stop; one that does not obey in time is killed."""
        self.stop_all()
        return self.status({})

    def stop_all(self) -> None:
        """See `Guard`."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.send(number)

    def enter_child(self) -> Mapping[str, str]:
        """See `Guard`."""
        os.chdir(self.folder)
        return self.environment

    def _end_predecessor(self) -> None:
        """Kill a broker that a killed guard left; a process that merely has the same number is left alone."""
        try:
            pid = int((self.folder / "broker.pid").read_text(encoding="ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return
        if os.fsencode(self.folder) in command:
            os.kill(pid, signal.SIGKILL)
            self.wait_for(lambda: not Path(f"/proc/{pid}").exists(), self.stop_seconds)


def main() -> None:
    """Serve the owner, then clean up."""
    guard_until_gone(BrokerGuard)
