"""The audit's look at the chain: pages are looked at together, and that finds what looking at each row finds."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from domain.chain import GENESIS, link_of_columns
from services.audit.chain import ChainCheck
from services.audit.findings import Finding, Findings
from services.seals import Seal, SealProblem

Row = tuple[Any, ...]
AT = datetime(2026, 1, 5, tzinfo=UTC)
DAMAGE = st.lists(
    st.tuples(st.sampled_from(["document", "chain", "removed", "clock", "rehashed"]), st.integers(0, 24)), max_size=3
)
SEALS = st.lists(st.tuples(st.sampled_from(["right", "wrong", "unreadable"]), st.integers(1, 30)), max_size=4)
"""What is sealed at which position: in order or not."""


def columns(position: int, micros: int, document: str) -> Row:
    """The columns that are hashed."""
    return (position, 1, micros, f"id-{position}", None, f"run/é{position}", "t", None, "ana", document)


def chained(rows: list[Row]) -> list[Row]:
    """The rows with their chain values, and with one more column, which nobody looks at."""
    found, chain = [], GENESIS
    for row in rows:
        chain = link_of_columns(chain, *row)
        found.append((*row, chain, None))
    return found


def damaged(count: int, damage: list[tuple[str, int]]) -> list[Row]:
    """A log of so many rows with something wrong in it."""
    rows = chained([columns(position, position * 10, f"{{{position}}}") for position in range(1, count + 1)])
    for kind, place in damage:
        if place >= len(rows):
            continue
        row = list(rows[place])
        if kind == "document":
            row[9] += " "
        elif kind == "chain":
            row[10] = bytes(31) + b"x"
        elif kind == "clock":
            row[2] = 1
        rows[place] = tuple(row)
        if kind == "removed":
            del rows[place]
        elif kind == "rehashed":
            rows = chained([(*one[:9], one[9] + " ") if at >= place else one[:10] for at, one in enumerate(rows)])
    return rows


def looked_at(pages: list[list[Row]], seals: list[Seal | SealProblem], *, together: bool) -> tuple[Any, ...]:
    """What is found, in the order of what it is about, and what the check knows at the end."""
    findings = Findings()
    check = ChainCheck(findings, iter(seals))
    for page in pages:
        if together:
            check.rows(page)
        else:
            for row in page:
                check.row(*row[:11])
    check.end()
    return findings.listed, check.head, check.seals, check.last_position, check.vouched


@given(st.integers(0, 25), DAMAGE, SEALS, st.integers(1, 9))
def test_pages_find_what_rows_find(
    count: int, damage: list[tuple[str, int]], sealed: list[tuple[str, int]], size: int
) -> None:
    """Whatever is damaged and sealed, and however the rows are cut into pages: the same findings in the same order."""
    rows = damaged(count, damage)
    chains = {row[0]: row[10].hex() for row in chained([row[:10] for row in damaged(count, [])])}
    seals: list[Seal | SealProblem] = [
        SealProblem(name=f"seal {number}", missing=False, expected="a seal", actual="none")
        if kind == "unreadable"
        else Seal(
            number=number,
            position=position,
            chain=chains.get(position, "00") if kind == "right" else "11",
            sealed_at=AT,
            previous="",
        )
        for number, (kind, position) in enumerate(sealed, 1)
    ]
    pages = [rows[start : start + size] for start in range(0, len(rows), size)]
    found = looked_at(pages, seals, together=True)
    assert found == looked_at(pages, seals, together=False)
    assert all(isinstance(finding, Finding) for finding in found[0])
