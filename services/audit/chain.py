"""Is the log whole? Positions without gaps, every row under its hash, every seal on its place.

What must stay true: a row is judged against the chain value of the row before as it is stored, so that one altered row is one
finding and not one for every row behind it; a removed row is one finding, and the row behind it is taken as it is. Whoever rewrote
the hashes as well is found by the seals. State is a few values, however long the log. Pure.
"""

from collections.abc import Iterator, Sequence
from operator import le
from typing import Any, Final

from domain.chain import GENESIS, link_of_columns, links
from domain.instants import format_instant, format_micros
from services.audit.findings import FindingKind, Findings
from services.seals import Seal, SealProblem

_SEALED: Final = "the sealed chain value"


class ChainCheck:
    """Fed every row in order of position, then ended at the last position of the log.

    `seals` gives what is sealed in the order of positions, or what is wrong with a seal; it is read as far as the rows have come.
    """

    def __init__(self, findings: Findings, seals: Iterator[Seal | SealProblem]) -> None:
        self._findings = findings
        self._unread = seals
        self._position = 0
        self._stored: bytes = GENESIS
        self._computed: bytes | None = None
        self._micros: int | None = None
        self._whole = True
        self.seals = 0
        self.last_position = 0
        self.vouched: Seal | None = None
        self._next = self._read_seal()

    def rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """The next rows of the log, the columns of each beginning with those of `row`.

        As long as nothing is wrong they are looked at together; else one by one, which names what is.
        """
        if not self._fit(rows):
            for row in rows:
                self.row(*row[:11])
            return
        first, last, place = rows[0][0], rows[-1][0], 0
        while self._next is not None and self._next.position <= last:
            place = max(place, self._next.position - first)
            self._position, self._stored = rows[place][0], bytes(rows[place][10])
            self._sealed(self._next)
            self._next = self._read_seal()
        self._position, self._stored, self._micros = last, bytes(rows[-1][10]), rows[-1][2]
        self._computed = self._stored

    def _fit(self, rows: Sequence[Sequence[Any]]) -> bool:
        """Whether positions follow one another, no instant goes back, and each row hashes to its chain value."""
        positions = [row[0] for row in rows]
        instants = [row[2] for row in rows]
        earlier = [instants[0] if self._micros is None else self._micros, *instants]
        return (
            positions == list(range(self._position + 1, self._position + 1 + len(rows)))
            and all(map(le, earlier, instants))
            and links(self._stored, rows) == [row[10] for row in rows]
        )

    def row(
        self,
        position: int,
        version: int,
        micros: int,
        event_id: str,
        causation_id: str | None,
        stream: str,
        topic: str,
        correlation_id: str | None,
        principal: str | None,
        state: str,
        chain: bytes,
    ) -> None:
        """The next row of the log."""
        columns = (position, version, micros, event_id, causation_id, stream, topic, correlation_id, principal, state)
        follows = position == self._position + 1
        if not follows:
            self._missing(position)
        chain = bytes(chain)
        computed = link_of_columns(self._stored, *columns)
        if computed != chain and follows:
            mended = None if self._computed is None else link_of_columns(self._computed, *columns)
            if mended != chain:
                self._whole = False
                self._findings.add(
                    FindingKind.EVENT_ALTERED,
                    stream,
                    f"the row that hashes to {chain.hex()}",
                    f"a row that hashes to {computed.hex()}",
                    position=position,
                    version=version,
                )
        if self._micros is not None and micros < self._micros:
            self._findings.add(
                FindingKind.CLOCK_SET_BACK,
                stream,
                f"recorded at {format_micros(self._micros)} or later",
                f"recorded at {format_micros(micros)}",
                position=position,
                version=version,
            )
        self._micros = micros
        self._position, self._stored, self._computed = position, chain, computed
        while self._next is not None and self._next.position <= position:
            self._sealed(self._next)
            self._next = self._read_seal()

    def end(self) -> None:
        """Nothing more comes: seals beyond the end tell of what was cut off."""
        while self._next is not None:
            seal = self._next
            self._findings.add(
                FindingKind.LOG_CUT,
                seal.name,
                f"a log of at least {seal.position} events, as sealed at {format_instant(seal.sealed_at)}",
                f"{self._position} events",
                position=seal.position,
            )
            self._next = self._read_seal()

    @property
    def head(self) -> tuple[int, bytes]:
        """The last position and its stored chain value."""
        return self._position, self._stored

    def _read_seal(self) -> Seal | None:
        """The next seal that is one; what is wrong with others is a finding."""
        for found in self._unread:
            if isinstance(found, Seal):
                self.seals, self.last_position = self.seals + 1, found.position
                return found
            kind = FindingKind.SEAL_MISSING if found.missing else FindingKind.SEAL_INVALID
            self._findings.add(kind, found.name, found.expected, found.actual)
        return None

    def _missing(self, position: int) -> None:
        self._whole = False
        first, last = self._position + 1, position - 1
        places = f"position {first}" if first == last else f"positions {first} to {last}"
        self._findings.add(FindingKind.EVENT_MISSING, places, "a row", "none", position=first)

    def _sealed(self, seal: Seal) -> None:
        """A sealed position has been reached, or passed where its row is missing. Behind damage no seal vouches for anything."""
        there = seal.position == self._position
        if there and seal.chain == self._stored.hex():
            if self._whole:
                self.vouched = seal
            return
        since = 1 if self.vouched is None else self.vouched.position + 1
        rewritten = f"{self._stored.hex()}: something from position {since} on was rewritten, with its hashes"
        self._whole = False
        self._findings.add(
            FindingKind.SEAL_BROKEN,
            seal.name,
            f"{_SEALED} {seal.chain}",
            rewritten if there else "no row",
            position=seal.position,
        )
