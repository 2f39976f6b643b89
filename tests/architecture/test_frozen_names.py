"""Names that others store or type are for ever: topics, projections, process managers, fault points, error codes, metrics."""

import ast
import importlib
import json
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import pytest

from tests.architecture.sources import LAYERS, ROOT, modules, tree
from tests.conftest import GOLDENS

GOLDEN = "frozen_names.json"
T = TypeVar("T")

NOT_IMPORTED = ("deployment/__main__.py", "deployment/bench/peers/")
"""What runs when imported, or runs in an environment of its own."""


def our_modules() -> Iterator[ModuleType]:
    """Every module of ours, imported."""
    for module in modules():
        if not str(module).startswith(NOT_IMPORTED):
            parts = module.with_suffix("").parts
            yield importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def subclasses(kind: type[T]) -> Iterator[type[T]]:
    """All subclasses that are ours (tests may define their own)."""
    for below in kind.__subclasses__():
        if below.__module__.partition(".")[0] in LAYERS:
            yield below
        yield from subclasses(below)


def constants(loaded: list[ModuleType], name: str, below: str = "") -> Iterator[Any]:
    """The values of a module constant of that name, wherever it is defined."""
    for module in loaded:
        if module.__name__.startswith(below) and name in vars(module):
            yield vars(module)[name]


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    """Every frozen name that the code has now, by kind."""
    loaded = list(our_modules())
    from domain.errors import FinazError
    from domain.events import topics

    return {
        "topics": sorted(topics()),
        "error_codes": sorted({error.code for error in (FinazError, *subclasses(FinazError))}),
        "projections": sorted(constants(loaded, "NAME", "projections.")),
        "process_managers": sorted(constants(loaded, "NAME", "services.process_managers.")),
        "fault_points": sorted(
            {name for points in constants(loaded, "POINTS", "services.faultpoints") for name in points}
        ),
        "metrics": sorted({name for metrics in constants(loaded, "METRIC_NAMES") for name in metrics}),
    }


def test_no_name_has_vanished(names: dict[str, list[str]]) -> None:
    """A frozen name is never taken back, not even with --update-goldens: somebody's log, database or dashboard has it."""
    file = GOLDENS / GOLDEN
    frozen = json.loads(file.read_text("utf-8")) if file.exists() else {}
    assert {kind: gone for kind, known in frozen.items() if (gone := sorted(set(known) - set(names[kind])))} == {}


def test_new_names_are_written_down(names: dict[str, list[str]], golden: Callable[[str, Any], None]) -> None:
    """A new name stands in the golden, so that freezing it is a decision that a reader of the change sees."""
    golden(GOLDEN, names)


def test_each_kind_is_found(names: dict[str, list[str]]) -> None:
    """The collector finds at least one name of each kind: a golden of nothing would hold for ever."""
    assert [kind for kind, found in names.items() if not found] == []
    assert "run.started.v1" in names["topics"]
    assert "STALE_FENCE" in names["error_codes"]


def test_one_code_per_error() -> None:
    """Two errors never share a code: a client that reads the code knows which it is."""
    list(our_modules())
    from domain.errors import FinazError

    codes: dict[str, str] = {}
    for error in subclasses(FinazError):
        if "code" in vars(error):
            assert codes.setdefault(vars(error)["code"], error.__qualname__) == error.__qualname__
    named = {name: error for error in subclasses(FinazError) if not (name := error.__name__).endswith("Error")}
    assert sorted(named) == []


def test_every_golden_is_read_by_a_test() -> None:
    """A golden that no test names would be kept for nothing: it fails the suite."""
    named = {
        node.value
        for module in modules("tests")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    files = {str(p.relative_to(GOLDENS)) for p in GOLDENS.rglob("*") if p.is_file()}
    assert sorted(files - named) == []


def test_updating_a_golden_fails_the_run(
    tmp_path: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --update-goldens a drifted golden is written and its test fails; the next run passes; without it, it just fails."""
    pytester.makepyfile("def test_it(golden):\n    golden('value.json', {'a': 1})\n")
    conftest = (
        (ROOT / "tests" / "conftest.py")
        .read_text("utf-8")
        .replace("Path(__file__).parents[1]", f"Path({str(tmp_path)!r})")
    )
    pytester.makeconftest(conftest)
    options = ("-p", "no:cacheprovider", f"--rootdir={pytester.path}")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to load and do nothing here
    assert pytester.runpytest_subprocess(*options).ret == pytest.ExitCode.TESTS_FAILED
    assert not (tmp_path / "fixtures").exists()
    assert pytester.runpytest_subprocess(*options, "--update-goldens").ret == pytest.ExitCode.TESTS_FAILED
    assert json.loads((tmp_path / "fixtures" / "goldens" / "value.json").read_text()) == {"a": 1}
    assert pytester.runpytest_subprocess(*options).ret == pytest.ExitCode.OK
