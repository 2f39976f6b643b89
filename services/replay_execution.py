"""What a REPLAY run computes: the arrival log of its snapshot and schedule, folded in memory by the rules of the stream.

What must stay true: the log is the one that `finaz replay` makes of the same inputs; log, schedule and report are stored before
the result that names them; a log that one run can't hold is a typed error, never half a log. Nothing is written here.
"""

from collections.abc import Callable, Iterable
from typing import Final

from domain.canonical import canonical
from domain.market.arrivals import ARRIVALS_MAX, PROGRESS_RECORDS, ArrivalLog, encoded_log, log_lines
from domain.market.chunks import Rows
from domain.market.errors import RunTooLargeError
from domain.market.faults import FaultSchedule, schedule_body
from domain.market.feature_batch import FORMAT
from domain.market.pipeline import FlowPlan, check_inputs
from domain.market.snapshot import Manifest
from domain.stream.replayed import encode_report, replay_report, replayed
from services.batch_parts import Border, Computed, Output, Tick
from services.cas import BLOB_BYTES_MAX
from services.replay import with_bytes

WORK_PER_RECORD: Final = 50
"""How many records of a batch run one record of a replay weighs: it is made, encoded, hashed, read and judged one by one."""

LOG_BYTES_MAX: Final = BLOB_BYTES_MAX
"""Bytes of an arrival log that a run records: one blob."""


class ReplayInputs:
    """A flow, a schedule and the snapshot that it falls upon. `parts` are the snapshot's chunks, read as they are asked for."""

    def __init__(
        self,
        plan: FlowPlan,
        snapshot: str,
        manifest: Manifest,
        as_of: int,
        schedule: FaultSchedule,
        parts: Callable[[], Iterable[Rows]],
    ) -> None:
        self._plan = plan
        self._snapshot = snapshot
        self._manifest = manifest
        self._as_of = as_of
        self._schedule = schedule
        self._parts = parts

    def compute(self, border: Border, tick: Tick) -> Computed:
        """Make the log and fold it. A border stands between the two."""
        check_inputs(self._plan, self._manifest)
        log = self._log(tick)
        lines = logged_bytes(log, self._as_of, self._schedule, self._snapshot, tick)
        border("ops")
        done = replayed(self._plan.flow, log, tick)
        report = replay_report(log, self._as_of, self._schedule, self._snapshot, done)
        outputs = tuple(
            Output(
                name=output.name,
                values_hash=done.batch.values_hash(output.name, tick),
                rows=done.batch.rows(output.name),
                schema=FORMAT,
            )
            for output in self._plan.flow.outputs
        )
        inputs = (canonical(schedule_body(self._schedule)), lines, encode_report(report))
        return Computed(artifact=done.batch.encode(tick), outputs=outputs, inputs=inputs)

    def _log(self, tick: Tick) -> ArrivalLog:
        if self._manifest.rows > ARRIVALS_MAX:
            raise RunTooLargeError(
                f"{self._manifest.rows} records to replay", at=self._snapshot, expected=f"at most {ARRIVALS_MAX}"
            )

        events = with_bytes(self._parts(), self._manifest)
        return encoded_log(events, self._as_of, self._schedule, self._snapshot, tick)


def logged_bytes(log: ArrivalLog, as_of: int, schedule: FaultSchedule, snapshot: str, tick: Tick) -> bytes:
    """The log's lines as one blob, whose address is its `log_hash`. Raises `RunTooLargeError`."""
    parts: list[bytes] = []
    size = 0
    for number, line in enumerate(log_lines(log.arrivals, as_of, schedule, snapshot)):
        parts.append(line)
        size += len(line)
        if size > LOG_BYTES_MAX:
            raise RunTooLargeError(
                "the arrival log is too long", at=snapshot, expected=f"at most {LOG_BYTES_MAX} bytes"
            )
        if number % PROGRESS_RECORDS == 0:
            tick()
    return b"".join(parts)
