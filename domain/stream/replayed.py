"""A replay folded in memory: an arrival log through the stream's core, and the report that says what happened.

What must stay true: the values are those of a STREAM run over a topic that holds the same log as one load in the same number of
partitions; the report names every fault of the schedule and what it did, and adds up: each record has one treatment. Pure.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from domain.canonical import canonical, parse
from domain.errors import CanonicalError
from domain.instants import format_micros
from domain.market.arrivals import AppliedFault, ArrivalLog
from domain.market.errors import RunTooLargeError
from domain.market.faults import FaultSchedule, schedule_address
from domain.market.feature_batch import FeatureBatch
from domain.market.flow import FlowSpec
from domain.market.pipeline import RESULT_TICKS_MAX
from domain.stream.collected import Collected
from domain.stream.publication import DEFAULT_PARTITIONS, load_base, load_ids, records_of
from domain.stream.worker_core import DEFAULT_LIMITS, StreamCore, StreamLimits, Treatment

FORMAT: Final = "FINAZ_REPLAY_V1"

DRAIN_RECORDS: Final = 256
"""Records between two looks at what was released, and two calls of `tick`."""


class Replayed(msgspec.Struct, frozen=True):
    """What folding a log gave: the values, how often each treatment was given, and the records of each partition."""

    batch: FeatureBatch
    treatments: dict[str, int]
    partitions: tuple[int, ...]


def replayed(
    flow: FlowSpec,
    log: ArrivalLog,
    tick: Callable[[], None],
    partitions: int = DEFAULT_PARTITIONS,
    limits: StreamLimits = DEFAULT_LIMITS,
) -> Replayed:
    """Fold the log. Calls `tick` as it gets on, which may raise to leave. Raises `RunTooLargeError` for too many ticks."""
    core, collected = StreamCore(flow, partitions, limits), Collected()
    (load_id,) = load_ids(load_base(log), 1)
    counts: Counter[int] = Counter()
    for number, record in enumerate(records_of(log.arrivals, load_id, partitions)):
        core.process(record)
        counts[record.partition] += 1
        if number % DRAIN_RECORDS == 0:
            _collect(core, collected, flow)
            tick()
    core.finish()
    _collect(core, collected, flow)
    treatments = {treatment.value: core.counts[treatment] for treatment in Treatment}
    return Replayed(collected.batch(flow), treatments, tuple(counts[number] for number in range(partitions)))


def _collect(core: StreamCore, collected: Collected, flow: FlowSpec) -> None:
    collected.take(core)
    if collected.rows > RESULT_TICKS_MAX:
        expected = f"at most {RESULT_TICKS_MAX} in all"
        raise RunTooLargeError(f"more than {RESULT_TICKS_MAX} ticks", at=flow.name, expected=expected)


# ------------------------------------------------------------------------------------------------ the report


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a REPLAY run folded: its inputs, where its log is (the address is the `log_hash`), what each fault did to it.

    `partitions` has the number of records of each partition; `limits` are microseconds of event time.
    """

    format: str
    snapshot: str
    as_of: str
    schedule: str
    seed: int
    log_hash: str
    arrivals: int
    partitions: tuple[int, ...]
    limits: dict[str, int]
    treatments: dict[str, int]
    applied: tuple[dict[str, Any], ...]


def replay_report(log: ArrivalLog, as_of: int, schedule: FaultSchedule, snapshot: str, done: Replayed) -> ReplayReport:
    """The report of a replay."""
    return ReplayReport(
        format=FORMAT,
        snapshot=snapshot,
        as_of=format_micros(as_of),
        schedule=schedule_address(schedule),
        seed=schedule.seed,
        log_hash=log.log_hash,
        arrivals=len(log.arrivals),
        partitions=done.partitions,
        limits=msgspec.structs.asdict(DEFAULT_LIMITS),
        treatments=done.treatments,
        applied=tuple(applied_document(applied) for applied in log.applied),
    )


def applied_document(applied: AppliedFault) -> dict[str, Any]:
    """A fault as it was applied: `records` are the indices of the log's lines that it made or moved, `removed` counts the rest."""
    fault = applied.fault
    return {
        "event": fault.event,
        "kind": fault.kind.value,
        "parameters": fault.parameters,
        "records": list(applied.records),
        "removed": applied.removed,
    }


def encode_report(report: ReplayReport) -> bytes:
    """The canonical bytes of a report."""
    return canonical(msgspec.to_builtins(report))


def parse_report(data: bytes) -> ReplayReport | None:
    """The report that the bytes are, or None if they are none."""
    try:
        report = msgspec.convert(parse(data), ReplayReport, strict=True)
    except (CanonicalError, msgspec.ValidationError):
        return None
    return report if report.format == FORMAT else None
