"""The stories of purchases on real processes: API, projector, managers, a gateway and a mail server, as an operator has them."""

import json
import os
import subprocess
from pathlib import Path

from tests.support.command_line import CHECKOUT, COMMAND, SECONDS_MAX, environment


def test_the_stories_end_as_they_should(tmp_path: Path) -> None:
    """`finaz demo purchase --json`: each story held, all books agree, status 0; nothing of it is left."""
    done = subprocess.run(
        [*COMMAND, "demo", "purchase", "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**environment(), "TMPDIR": str(tmp_path)},
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"]
    assert len(document["stories"]) == 5
    assert all(story["held"] for story in document["stories"])
    assert os.listdir(tmp_path) == []
