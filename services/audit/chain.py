"""Is the log whole? Positions without gaps, every row under its hash, every seal on its place.

What must stay true: a row is judged against the chain value of the row before as it is stored, so that one altered row is one
finding and not one for every row behind it; a removed row is one finding, and the row behind it is taken as it is. Whoever rewrote
the hashes as well is found by the seals. State is a few values, however long the log. Pure.
"""

from collections.abc import Mapping
from typing import Final

from domain.chain import GENESIS, link_of_columns
from services.audit.findings import FindingKind, Findings
from services.seals import Seal

_SEALED: Final = "the sealed chain value"


class ChainCheck:
    """Fed every row in order of position, then ended at the last position of the log. `seals` are verified ones."""

    def __init__(self, findings: Findings, seals: tuple[Seal, ...] = ()) -> None:
        self._findings = findings
        self._by_position: Mapping[int, Seal] = {seal.position: seal for seal in seals}
        self._seals = seals
        self._position = 0
        self._stored: bytes = GENESIS
        self._computed: bytes | None = None
        self._micros: int | None = None
        self._whole_to: int | None = None
        self.vouched: Seal | None = None

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
                self._broken()
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
                f"recorded at {self._micros} µs or later",
                f"recorded at {micros} µs",
                position=position,
                version=version,
            )
        self._micros = micros
        self._position, self._stored, self._computed = position, chain, computed
        seal = self._by_position.get(position)
        if seal is not None:
            self._sealed(seal)

    def end(self) -> None:
        """Nothing more comes: seals beyond the end tell of what was cut off."""
        for seal in self._seals:
            if seal.position > self._position:
                self._findings.add(
                    FindingKind.LOG_CUT,
                    seal.name,
                    f"a log of at least {seal.position} events, as sealed at {seal.sealed_at}",
                    f"{self._position} events",
                    position=seal.position,
                )

    @property
    def head(self) -> tuple[int, bytes]:
        """The last position and its stored chain value."""
        return self._position, self._stored

    def _missing(self, position: int) -> None:
        self._broken()
        first, last = self._position + 1, position - 1
        places = f"position {first}" if first == last else f"positions {first} to {last}"
        self._findings.add(FindingKind.EVENT_MISSING, places, "a row", "none", position=first)
        for seal in self._seals:
            if first <= seal.position <= last:
                self._findings.add(
                    FindingKind.SEAL_BROKEN, seal.name, f"{_SEALED} {seal.chain}", "no row", position=seal.position
                )

    def _sealed(self, seal: Seal) -> None:
        if seal.chain == self._stored.hex():
            if self._whole_to is None:
                self.vouched = seal
            return
        since = 1 if self.vouched is None else self.vouched.position + 1
        self._broken()
        self._findings.add(
            FindingKind.SEAL_BROKEN,
            seal.name,
            f"{_SEALED} {seal.chain}",
            f"{self._stored.hex()}: something from position {since} on was rewritten, with its hashes",
            position=seal.position,
        )

    def _broken(self) -> None:
        """From here on no seal vouches for anything: what stands before it is not what was sealed."""
        if self._whole_to is None:
            self._whole_to = self._position
