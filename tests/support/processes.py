"""Processes that a test has to see end, whether they were its own or not."""

import os
import select

GONE_SECONDS_MAX = 30.0


def wait_gone(pid: int) -> None:
    """Wait until the process has ended (it may never have been ours)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], GONE_SECONDS_MAX)[0], f"process {pid} is still there"
    finally:
        os.close(handle)
