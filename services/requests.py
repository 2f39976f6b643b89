"""Bodies of requests, typed: what a client may ask for, read strictly.

A body is first read by our own parser (`domain.canonical.parse`), then becomes a typed body here. What must stay true: unknown
fields, wrong types and names that aren't NFC are refused with their place; `1.0` is no integer; equal bodies have one canonical
value, defaults filled in and flows in their canonical form, and that is what a body hash addresses. Pure: nothing is looked up.
"""

import re
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec

from domain.canonical import address, address_of, canonical, is_address
from domain.errors import BodyInvalidError, FinazError
from domain.identity import RUN_ID, checked_name
from domain.instants import EPOCH, format_instant, parse_instant
from domain.market.faults import parse_schedule, schedule_body
from domain.runs.messages import Mode
from services.known_flows import known_flow

SWEEP_RUNS_MAX: Final = 1000
"""Runs that one sweep may ask for: they are one append."""

TAGS_MAX: Final = 32
"""Tags of one run."""

PRIORITY_MAX: Final = 100
"""Highest priority; the lowest is its negative."""

DEADLINE_SECONDS_MAX: Final = 7 * 86_400
"""Seconds that a run may be given at most."""

DEADLINE_SECONDS_DEFAULT: Final = 86_400

Priority = Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]
DeadlineSeconds = Annotated[int, msgspec.Meta(ge=1, le=DEADLINE_SECONDS_MAX)]
Tags = Annotated[tuple[str, ...], msgspec.Meta(max_length=TAGS_MAX)]
Aware = Annotated[datetime, msgspec.Meta(tz=True)]
Flow = dict[str, Any] | str
Schedule = dict[str, Any] | str
Parameters = dict[str, dict[str, Any]]

TOPIC_LENGTH_MAX: Final = 249
"""Characters of a topic's name, by the brokers' rule."""

_TOPIC: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}\Z")

B = TypeVar("B", "RunBody", "SweepBody")


class RunBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to be admitted. `flow` is a flow in canonical form or the address of a stored one; `snapshot` a manifest's address.

    A STREAM run names its `topic`; what the source published there is in `snapshot` as of `as_of`, if that is known: both or
    neither (""). It ends at the marks captured when it first opens the topic, unless `bounded` is false; `continues` is a BATCH
    run that has ended, behind which it goes on. Other modes have none of these, and need a snapshot. A REPLAY run may have a fault
    `schedule`, as a document or the address of a stored one ("": no faults).
    """

    mode: Mode
    flow: Flow
    snapshot: str = ""
    as_of: Aware = EPOCH
    tags: Tags = ()
    priority: Priority = 0
    deadline_seconds: DeadlineSeconds = DEADLINE_SECONDS_DEFAULT
    topic: str = ""
    bounded: bool = True
    continues: str = ""
    schedule: Schedule = ""


class SweepBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Many runs at once: every flow, for every instrument (none: the flow's own), with every set of parameters.

    One set of parameters is `{node id: {parameter: value}}`. All runs of a REPLAY sweep have one `schedule`.
    """

    mode: Mode
    flows: Annotated[tuple[Flow, ...], msgspec.Meta(min_length=1, max_length=SWEEP_RUNS_MAX)]
    snapshot: str
    as_of: Aware
    instruments: Annotated[tuple[str, ...], msgspec.Meta(max_length=SWEEP_RUNS_MAX)] = ()
    parameters: Annotated[tuple[Parameters, ...], msgspec.Meta(min_length=1, max_length=SWEEP_RUNS_MAX)] = ({},)
    tags: Tags = ()
    priority: Priority = 0
    deadline_seconds: DeadlineSeconds = DEADLINE_SECONDS_DEFAULT
    schedule: Schedule = ""

    @property
    def runs(self) -> int:
        """How many runs the sweep asks for."""
        return len(self.flows) * max(1, len(self.instruments)) * len(self.parameters)


def parse_run_body(value: Any) -> RunBody:
    """The typed body of `POST /v1/runs` from the value that `canonical.parse` gave.

    Raises `BodyInvalidError`, `InstantInvalidError`, `NameInvalidError`, `FlowInvalidError`, `UnknownOpError` or
    `ScheduleInvalidError`, each with the place (`$.flow.nodes[0].op`).
    """
    body = _typed(value, RunBody)
    _check_mode(body, value)
    _check_common(body, value)
    return msgspec.structs.replace(
        body, flow=_checked_flow(body.flow, "$.flow"), schedule=_checked_schedule(body.schedule)
    )


def parse_sweep_body(value: Any) -> SweepBody:
    """The typed body of a sweep; raises as `parse_run_body`, and `BodyInvalidError` for more than `SWEEP_RUNS_MAX` runs."""
    body = _typed(value, SweepBody)
    _check_common(body, value)
    for index, instrument in enumerate(body.instruments):
        checked_name(instrument, at=f"$.instruments[{index}]")
    if body.runs > SWEEP_RUNS_MAX:
        raise BodyInvalidError(f"a sweep of {body.runs} runs", at="$", expected=f"at most {SWEEP_RUNS_MAX} runs")
    flows = tuple(_checked_flow(flow, f"$.flows[{index}]") for index, flow in enumerate(body.flows))
    return msgspec.structs.replace(body, flows=flows, schedule=_checked_schedule(body.schedule))


