"""Fault schedules of a replay: which events of a snapshot arrive twice, late, never, revised, in bursts, or behind a pause.

What must stay true: a schedule is a value with one address; what it names must exist and must not contradict itself, or it is
refused as a whole, before anything is made of it; a schedule made at random is a function of seed, rates and events alone, the
same on every machine (SHA-256 of seed and event id, no generator of the language). Pure: a crash leaves nothing.
"""

import hashlib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from domain.canonical import address_of
from domain.market.errors import ScheduleInvalidError
from domain.market.fields import Reader
from domain.market.records import FIELDS, to_value

FORMAT: Final = "FINAZ_FAULT_SCHEDULE_V1"

FAULTS_MAX: Final = 1_000_000
"""Faults of one schedule."""

COPIES_MAX: Final = 1000
"""Arrivals that one burst may make of one event."""

SECONDS_MAX: Final = 31_536_000
"""Seconds by which an event may be delayed, or its revision come later: a year."""

MILLISECONDS_MAX: Final = 86_400_000
"""Milliseconds that a pause or a source's failure may last: a day."""


class FaultKind(Enum):
    """What can happen to an event, in the order in which faults apply."""

    GAP = "GAP"
    DELAY = "DELAY"
    REVISION = "REVISION"
    DUPLICATE = "DUPLICATE"
    BURST = "BURST"
    PAUSE = "PAUSE"
    SOURCE_FAILURE = "SOURCE_FAILURE"


COPYING: Final = frozenset({FaultKind.DUPLICATE, FaultKind.BURST})
ANNOUNCED: Final = frozenset({FaultKind.PAUSE, FaultKind.SOURCE_FAILURE})

PARAMETERS: Final[Mapping[FaultKind, tuple[str, ...]]] = {
    FaultKind.GAP: (),
    FaultKind.DELAY: ("seconds",),
    FaultKind.REVISION: ("seconds", "values"),
    FaultKind.DUPLICATE: (),
    FaultKind.BURST: ("copies",),
    FaultKind.PAUSE: ("milliseconds",),
    FaultKind.SOURCE_FAILURE: ("milliseconds",),
}
"""The parameters of each kind; all of them are required."""

SEED_MAX: Final = 2**63 - 1
"""The highest seed."""

_LIMITS: Final = {"seconds": SECONDS_MAX, "milliseconds": MILLISECONDS_MAX, "copies": COPIES_MAX}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of one event. `parameters` are as `PARAMETERS` names them."""

    event: str
    kind: FaultKind
    parameters: dict[str, Any] = {}


class FaultSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Faults in the order of their document, and the seed that stands in the arrival log's hash."""

    seed: int
    faults: tuple[Fault, ...] = ()

    @property
    def by_event(self) -> dict[str, tuple[Fault, ...]]:
        """The faults of each event that has some, in the order in which they apply."""
        order = {kind: number for number, kind in enumerate(FaultKind)}
        found: dict[str, list[Fault]] = {}
        for fault in self.faults:
            found.setdefault(fault.event, []).append(fault)
        return {event: tuple(sorted(faults, key=lambda f: order[f.kind])) for event, faults in found.items()}


NO_FAULTS: Final = FaultSchedule(seed=0)


def schedule_body(schedule: FaultSchedule) -> dict[str, Any]:
    """The schedule as JSON; its address is the schedule's."""
    faults = [{"event": f.event, "kind": f.kind.value, "parameters": f.parameters} for f in schedule.faults]
    return {"faults": faults, "format": FORMAT, "seed": schedule.seed}


def schedule_address(schedule: FaultSchedule) -> str:
    """The content address of a schedule."""
    return address_of(schedule_body(schedule))


def parse_schedule(value: Any) -> FaultSchedule:
    """Read a schedule. `ScheduleInvalidError` with the place for whatever is not as `schedule_body` writes it, or contradicts."""
    reader = Reader(value, "$", ("faults", "format", "seed"), error=ScheduleInvalidError)
    reader.choice("format", (FORMAT,))
    schedule = FaultSchedule(
        seed=reader.integer("seed", 0, SEED_MAX),
        faults=tuple(_fault(item, at) for item, at in reader.items("faults", least=0, most=FAULTS_MAX)),
    )
    _check_contradictions(schedule)
    return schedule


