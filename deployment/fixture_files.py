"""Where fixtures are: at the top of a checkout, inside this package in a wheel. The files are the same."""

from pathlib import Path

from domain.errors import NotFoundError

_PACKAGE = Path(__file__).parent
_FOLDERS = (_PACKAGE / "fixtures", _PACKAGE.parent / "fixtures")


def fixture_path(name: str) -> Path:
    """The path of a fixture by its name below `fixtures/`, such as `real/stocks.csv.gz`. Raises `NotFoundError`."""
    for folder in _FOLDERS:
        path = folder / name
        if path.exists():
            return path
    raise NotFoundError(f"there is no fixture {name!r}", at="fixtures", expected="the name of a file below fixtures/")
