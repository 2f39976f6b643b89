"""The README is true: what it tells a newcomer to type works as it stands."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployment.settings import child_environment
from tests.architecture.sources import ROOT

COMMAND_SECONDS_MAX = 300


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """A newcomer's shell while `finaz up` runs in another: its two variables set, the commands on the path."""
    given = {name: text for name, text in child_environment().items() if not name.startswith("FINAZ_")}
    given["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}"
    up = subprocess.Popen(
        ["finaz", "up", "--port", "0", "--json"], env=given, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert up.stdout is not None
        said = json.loads(up.stdout.readline() or "{}")
        yield {**given, "FINAZ_API_URL": said["url"], "FINAZ_TOKEN": said["token"]}
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(COMMAND_SECONDS_MAX) == 0


def test_the_first_run(environment: dict[str, str]) -> None:
    """The blocks of the first run, pasted one after the other: every command succeeds, the run ends SUCCEEDED with its values."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    assert len(blocks) >= 3
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "\n".join(blocks)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert "SUCCEEDED" in done.stdout
    assert re.search(r"^2013-03-01T00:00:00Z,.*\d$", done.stdout, re.M), done.stdout


def test_every_link_leads_somewhere() -> None:
    """Links of the pages to files of the project lead to files that are there."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "fixtures").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_page_is_reached() -> None:
    """Whoever starts at the README and follows links comes to every page of `docs/`."""
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page.suffix == ".md" and page.is_file() and page not in reached:
            reached.add(page)
            targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
            waiting += [page.parent / target for target in targets if "://" not in target]
    assert {str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md") if p.resolve() not in reached} == set()


def test_every_make_target_of_the_pages_exists() -> None:
    """What a page tells to make can be made."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    pages = [ROOT / "README.md", ROOT / "docs" / "contributing.md"]
    told = {target for page in pages for target in re.findall(r"`make ([a-z]+)`", page.read_text("utf-8"))}
    assert told - targets == set()
