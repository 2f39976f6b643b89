"""Who may import whom: design by a table, not by reviewers."""

import ast
import fnmatch
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.architecture.sources import LAYERS, imports, is_standard, modules, tree

EDGE_OF_DOMAIN = (
    "domain.errors",
    "domain.events",
    "domain.identity",
    "domain.canonical",
    "domain.instants",
    "domain.*messages*",
    "domain.*.errors",
    "domain.*.identity",
)
"""What HTTP may know of the domain: messages, errors, identifiers, and the texts that values have."""


@dataclass(frozen=True)
class Rule:
    """What the modules of a layer may import: layers or modules of ours, third parties, and third parties in some files only."""

    ours: tuple[str, ...]
    third: tuple[str, ...]
    only_in: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Pattern of a module's path: the third parties that it may import besides."""


RULES = {
    "domain": Rule(
        ("domain*",),
        ("msgspec*", "eventsourcing.domain*"),
        {"domain/market/*.py": ("numpy*", "numba*")},
    ),
    "projections": Rule(
        ("projections*", "domain*"),
        ("msgspec*", "eventsourcing*"),
        {
            "*/postgres.py": ("psycopg*",),
            "*/clickhouse.py": ("clickhouse_connect*", "pyarrow*", "numpy*"),
            "*/staging/arrow.py": ("pyarrow*", "numpy*"),
        },
    ),
    "services": Rule(
        ("services*", "projections*", "domain*"),
        ("msgspec*", "eventsourcing*"),
        {"services/adapters/*": ("*",), "services/store/*": ("psycopg*",)},
    ),
    "api": Rule(
        ("api*", "services*", *EDGE_OF_DOMAIN),
        ("litestar*", "msgspec*", "structlog*"),
        {"api/metrics.py": ("prometheus_client*",), "api/server.py": ("uvicorn*", "uvloop*")},
    ),
    "deployment": Rule(("*",), ("*",)),
}


def violations(module: Path, source: ast.Module) -> list[str]:
    """Every import of a module that the table does not allow."""
    rule = RULES[module.parts[0]]
    third = rule.third + tuple(
        name for pattern, names in rule.only_in.items() if fnmatch.fnmatch(str(module), pattern) for name in names
    )
    found = []
    for line, name in imports(source):
        if is_standard(name):
            continue
        allowed = rule.ours if name.partition(".")[0] in LAYERS else third
        holds_something_allowed = any(pattern.startswith(f"{name}.") for pattern in allowed)
        part_of_something_allowed = any(fnmatch.fnmatch(name, p) or fnmatch.fnmatch(name, f"{p}.*") for p in allowed)
        if not holds_something_allowed and not part_of_something_allowed:
            found.append(f"{module}:{line} imports {name}")
    return found


def test_every_import_is_allowed() -> None:
    """No module of a layer imports what the table keeps from it."""
    assert [v for module in modules() for v in violations(module, tree(module))] == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("domain/runs/aggregate.py", "import psycopg"),
        ("domain/runs/aggregate.py", "from services import ports"),
        ("domain/runs/aggregate.py", "def f():\n    import numpy"),
        ("domain/runs/aggregate.py", "from eventsourcing.persistence import Mapper"),
        ("projections/runs/projection.py", "import psycopg"),
        ("projections/runs/postgres.py", "from services.ports import Append"),
        ("services/runs.py", "from psycopg.rows import dict_row"),
        ("services/runs.py", "import api.app"),
        ("services/store/committer.py", "import httpx"),
        ("api/runs.py", "from domain.runs.aggregate import Run"),
        ("api/runs.py", "import projections.runs.projection"),
        ("api/runs.py", "import deployment.settings"),
        ("api/runs.py", "import psycopg"),
    ],
)
def test_the_table_refuses(module: str, code: str) -> None:
    """The reading of imports finds each kind of violation, wherever in the module it stands."""
    assert violations(Path(module), ast.parse(code))


def test_the_environment_is_read_in_one_place() -> None:
    """Only `deployment/settings.py` looks at environment variables."""
    readers = {
        f"{module}:{node.lineno}"
        for module in modules()
        for node in ast.walk(tree(module))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv"))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {"environ", "getenv"} & {n.name for n in node.names}
        )
    }
    assert {reader.partition(":")[0] for reader in readers} == {"deployment/settings.py"}, sorted(readers)


def test_the_domain_is_pure() -> None:
    """The domain reads no clock, draws no random number, opens nothing: those modules are not even imported."""
    impure = (
        "time",
        "random",
        "secrets",
        "socket",
        "subprocess",
        "threading",
        "asyncio",
        "os",
        "io",
        "pathlib",
        "logging",
    )
    clocks = ("now", "utcnow", "today")
    found = [
        f"{module}:{line} imports {name}"
        for module in modules("domain")
        for line, name in imports(tree(module))
        if name.partition(".")[0] in impure
    ]
    found += [
        f"{module}:{node.lineno} reads a clock"
        for module in modules("domain")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in clocks
    ]
    assert found == []
