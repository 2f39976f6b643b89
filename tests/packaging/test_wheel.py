"""What is installed is what was tested: the wheel holds everything that runs need, and works outside the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.architecture.sources import LAYERS, ROOT, tracked_files

GOLDEN = "sha256:9e906a09a1c594964c16291a77cb38b0ffb021e69c230d71d1dd77ebbd6a7877"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has the wheel, and the dependencies from the environment of the tests."""
    folder = tmp_path_factory.mktemp("outside")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    found = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip()
    # A folder on the path, whose own .pth files (such as that of our editable install) don't count.
    (Path(found) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    run([*pip, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)], folder)
    return folder


def run(command: Sequence[str], folder: Path, **environment: str) -> str:
    """The standard output of a command that must succeed, in a clean environment."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("FINAZ_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=folder, env={**clean, **environment}, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_holds_what_runs_need(wheel: Path) -> None:
    """All code, every SQL file, type markers and fixtures; nothing of the tests."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    wanted = {str(f) for f in tracked_files() if f.parts[0] in LAYERS}
    wanted |= {f"deployment/{f}" for f in tracked_files() if f.parts[0] == "fixtures"}
    assert sorted(wanted - held) == []
    assert any(name.endswith(".sql") for name in wanted)
    ours = {name for name in held if ".dist-info/" not in name}
    assert sorted(ours - wanted) == []


def test_the_installed_names_are_the_wheels(installed: Path) -> None:
    """Outside the checkout, imports come from the wheel, fixtures are found in it, and the console script answers."""
    code = (
        "import api, deployment, domain, json, projections, services\n"
        "from deployment.fixture_files import fixture_path\n"
        "files = [m.__file__ for m in (api, deployment, domain, projections, services)]\n"
        "print(json.dumps([*files, str(fixture_path('real/stocks.csv.gz'))]))"
    )
    files = json.loads(run([str(installed / "venv/bin/python"), "-c", code], installed))
    assert [f for f in files if not f.startswith(f"{installed}/venv/")] == []
    assert run([str(installed / "venv/bin/finaz"), "--version"], installed).startswith("finaz, version ")


def test_the_fixture_runs_from_the_wheel(installed: Path, empty_database: str, tmp_path: Path) -> None:
    """Outside the checkout, an empty database is migrated and the fixture run admitted, executed and published."""
    finaz = str(installed / "venv/bin/finaz")
    environment = {"FINAZ_POSTGRES_DSN": empty_database, "FINAZ_DATA_DIR": str(tmp_path), "FINAZ_LOG_LEVEL": "warning"}
    run([finaz, "migrate"], tmp_path, **environment)
    published = json.loads(run([finaz, "worker", "--once", "--fixture"], tmp_path, **environment))
    assert published["values_hash"] == GOLDEN
    assert json.loads(run([finaz, "worker", "--once"], tmp_path, **environment)) is None
