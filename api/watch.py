"""Watch a run by server-sent events.

Each event of the run's own stream is one message: `id` is its position, `event` its topic, `data` the document that the run's
history has. What must stay true: a watcher sees every event of the run exactly once per connection, in order, whatever is lost or
repeated below; after `Last-Event-ID: N` it goes on behind position N; the stream ends behind the run's last event, and asking
again then is answered 204, which tells an EventSource to stop. A watch holds no state that a crash could lose.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Final

import msgspec

from api.answers import Answer, Stream
from api.auth import Scope
from api.declaring import LAST_EVENT_ID, read_last_event_id
from api.operations import AnswerSpec, Call, Operation
from api.parameters import Parameter
from api.parts import ApiParts
from api.problems import document_of
from api.runs import RUN_ID
from api.schemas import view_event
from api.tail import WATCHED_TOPICS, Subscription
from domain.canonical import canonical
from domain.errors import FinazError
from domain.events import Recorded
from domain.identity import run_stream
from domain.runs.messages import RunCancelled, RunFailed, RunSucceeded

KEEP_ALIVE_SECONDS: Final = 15.0
"""Silence after which a comment is sent, so that nothing between takes the connection for dead."""

EVENT_STREAM: Final = "text/event-stream"
_KEEP_ALIVE: Final = b": keep-alive\n\n"
_HELLO: Final = b": watching\n\n"
LAST_TOPICS: Final = frozenset({RunSucceeded.topic, RunFailed.topic, RunCancelled.topic})
"""The topics behind which nothing more happens to a run; a test holds them to the transition table."""

_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$", "description": "The event's position; absent from a problem."},
        "event": {"type": "string", "enum": [*WATCHED_TOPICS, "problem"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The watch."""
    parameters: tuple[Parameter, ...] = (RUN_ID, LAST_EVENT_ID)
    yield Operation(
        name="watchRun",
        method="GET",
        path="/v1/runs/{run_id}/watch",
        summary="Watch a run by server-sent events",
        description=(
            "One message per event of the run: `id` its position, `event` its topic, `data` as in the run's history."
            " Resumes behind `Last-Event-ID`; ends behind the run's last event."
        ),
        scope=Scope.RUNS_READ,
        parameters=parameters,
        answers=(
            AnswerSpec(status=200, description="The run's events.", content={EVENT_STREAM: _MESSAGE}),
            AnswerSpec(status=204, description="The run has ended and nothing is left to send."),
        ),
        problems=(404,),
        handler=_Watches(parts).watch,
    )


class _Watches:
    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    async def watch(self, call: Call) -> Answer | Stream:
        run_id: str = call.path_arguments["run_id"]
        after = read_last_event_id(call) or 0
        stream = run_stream(run_id)
        subscription = await self._parts.tail.subscribe(stream)
        self._parts.metrics.watchers(self._parts.tail.watchers)

        def close() -> None:
            self._parts.tail.unsubscribe(stream, subscription)
            self._parts.metrics.watchers(self._parts.tail.watchers)

        try:
            events = await self._read(call, run_id)
        except BaseException:
            close()
            raise
        missed = [recorded for recorded in events if recorded.position > after]
        if not missed and events[-1].event.topic in LAST_TOPICS:
            close()
            return Answer(204, b"", EVENT_STREAM)
        return Stream(self._chunks(call, run_id, after, missed, subscription), close, EVENT_STREAM)

    async def _chunks(
        self, call: Call, run_id: str, after: int, missed: Sequence[Recorded], subscription: Subscription
    ) -> AsyncGenerator[bytes, None]:
        """Messages until the run ends, the tail closes, or a read fails; then the client comes back behind its last id."""
        try:
            yield _HELLO
            events = missed
            while True:
                fresh = [recorded for recorded in events if recorded.position > after]
                if fresh:
                    after = fresh[-1].position
                    yield b"".join(_message(recorded) for recorded in fresh)
                    if fresh[-1].event.topic in LAST_TOPICS:
                        return
                if subscription.closed:
                    return
                events, lagged = await subscription.take(KEEP_ALIVE_SECONDS)
                if lagged:
                    events = await self._read(call, run_id)
                elif not events and not subscription.closed:
                    yield _KEEP_ALIVE
        except FinazError as error:
            yield _problem(error, call.request_id)

    async def _read(self, call: Call, run_id: str) -> Sequence[Recorded]:
        """The events of the run's own stream, straight from the log."""
        history = await self._parts.runs.history(run_id, call.principal.name, call.principal.operates)
        return [recorded for recorded in history if recorded.stream == run_stream(run_id)]


def _message(recorded: Recorded) -> bytes:
    data = canonical(msgspec.to_builtins(view_event(recorded)))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (recorded.position, recorded.event.topic.encode(), data)


def _problem(error: FinazError, request_id: str) -> bytes:
    """The head is sent already: the problem goes in-band, and the connection closes behind it."""
    return b"event: problem\ndata: %s\n\n" % canonical(document_of(error, request_id))
