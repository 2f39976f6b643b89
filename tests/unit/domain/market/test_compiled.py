"""Compiled kernels where nothing can be written: slower to start, but they work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import domain

FOLD = (
    "import numpy, domain.market.ops as ops;"
    "print(ops.OpState(ops.OPS['ema', 1], {'length': 2}).fold((numpy.array([1.0, 2.0, 3.0]),)).tolist(), ops.__file__)"
)


def test_kernels_work_where_no_cache_can_be_written(tmp_path: Path) -> None:
    """An installation without a writable folder for the cache, beside the module or at home, compiles in memory.

    A file where the cache's folder would be stops even root, whom no permission does.
    """
    package = tmp_path / "domain"
    shutil.copytree(Path(domain.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (package / "market" / "__pycache__", tmp_path / "home"):
        name.write_text("")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", FOLD],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith("[nan, 1.5, 2.5"), done.stderr
    assert str(package) in done.stdout
    assert not list(tmp_path.rglob("*.nbi"))
