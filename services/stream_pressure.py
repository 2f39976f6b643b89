"""Backpressure of one ownership: measures taken, the state decided, its transitions recorded, partitions held.

What must stay true: a transition is an event of the journal before it is acted upon; a broker or disk that cannot be asked changes
nothing; more buffered events than `BUFFERED_EVENTS_MAX` times the threshold end the run instead of the process.
"""

from collections.abc import Iterable

from domain.errors import InfrastructureError
from domain.market.errors import RunTooLargeError
from domain.stream.backpressure import BUFFERED_EVENTS_MAX, Measures, Retention, next_pressure, read_while_paused
from domain.stream.messages import Pressure, PressureEntered
from domain.stream.progress import Progress
from services.stream_session import Session
from services.stream_source import Reading


class PressureGauge:
    """Asked by the loop: `measure` after each poll, `held` before the next. One thread."""

    def __init__(self, session: Session, reading: Reading, progress: Progress) -> None:
        self._session = session
        self._reading = reading
        self._progress = progress
        self._monotonic = session.tools.monotonic
        self._limits = session.tools.settings.pressure
        self._state = session.standing.journal.pressure
        self._bytes = 0
        self._width = 1
        self._disk_free = 2**62
        self._disk_looked_at = float("-inf")
        self._retention = Retention()
        self._retention_looked_at = self._monotonic()
        self._threatened: tuple[int, ...] = ()

    @property
    def state(self) -> Pressure:
        """The state now."""
        return self._state

    @property
    def wants_commit(self) -> bool:
        """Whether a commit relieves, or saves what a checkpoint needs."""
        return self._state in (Pressure.SOURCE_PAUSED, Pressure.RECOVERY_BLOCKED)

    @property
    def held(self) -> Iterable[int]:
        """Partitions that are not to be read now."""
        progress = self._progress
        everything = range(progress.core.partitions)
        if self._state is Pressure.SOURCE_PAUSED:
            return everything
        marks = progress.marks or {}
        done = {p for p in marks if progress.next_offsets[p] >= marks[p]}
        if self._state is not Pressure.PROCESS_PAUSED:
            return done
        able = [partition for partition in everything if partition not in done]
        return set(everything) - read_while_paused(progress.core.watermarks, able, self._width)

    def committed(self) -> None:
        """Everything received is committed."""
        self._bytes = 0
        self._threatened = ()
        self.measure(0, delivered=True)

    def measure(self, received_bytes: int, *, delivered: bool) -> None:
        """Take the measures after a poll, and act on them. Raises `RunTooLargeError`, and what recording raises."""
        self._bytes += received_bytes
        if self._state is Pressure.PROCESS_PAUSED and not delivered:
            self._width += 1
        self._look_at_disk()
        self._look_at_retention()
        buffered = self._progress.core.buffered_beyond(self._limits.buffered_events.low)
        if buffered > BUFFERED_EVENTS_MAX * self._limits.buffered_events.high:
            raise RunTooLargeError(f"{buffered} events wait for their watermark", at=self._session.run_id)
        measures = Measures(
            uncommitted_records=self._progress.uncommitted,
            uncommitted_bytes=self._bytes,
            buffered_events=buffered,
            disk_free_bytes=self._disk_free,
            threatened=self._threatened,
        )
        self._enter(*next_pressure(self._state, measures, self._limits))

    def _enter(self, state: Pressure, reason: str) -> None:
        if state is self._state:
            return
        session = self._session
        session.record(PressureEntered(run_id=session.run_id, token=session.token, state=state, reason=reason))
        session.say("stream.pressure", detail=f"{state.value} {reason}".strip())
        self._state = state
        self._width = 1

    def _look_at_disk(self) -> None:
        now = self._monotonic()
        if now - self._disk_looked_at < self._session.tools.settings.look_seconds:
            return
        self._disk_looked_at = now
        try:
            self._disk_free = self._session.tools.disk_free()
        except OSError:
            self._disk_free = 2**62

    def _look_at_retention(self) -> None:
        now = self._monotonic()
        if now - self._retention_looked_at < self._session.tools.settings.retention_look_seconds:
            return
        self._retention_looked_at = now
        try:
            lows = {partition: marks.low for partition, marks in self._reading.marks_now().items()}
        except InfrastructureError:
            return
        committed = self._session.standing.checkpoint.next_offsets or self._session.standing.journal.start_offsets
        needed = {int(partition): offset for partition, offset in committed.items()}
        self._threatened = self._retention.threatened(lows, needed)
        self._retention = Retention(lows)
