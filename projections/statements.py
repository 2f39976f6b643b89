"""Named SQL statements: `.sql` files beside the code, each statement under a line `-- name: what_it_is`.

What must stay true: no SQL stands in the logic; a statement has one name in its file, and a missing one fails at import, not in
the middle of a night. Comment lines after the name say what the statement promises and are not sent. Reads package data only.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_NAME: Final = re.compile(r"--\s*name:\s*(\w+)\s*\Z")


def statements(package: str, file: str) -> Mapping[str, str]:
    """The statements of `file` in `package`, by name, in the order of the file.

    Raises `ValueError` for a name that stands twice and for text before the first name: both are bugs.
    """
    return MappingProxyType(parse_statements(files(package).joinpath(file).read_text(encoding="utf-8"), file))


def parse_statements(text: str, file: str) -> dict[str, str]:
    """The statements of the text of a `.sql` file, by name."""
    found: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        name = _NAME.match(line.strip())
        if name is not None:
            if name[1] in found:
                raise ValueError(f"{file}: the statement {name[1]!r} stands twice")
            lines = found[name[1]] = []
        elif line.strip() and not line.lstrip().startswith("--"):
            if lines is None:
                raise ValueError(f"{file}: SQL before the first '-- name:' line")
            lines.append(line)
    return {name: "\n".join(body).strip().removesuffix(";") for name, body in found.items()}