def body_value(body: RunBody | SweepBody) -> dict[str, Any]:
    """The canonical value of a typed body; `address_of` it is the body hash.

    What only some modes have is left out where it has its default: bodies keep the hashes that they had before it was there.
    """
    value: dict[str, Any] = msgspec.structs.asdict(body)
    value["mode"] = body.mode.value
    value["as_of"] = format_instant(body.as_of)
    for name in _OF_SOME_MODES & value.keys():
        if value[name] == _DEFAULTS[name]:
            del value[name]
    if body.mode is Mode.STREAM and not body.snapshot:
        del value["snapshot"], value["as_of"]
    return value


_STREAM_ONLY: Final = ("topic", "bounded", "continues")
_OF_SOME_MODES: Final = frozenset({*_STREAM_ONLY, "schedule"})
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(RunBody)}
_HERE: Final = "here"
_FLOW_HERE: Final = canonical({"flow": _HERE})[1:-1]


def body_hash_of(body: RunBody | SweepBody) -> str:
    """The address of `body_value(body)`."""
    if isinstance(body, SweepBody) or isinstance(body.flow, str):
        return address_of(body_value(body))
    around = canonical(body_value(msgspec.structs.replace(body, flow=_HERE)))
    # What stands before the flow, by the order of keys, can hold no quoted word: the first match is the place.
    return address(around.replace(_FLOW_HERE, b'"flow":' + known_flow(body.flow).text, 1))


def _typed(value: Any, body_type: type[B]) -> B:
    if isinstance(value, dict) and isinstance(value.get("as_of"), str):
        value = {**value, "as_of": parse_instant(value["as_of"], at="$.as_of")}
    try:
        return msgspec.convert(value, body_type, strict=True)
    except msgspec.ValidationError as error:
        raise _body_invalid(str(error)) from None


def _body_invalid(message: str) -> BodyInvalidError:
    """msgspec's sentence, cut into what is wrong and where."""
    detail, _, place = message.partition(" - at `")
    return BodyInvalidError(detail, at=place.rstrip("`") or "$", expected="a body as the documentation says")


def _check_mode(body: RunBody, given: dict[str, Any]) -> None:
    """What a mode needs is there, and nothing that only another mode has."""
    if body.mode is not Mode.STREAM:
        for name in ("snapshot", "as_of"):
            if name not in given:
                raise _body_invalid(f"Object missing required field `{name}`")
        for name in _STREAM_ONLY:
            if name in given:
                raise BodyInvalidError(f"a {body.mode.value} run has none", at=f"$.{name}", expected="mode STREAM")
        return
    check_topic(body.topic, at="$.topic")
    if bool(body.snapshot) != ("as_of" in given):
        raise BodyInvalidError(
            "a snapshot without an as-of instant, or the other way round",
            at="$.as_of" if body.snapshot else "$.snapshot",
            expected="both of them, or neither",
        )
    if body.continues and body.bounded:
        raise BodyInvalidError(
            "a run that goes on behind another has no marks to end at", at="$.bounded", expected="false"
        )
    if body.continues and RUN_ID.match(body.continues) is None:
        raise BodyInvalidError(f"{body.continues[:80]!r} is no run", at="$.continues", expected="a BATCH run's run_id")


def check_topic(topic: str, *, at: str) -> str:
    """The name itself, if a broker can have a topic of it. Raises `BodyInvalidError`."""
    if _TOPIC.match(topic) is None or topic in (".", ".."):
        expected = f"1 to {TOPIC_LENGTH_MAX} of A-Z a-z 0-9 . _ -"
        raise BodyInvalidError(f"{topic[:80]!r} is no topic", at=at, expected=expected)
    return topic


def _check_common(body: RunBody | SweepBody, given: dict[str, Any]) -> None:
    if body.mode is not Mode.REPLAY and "schedule" in given:
        raise BodyInvalidError(f"a {body.mode.value} run has none", at="$.schedule", expected="mode REPLAY")
    if not (body.mode is Mode.STREAM and not body.snapshot) and not is_address(body.snapshot):
        raise _no_address(body.snapshot, "$.snapshot")
    for index, tag in enumerate(body.tags):
        checked_name(tag, at=f"$.tags[{index}]")


def _checked_flow(flow: Flow, at: str) -> Flow:
    """The flow in canonical form; an address stays one."""
    if isinstance(flow, str):
        if not is_address(flow):
            raise _no_address(flow, at)
        return flow
    return canonical_flow(flow, at)


def _checked_schedule(schedule: Schedule) -> Schedule:
    """The schedule in canonical form; an address stays one."""
    if isinstance(schedule, str):
        if schedule and not is_address(schedule):
            raise _no_address(schedule, "$.schedule")
        return schedule
    with placed("$.schedule"):
        return schedule_body(parse_schedule(schedule))


def _no_address(text: str, at: str) -> BodyInvalidError:
    return BodyInvalidError(f"{text[:80]!r} is no content address", at=at, expected="sha256: and 64 hex digits")


class placed:  # noqa: N801 -- used as a function
    """Within it, the places that errors name (`$.nodes[0]`) become places below `at`."""

    __slots__ = ("_at",)

    def __init__(self, at: str) -> None:
        self._at = at

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FinazError):
            place = (error.at or "").removeprefix("$")
            place = "" if is_address(place) else place  # the blob that stands there
            error.at = self._at + (place if not place or place[0] in ".[" else f".{place}")


def canonical_flow(value: Any, at: str) -> dict[str, Any]:
    """A flow in canonical form. Raises as `parse_flow`, with places below `at`."""
    with placed(at):
        return known_flow(value).body
