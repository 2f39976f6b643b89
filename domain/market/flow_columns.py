"""Which value columns a flow reads, and whether its source has them.

What must stay true: one rule for admission and execution, over every node that names a column, whatever its op, whether or not an
output needs it; a refusal names the node, the place in the flow, and the columns that there are. Pure; nothing is written.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from domain.market.errors import ColumnUnknownError
from domain.market.flow import ColumnInput, FlowSpec

COLUMNS_SAID_MAX: Final = 16
"""Columns of a source that a refusal names."""


def columns_read(flow: FlowSpec) -> Iterator[tuple[str, str, str]]:
    """(column, node id, place in the flow such as `.nodes[0].inputs[1].column`) for each input that is a column, in order."""
    for index, node in enumerate(flow.nodes):
        for number, entry in enumerate(node.inputs):
            if isinstance(entry, ColumnInput):
                yield entry.column, node.id, f".nodes[{index}].inputs[{number}].column"


def check_columns(flow: FlowSpec, source: str, columns: Sequence[str], *, at: str = "$") -> None:
    """Raise `ColumnUnknownError` for the first column that the flow reads and the source, called so, does not have.

    `at` is where the flow stands, before the place inside it.
    """
    known = frozenset(columns)
    for column, node, place in columns_read(flow):
        if column not in known:
            raise ColumnUnknownError(
                f"node {node!r} reads the column {column!r}, which the snapshot {source!r} does not have",
                at=at + place,
                expected=_listed(columns),
            )


def _listed(columns: Sequence[str]) -> str:
    if not columns:
        return "a snapshot with that column; this one has none"
    return "one of " + ", ".join(columns[:COLUMNS_SAID_MAX]) + (", …" if len(columns) > COLUMNS_SAID_MAX else "")