def check_events(schedule: FaultSchedule, known: Iterable[str]) -> None:
    """Raise `ScheduleInvalidError` for the first fault that names an event that isn't among the known ones."""
    ids = set(known)
    for number, fault in enumerate(schedule.faults):
        if fault.event not in ids:
            at = f"$.faults[{number}].event"
            raise ScheduleInvalidError(f"there is no event {fault.event!r}", at=at, expected="an event of the snapshot")


def random_schedule(seed: int, rates: Mapping[FaultKind, float], events: Iterable[str]) -> FaultSchedule:
    """A schedule in which each event has each kind of fault with the kind's probability, where that is no contradiction.

    Events keep their order. Raises `ScheduleInvalidError` for a rate outside 0..1.
    """
    for kind, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            raise ScheduleInvalidError(f"a rate of {rate}", at=f"rates.{kind.value}", expected="0 to 1")
    faults: list[Fault] = []
    for event in events:
        chosen: list[Fault] = []
        for kind in FaultKind:
            if _chance(seed, event, kind.value) < rates.get(kind, 0.0) and not _contradicted(chosen, kind):
                chosen.append(Fault(event=event, kind=kind, parameters=_random_parameters(seed, event, kind)))
        faults += chosen
    return FaultSchedule(seed=seed, faults=tuple(faults))


def _fault(value: Any, at: str) -> Fault:
    reader = Reader(value, at, ("event", "kind"), ("parameters",), ScheduleInvalidError)
    kind = FaultKind(reader.choice("kind", tuple(kind.value for kind in FaultKind)))
    place = f"{at}.parameters"
    given = Reader(reader.member("parameters", {}), place, PARAMETERS[kind], (), ScheduleInvalidError)
    parameters: dict[str, Any] = {}
    for name in PARAMETERS[kind]:
        if name == "values":
            parameters[name] = _values(given.member(name), f"{place}.values")
        else:
            parameters[name] = given.integer(name, 2 if name == "copies" else 0, _LIMITS[name])
    return Fault(event=reader.name("event"), kind=kind, parameters=parameters)


def _values(value: Any, at: str) -> dict[str, float | None]:
    """Value columns that the revision changes; the rest stay as they were."""
    reader = Reader(value, at, None, (), ScheduleInvalidError)
    columns = [reader.checked_name(column, at) for column in sorted(value)]
    for column in columns:
        if column in FIELDS:
            raise ScheduleInvalidError("a revision cannot change it", at=f"{at}.{column}", expected="value columns")
    return {column: to_value(value[column], at=f"{at}.{column}") for column in columns}


def _check_contradictions(schedule: FaultSchedule) -> None:
    chosen: dict[str, list[Fault]] = {}
    for number, fault in enumerate(schedule.faults):
        before = chosen.setdefault(fault.event, [])
        if _contradicted(before, fault.kind):
            kinds = ", ".join(other.kind.value for other in before)
            at = f"$.faults[{number}]"
            raise ScheduleInvalidError(
                f"{fault.kind.value} of {fault.event} contradicts {kinds}",
                at=at,
                expected="each kind once; a GAP alone; DUPLICATE or BURST",
            )
        before.append(fault)


def _contradicted(before: list[Fault], kind: FaultKind) -> bool:
    """What never arrives can have nothing else; how many copies arrive is said once; so is everything else."""
    kinds = {fault.kind for fault in before}
    if kinds and (kind is FaultKind.GAP or FaultKind.GAP in kinds):
        return True
    return kind in kinds or (kind in COPYING and bool(kinds & COPYING))


def _random_parameters(seed: int, event: str, kind: FaultKind) -> dict[str, Any]:
    size = _chance(seed, event, kind.value, "size")
    match kind:
        case FaultKind.DELAY:
            return {"seconds": 1 + int(size * 300)}
        case FaultKind.REVISION:
            return {"seconds": 1 + int(size * 600), "values": {}}
        case FaultKind.BURST:
            return {"copies": 2 + int(size * 4)}
        case FaultKind.PAUSE | FaultKind.SOURCE_FAILURE:
            return {"milliseconds": int(size * 500)}
    return {}


def _chance(*parts: object) -> float:
    """A number in [0, 1) that is a function of the parts."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
