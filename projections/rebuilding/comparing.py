"""Comparing two tables of one read model, row by row, in one snapshot of the database.

What must stay true: rows are joined by their key; values are compared as values (json by what it means, not how it is spelled);
nothing is written. The two must be at one position, which is for the caller to see to (a repeatable-read transaction that folds the
one up to the other).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from projections.rebuilding.rebuildable import SAMPLES_MAX, Difference, DifferenceSample
from projections.statements import statements

COMPARE_SECONDS_MAX: Final = 3600
"""Seconds that one statement of a comparison may take."""

_SQL: Final = statements("projections.rebuilding", "comparing.sql")

Execute = Callable[[str, Mapping[str, Any]], Sequence[tuple[Any, ...]]]
"""Executes one statement and returns its rows."""


def difference(execute: Execute, table: str, served: str, built: str, position: int) -> Difference:
    """The difference of the tables `served` and `built`, which have the columns of `table`; names are ours, with their schema."""
    columns = execute(_SQL["columns"], {"table": table})
    keys = [name for name, is_key, _ in columns if is_key]
    texts = {
        "served": served,
        "built": built,
        "first": _quoted(keys[0]),
        "keys": " AND ".join(f"s.{_quoted(key)} = b.{_quoted(key)}" for key in keys),
        "key": ", ".join(f"'{key}', coalesce(s.{_quoted(key)}, b.{_quoted(key)})" for key in keys),
        "differs": _differs(columns),
        "limit": str(SAMPLES_MAX),
    }
    ((served_rows, built_rows, missing, extra, different),) = execute(_filled(_SQL["counts"], texts), {})
    samples = execute(_filled(_SQL["samples"], texts), {}) if missing or extra or different else ()
    return Difference(
        position=position,
        served_rows=served_rows,
        rebuilt_rows=built_rows,
        missing=missing,
        extra=extra,
        different=different,
        samples=tuple([_sample(*row) for row in samples]),
    )


def _differs(columns: Sequence[tuple[Any, ...]]) -> str:
    """Whether two rows differ in any column that is not of the key."""
    plain = [_quoted(name) for name, is_key, is_json in columns if not is_key and not is_json]
    differs = [f"(s.{name} IS DISTINCT FROM b.{name})" for name in plain]
    for name in (_quoted(name) for name, _, is_json in columns if is_json):
        spelled = f"s.{name}::text IS DISTINCT FROM b.{name}::text"
        differs.append(f"({spelled} AND s.{name}::jsonb IS DISTINCT FROM b.{name}::jsonb)")
    return " OR ".join(differs) or "false"


def _sample(kind: str, key: str, served: str | None, rebuilt: str | None) -> DifferenceSample:
    decode = msgspec.json.decode
    return DifferenceSample(
        kind, decode(key), None if served is None else decode(served), None if rebuilt is None else decode(rebuilt)
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _filled(template: str, texts: Mapping[str, str]) -> str:
    """The template with its names in braces replaced; a percent sign would be a parameter, and none is meant."""
    for name, text in texts.items():
        template = template.replace("{" + name + "}", text)
    return template
