"""Jobs over HTTP: rebuilds, audits and other long work that operators ask for. All of it needs the scope `operate`.

What must stay true: what is asked for is checked before anything happens; a second living job of one kind and target is refused;
a job is confirmed and cancelled by somebody whose name is kept. Decode, call one service, encode. A crash leaves each done or not.
"""

from collections.abc import Iterator
from typing import Final

from api.answers import Answer, json_answer
from api.declaring import document_answer, operator_operation, tell
from api.operations import BodySpec, Call, Operation
from api.parameters import Place, choice, cursor, limit, pattern
from api.parts import ApiParts
from api.schemas import EventList, JobList, view_event
from domain.errors import BodyInvalidError, InputError
from services.jobs import DOCUMENT_BYTES_MAX, JOB_STATES, JobNotFoundError, JobView

JOB_ID_PATTERN: Final = "^job_[0-9a-f]{32}$"
JOBS_PAGE_MAX: Final = 200
JOBS_PAGE_DEFAULT: Final = 50

REQUEST_BYTES_MAX: Final = 4 * DOCUMENT_BYTES_MAX
"""Bytes of a request for a job: its parameters, in whatever spelling."""

_JOB_ID: Final = pattern("job_id", "The job.", JOB_ID_PATTERN, JobNotFoundError, place=Place.PATH)
_LIST_PARAMETERS: Final = (
    choice("state", "In this state; `AWAITING` waits for an operator.", JOB_STATES),
    pattern("kind", "Of this kind.", "^[a-z_]{1,64}$", InputError, place=Place.QUERY),
    cursor(),
    limit("Jobs", maximum=JOBS_PAGE_MAX, default=JOBS_PAGE_DEFAULT),
)
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 255}


def operations(parts: ApiParts) -> Iterator[Operation]:
    """The operations of jobs."""
    handlers = _Handlers(parts)
    yield from _of_all(handlers, parts.jobs.kinds)
    yield from _of_one(handlers)


def _of_all(handlers: "_Handlers", kinds: tuple[str, ...]) -> Iterator[Operation]:
    yield operator_operation(
        "requestJob",
        "POST",
        "/v1/jobs",
        "Ask for a job: a rebuild, an audit, …",
        handlers.request,
        document_answer("It waits for a runner.", JobView, 202),
        body=_body(kinds),
        problems=(404, 409, 422),
    )
    yield operator_operation(
        "listJobs",
        "GET",
        "/v1/jobs",
        "Jobs, the newest first",
        handlers.list,
        document_answer("A page of jobs.", JobList),
        parameters=_LIST_PARAMETERS,
        problems=(409,),
    )


def _of_one(handlers: "_Handlers") -> Iterator[Operation]:
    yield operator_operation(
        "getJob",
        "GET",
        "/v1/jobs/{job_id}",
        "A job as of now: how far it is, at what rate, what it found",
        handlers.get,
        document_answer("The job.", JobView),
        parameters=(_JOB_ID,),
        problems=(404,),
    )
    yield operator_operation(
        "getJobHistory",
        "GET",
        "/v1/jobs/{job_id}/events",
        "What has happened to a job",
        handlers.history,
        document_answer("The events of the job and of its leases, by position.", EventList),
        parameters=(_JOB_ID,),
        problems=(404,),
    )
    yield operator_operation(
        "confirmJob",
        "POST",
        "/v1/jobs/{job_id}/confirm",
        "Have a job go on that waits for a confirmation",
        handlers.confirm,
        document_answer("The job, which goes on.", JobView),
        parameters=(_JOB_ID,),
        problems=(404, 409),
    )
    yield operator_operation(
        "cancelJob",
        "POST",
        "/v1/jobs/{job_id}/cancel",
        "Ask that a job end without an effect",
        handlers.cancel,
        document_answer("The job, which ends at its next border. Asking twice is asking once.", JobView),
        parameters=(_JOB_ID,),
        problems=(404, 409),
    )


def _body(kinds: tuple[str, ...]) -> BodySpec:
    """A request for a job of any of these kinds; what parameters a kind takes is its own to say."""
    kind = {"type": "string", "enum": list(kinds)}
    return BodySpec(
        media_type="application/json",
        bytes_max=REQUEST_BYTES_MAX,
        schema={
            "type": "object",
            "required": ["kind", "target"],
            "properties": {"kind": kind, "target": _NAME, "document": {"type": "object"}},
            "additionalProperties": False,
        },
        example={"kind": "rebuild", "target": "runs", "document": {"switch": "if_equal"}},
    )


class _Handlers:
    def __init__(self, parts: ApiParts) -> None:
        self._jobs = parts.jobs
        self._metrics = parts.metrics

    async def request(self, call: Call) -> Answer:
        body = await call.json(REQUEST_BYTES_MAX)
        if not isinstance(body, dict) or not {"kind", "target"} <= body.keys() <= {"kind", "target", "document"}:
            raise BodyInvalidError("the body is something else", at="$", expected="an object of kind, target, document")
        kind, target, document = body["kind"], body["target"], body.get("document", {})
        for field, value, wanted in (("kind", kind, str), ("target", target, str), ("document", document, dict)):
            if not isinstance(value, wanted):
                raise BodyInvalidError("of another type", at=f"$.{field}", expected=wanted.__name__)
        view = await self._jobs.request(kind, target, document, call.principal.name)
        self._metrics.appended()
        _tell_of("job requested", call, view)
        return json_answer(view, status=202)

    async def list(self, call: Call) -> Answer:
        given = call.arguments
        page = await self._jobs.list(given["state"], given["kind"], given["cursor"], given["limit"])
        return json_answer(JobList(items=page.items, next_cursor=page.next_cursor, position=page.position))

    async def get(self, call: Call) -> Answer:
        return json_answer(await self._jobs.get(call.path_arguments["job_id"]))

    async def history(self, call: Call) -> Answer:
        found = await self._jobs.history(call.path_arguments["job_id"])
        return json_answer(EventList(items=tuple(view_event(recorded) for recorded in found)))

    async def confirm(self, call: Call) -> Answer:
        view = await self._jobs.confirm(call.path_arguments["job_id"], call.principal.name)
        self._metrics.appended()
        _tell_of("job confirmed", call, view)
        return json_answer(view)

    async def cancel(self, call: Call) -> Answer:
        view = await self._jobs.cancel(call.path_arguments["job_id"], call.principal.name)
        self._metrics.appended()
        _tell_of("job cancelled", call, view)
        return json_answer(view)


def _tell_of(what: str, call: Call, view: JobView) -> None:
    tell(what, call, job_id=view.job_id, kind=view.kind, target=view.target, state=view.state)
