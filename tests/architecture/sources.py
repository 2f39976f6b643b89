"""The sources as the architecture tests read them: files, syntax trees, imports."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = ("domain", "projections", "services", "api", "deployment")


@cache
def modules(*tops: str) -> tuple[Path, ...]:
    """The Python files below some top folders, relative to the root."""
    return tuple(sorted(p.relative_to(ROOT) for top in tops or LAYERS for p in (ROOT / top).rglob("*.py")))


@cache
def tree(module: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def imports(source: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere in a module; `from a import b` yields `a` and `a.b`."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            assert node.module is not None
            yield node.lineno, node.module
            for name in node.names:
                yield node.lineno, f"{node.module}.{name.name}"


def is_standard(name: str) -> bool:
    """Whether a dotted name belongs to the standard library."""
    return name.partition(".")[0] in sys.stdlib_module_names


@cache
def tracked_files() -> tuple[Path, ...]:
    """What would be committed: files that git knows or would add; all files where this is no checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return tuple(
        Path(name) for name in sorted(set(listed.stdout.decode().split("\0"))) if name and (ROOT / name).is_file()
    )
