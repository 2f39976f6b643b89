"""A process that can read the log can read all of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from domain import vocabulary

ROOT = Path(vocabulary.__file__).parent.parent
SAMPLES = ROOT / "fixtures" / "events"


def test_every_folder_with_messages_is_in_the_vocabulary() -> None:
    """A new context cannot be forgotten."""
    folders = {path.parent.name for path in (ROOT / "domain").glob("*/messages.py")}
    assert {module.__name__.split(".")[1] for module in vocabulary.MESSAGES} == folders


@pytest.mark.parametrize("module", ["services.store.mapper", "services.store.application", "projections.log"])
def test_a_fresh_process_that_opens_the_log_knows_every_topic(module: str) -> None:
    """Whatever else it imports: every topic that has a stored sample."""
    code = f"import {module}; from domain.events import topics; print('\\n'.join(topics()))"
    known = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {path.stem for path in SAMPLES.glob("*.json")} <= set(known.splitlines())
