"""A system with a whole past, made once per process of the tests, and copied for each test that looks at all of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.audited_system import AuditedSystem, Template


@pytest.fixture(scope="session")
def filled(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """A whole past, made once."""
    with Template(postgres, tmp_path_factory.mktemp("filled")) as template:
        yield template


@pytest.fixture
def system(filled: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AuditedSystem]:
    """A copy of it, of the test's own."""
    with filled.copy(tmp_path, monkeypatch) as made:
        yield made
