"""Modules that a newcomer can read: small, named after what they are, and beginning with what must stay true."""

import ast
import re
from importlib import metadata
from pathlib import Path

from tests.architecture.sources import LAYERS, ROOT, modules, tracked_files, tree

LINES_MAX = 400
FUNCTION_LINES_MAX = 60
FORBIDDEN = re.compile(r"^(utils?|helpers?|common|managers?|misc|stuff|base)$")
SQL = re.compile(
    r"\b(SELECT\s.+\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|CREATE\s+(TABLE|INDEX|FUNCTION)\s)",
    re.S,
)

SQL_ALLOWED = {
    "deployment/bench/": "peers are measured with their own statements, beside the code that drives them",
    "deployment/migrate.py": "its bookkeeping table is there before the first file is read",
}
"""Folders whose Python may hold SQL, and why."""


def test_modules_are_small() -> None:
    """No module is longer than a newcomer reads in one go."""
    long = {str(m): len((ROOT / m).read_text("utf-8").splitlines()) for m in modules()}
    assert {name: lines for name, lines in long.items() if lines > LINES_MAX} == {}


def test_functions_fit_on_a_screen() -> None:
    """No function is longer than a screen, its docstring not counted."""
    found = {}
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                lines = (node.end_lineno or 0) - first.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found[f"{module}:{node.name}"] = lines
    assert found == {}


def test_modules_say_what_they_are() -> None:
    """Every module begins with a docstring."""
    assert [str(m) for m in modules() if not ast.get_docstring(tree(m))] == []


def test_packages_and_their_marker() -> None:
    """Each layer is a typed package, and every folder with code in it is a package."""
    assert [layer for layer in LAYERS if not (ROOT / layer / "py.typed").is_file()] == []
    assert sorted({str(m.parent) for m in modules() if not (ROOT / m.parent / "__init__.py").is_file()}) == []


def test_names_say_something() -> None:
    """No module or package is called by a word that fits everything."""
    assert [
        str(m) for m in modules(*LAYERS, "tests") if any(FORBIDDEN.match(part) for part in m.with_suffix("").parts)
    ] == []


def test_no_path_of_some_machine() -> None:
    """No committed text names a folder of the machine that it was written on, or a registry by its host."""
    here = "|".join(re.escape(str(folder)) for folder in (ROOT, Path.home()))
    machine = re.compile(rf"(?<![A-Za-z0-9_.])(({here})(?![A-Za-z0-9_])|/(home|Users)/[a-z]+/)")
    found = []
    for file in tracked_files():
        if file.suffix in (".gz", ".png", ".parquet", ".arrow") or file.name == "LICENSE":
            continue
        for number, line in enumerate((ROOT / file).read_text("utf-8").splitlines(), 1):
            if machine.search(line) or (file.suffix == ".lock" and "://" in line):
                found.append(f"{file}:{number}: {line.strip()[:100]}")
    assert found == []


def test_sql_stands_in_sql_files() -> None:
    """Statements are named in `.sql` files, where they can be read, tried and explained; none hides in a string."""
    found = []
    for module in modules():
        if any(str(module).startswith(folder) for folder in SQL_ALLOWED):
            continue
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        found += [
            f"{module}:{node.lineno}: {node.value.strip()[:60]!r}"
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
            and SQL.search(node.value)
        ]
    assert found == []


def test_no_other_distribution_owns_our_names() -> None:
    """`domain`, `services` and the others are common words: nothing else that is installed may bring a package of that name."""
    owners = metadata.packages_distributions()
    assert {
        layer: sorted(set(owners.get(layer, []))) for layer in LAYERS if set(owners.get(layer, [])) - {"finaz-runtime"}
    } == {}
