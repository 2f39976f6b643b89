"""Logs are JSON lines on standard error, from our code and from the libraries alike."""

import json
import subprocess
import sys
from pathlib import Path

CODE = """
import logging, structlog
from deployment.logs import set_up_logs
set_up_logs("info", {form!r}, "api")
log = structlog.get_logger("finaz.x")
log.info("hello", run_id="run_1", token=3)
log.debug("too quiet")
logging.getLogger("uvicorn.error").warning("bad %s", 1)
with structlog.contextvars.bound_contextvars(position=7):
    log.warning("bound")
try:
    1 / 0
except ZeroDivisionError as error:
    log.error("broken", exc_info=error)
"""


def logged(form: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", CODE.format(form=form)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )


def test_lines_are_json_with_their_context() -> None:
    """Each line is one JSON object with time, level, component, logger and event, and with whatever was bound to it."""
    done = logged("json")
    assert done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("hello", "info"),
        ("bad 1", "warning"),
        ("bound", "warning"),
        ("broken", "error"),
    ]
    assert all(line["component"] == "api" and line["at"].endswith("Z") and line["logger"] for line in lines)
    assert (lines[0]["run_id"], lines[0]["token"]) == ("run_1", 3)
    assert lines[2]["position"] == 7
    assert "ZeroDivisionError" in lines[3]["exception"]


def test_console_is_for_people() -> None:
    """The other form is text, and says the same."""
    done = logged("console")
    assert done.stdout == ""
    assert "hello" in done.stderr
    assert "run_1" in done.stderr
