"""The HTTP API seen from outside: what the command line and the demo say to a server, and the only place that knows its paths.

Requests that mean the same when they are made twice (reads, and writes that carry an idempotency key or a content address) are
repeated a few times when the server is away or overloaded, so a restart of the API is seen by nobody. What must stay true: an
answer that is no success is raised as the problem document that it carries; nothing is repeated that could happen twice.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

from deployment.problems import ProblemError
from domain.canonical import address, canonical, parse
from domain.errors import BlobCorruptError, BlobMissingError, InfrastructureError, InputError, RunNotReadyError

TIMEOUT_SECONDS: Final = 30.0
"""How long one request may take; streams may pause this long between two messages (the server sends a comment sooner)."""

VERDICT_SECONDS: Final = 900.0
"""How long a verdict may take: the server reads a topic for it."""

TRIES_MAX: Final = 6
"""How often a repeatable request is made, the first included."""

RETRY_DELAY_SECONDS_MIN: Final = 0.1
RETRY_DELAY_SECONDS_MAX: Final = 2.0

PAGE_ITEMS: Final = 200
"""Items asked for per page of a list."""

_AWAY: Final = frozenset({429, 502, 503, 504})


class ApiUnreachableError(InfrastructureError):
    """The API server did not answer."""

    code = "API_UNREACHABLE"


class Message:
    """One server-sent event: its kind, its data (JSON), and the id to go on from."""

    def __init__(self, kind: str, data: Any, event_id: str) -> None:
        self.kind = kind
        self.data = data
        self.event_id = event_id


class ApiClient:
    """A server at `url`, asked with `token`. Use as a context manager. Blocking; one thread at a time."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {"accept": "application/json, application/problem+json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # ---------------------------------------------------------------- runs

    def submit_run(self, body: Any, key: str) -> dict[str, Any]:
        """Admit a run once per key; `replayed` tells that it had been admitted before."""
        return self._submit("/v1/runs", body, key)

    def submit_sweep(self, body: Any, key: str) -> dict[str, Any]:
        """Admit a sweep once per key."""
        return self._submit("/v1/sweeps", body, key)

    def run(self, run_id: str) -> dict[str, Any]:
        """The run as it stands now, folded from its events."""
        return self._json("GET", f"/v1/runs/{_part(run_id)}")

    def runs(self, filters: Mapping[str, Any], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Runs from the read model, page by page, at most `limit`."""
        return self._items("/v1/runs", filters, limit)

    def cancel(self, run_id: str) -> dict[str, Any]:
        """Ask for the run to be cancelled; the run as it then stands."""
        return self._json("POST", f"/v1/runs/{_part(run_id)}/cancel")

    def history(self, run_id: str) -> list[dict[str, Any]]:
        """The events of the run and of its leases, in the order of the log."""
        return list(self._json("GET", f"/v1/runs/{_part(run_id)}/events")["items"])

    def watch(self, run_id: str) -> Iterator[Message]:
        """The run's events as they come, from its first to its last; a broken connection is taken up where it broke."""
        return self._stream(f"/v1/runs/{_part(run_id)}/watch")

    def result(self, run_id: str, output: str | None, form: str) -> bytes:
        """An output of a run in the form json, csv, arrow or parquet; without `output`, the run must have just one."""
        if output is None:
            output = self._only_output(run_id)
        path = f"/v1/runs/{_part(run_id)}/results/{_part(output)}"
        return self._ask("GET", path, params={"format": form}, accept="*/*").content

    def contract(self, run_id: str) -> dict[str, Any]:
        """What decides the run's result."""
        return self._json("GET", f"/v1/runs/{_part(run_id)}/contract")

    def replay(self, run_id: str) -> dict[str, Any]:
        """What a REPLAY run made of its snapshot."""
        return self._json("GET", f"/v1/runs/{_part(run_id)}/replay")

    def parity(self, reference: str, other: str) -> dict[str, Any]:
        """How the result of a run stands to that of another."""
        return self._json("GET", "/v1/parity", reference=reference, other=other)

    def verdict(self, run_id: str) -> dict[str, Any]:
        """How a STREAM run stands to the batch; the server may read a whole topic for it."""
        answer = self._ask("GET", f"/v1/runs/{_part(run_id)}/verdict", repeat=False, timeout=VERDICT_SECONDS)
        return _document(answer)

    def _only_output(self, run_id: str) -> str:
        run = self.run(run_id)
        outputs = [str(result["output"]) for result in run["results"]]
        if not outputs:
            raise RunNotReadyError(
                f"the run is {run['state']} and has no result", at=run_id, expected="a SUCCEEDED run"
            )
        if len(outputs) > 1:
            raise InputError(
                "the run has several outputs", at=run_id, expected=f"--name with one of {', '.join(outputs)}"
            )
        return outputs[0]

    # ---------------------------------------------------------------- everything else

    def put_artifact(self, data: bytes) -> str:
        """Store bytes; returns their content address."""
        name = address(data)
        headers = {"content-type": "application/octet-stream"}
        self._ask("PUT", f"/v1/artifacts/{_part(name)}", content=data, headers=headers, repeat=True)
        return name

    def artifact(self, name: str) -> bytes:
        """The bytes stored under a content address."""
        return self._ask("GET", f"/v1/artifacts/{_part(name)}", accept="*/*").content

    def log(self, after: int = 0, topics: Sequence[str] = (), limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Events of the log behind position `after`, of these topics (none: all), to its end as it is now."""
        return self._items("/v1/events", {"after": after, "topic": list(topics)}, limit)

    def projections(self) -> list[dict[str, Any]]:
        """How far each projection has come."""
        return list(self._json("GET", "/v1/projections")["items"])

    # ---------------------------------------------------------------- what operators do

    def alerts(self, state: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Alerts of every source in this state, the newest first, at most `limit`."""
        return self._items("/v1/alerts", {"state": state}, limit)

    def resolve_alert(self, kind: str, run_id: str, note: str) -> dict[str, Any]:
        """Say that an alert was dealt with; the position of the event that says so."""
        return self._json("POST", f"/v1/alerts/{_part(kind)}/{_part(run_id)}/resolve", {"note": note})

    def stream_status(self, run_id: str) -> dict[str, Any]:
        """How a stream run stands."""
        return self._json("GET", f"/v1/runs/{_part(run_id)}/stream")

    def checkpoints(self, run_id: str, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The checkpoints of a stream run, the newest first, at most `limit`."""
        return self._items(f"/v1/runs/{_part(run_id)}/checkpoints", {}, limit)

    def quarantine(self, run_id: str, state: str | None = None, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The run's records that were omitted, late or retried, by partition and offset, at most `limit`."""
        filters = {} if state is None else {"state": state}
        return self._items(f"/v1/runs/{_part(run_id)}/quarantine", filters, limit)

    def retry_quarantine(self, run_id: str, places: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Ask that these records (partition, offset), or all if none is named, be judged again; what was asked for."""
        items = [{"partition": partition, "offset": offset} for partition, offset in places]
        return self._json("POST", f"/v1/runs/{_part(run_id)}/quarantine/retry", {"items": items})

    def dead_letters(self, manager: str | None) -> list[dict[str, Any]]:
        """What process managers (this one, or all) could not do, the oldest first."""
        filters = {} if manager is None else {"manager": manager}
        return list(self._json("GET", "/v1/dead-letters", **filters)["items"])

    def revive_dead_letter(self, manager: str, command_id: str) -> dict[str, Any]:
        """Have a dead letter tried again; what became of it."""
        return self._json("POST", f"/v1/dead-letters/{_part(manager)}/{_part(command_id)}/revive")

    def discard_dead_letter(self, manager: str, command_id: str, reason: str) -> dict[str, Any]:
        """Have done with a dead letter; what became of it."""
        path = f"/v1/dead-letters/{_part(manager)}/{_part(command_id)}/discard"
        return self._json("POST", path, {"reason": reason})

    def pause_projection(self, name: str, reason: str) -> dict[str, Any]:
        """Have a projection or process manager stay where it is; it as it then stands."""
        return self._json("POST", f"/v1/projections/{_part(name)}/pause", {"reason": reason})

    def resume_projection(self, name: str) -> dict[str, Any]:
        """Let it go on; it as it then stands."""
        return self._json("POST", f"/v1/projections/{_part(name)}/resume")

    def replay_process_manager(self, name: str) -> dict[str, Any]:
        """Have a paused process manager fold the log again from its beginning; it as it then stands."""
        return self._json("POST", f"/v1/projections/{_part(name)}/replay")

    # ---------------------------------------------------------------- how the server is

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the server is ready for work, and what it says of its parts."""
        answer = self._ask("GET", "/health/ready", repeat=False, accept_failure=True)
        return answer.is_success, _document(answer)

    # ---------------------------------------------------------------- how it is said

    def _submit(self, path: str, body: Any, key: str) -> dict[str, Any]:
        headers = {"Idempotency-Key": key, "content-type": "application/json"}
        answer = self._ask("POST", path, content=canonical(body), headers=headers, repeat=True)
        replayed = answer.headers.get("idempotency-replayed", "false") == "true"
        return {**parse(answer.content), "replayed": replayed}

    def _json(self, method: str, path: str, body: Any = None, **params: Any) -> dict[str, Any]:
        sent: dict[str, Any] = {}
        if body is not None:
            sent = {"content": canonical(body), "headers": {"content-type": "application/json"}}
        document: dict[str, Any] = parse(self._ask(method, path, params=params, **sent).content)
        return document

    def _items(self, path: str, filters: Mapping[str, Any], limit: int | None) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = PAGE_ITEMS if left is None else min(left, PAGE_ITEMS)
            page = self._json("GET", path, **filters, limit=size, **({"cursor": cursor} if cursor else {}))
            yield from page["items"][:left]
            cursor = page.get("next_cursor")
            if cursor is None:
                return
            left = None if left is None else left - len(page["items"])

    def _stream(self, path: str) -> Iterator[Message]:
        """The messages of a stream, for ever: one that breaks or pauses is taken up behind the last message."""
        last = ""
        tries = 0
        while True:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
            try:
                with self._http.stream("GET", path, headers=headers) as answer:
                    if answer.status_code == httpx.codes.NO_CONTENT:
                        return
                    if not answer.is_success:
                        answer.read()
                        self._pause(tries, _document(answer))
                    for message in messages(answer.iter_lines()):
                        if message.kind == "problem":
                            self._pause(tries, message.data)
                            break
                        tries, last = 0, message.event_id or last
                        yield message
            except httpx.TransportError as error:
                self._wait(tries, error)
            tries += 1

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: str | None = None,
        repeat: bool | None = None,
        accept_failure: bool = False,
        timeout: float = TIMEOUT_SECONDS,
    ) -> httpx.Response:
        sent = dict(headers or {}) | ({"accept": accept} if accept else {})
        may_repeat = method == "GET" if repeat is None else repeat
        tries = 0
        while True:
            try:
                answer = self._http.request(method, path, params=params, content=content, headers=sent, timeout=timeout)
                if answer.is_success or accept_failure:
                    return answer
                self._pause(tries if may_repeat else TRIES_MAX, _document(answer))
            except httpx.TransportError as error:
                self._wait(tries if may_repeat else TRIES_MAX, error)
            tries += 1

    def _pause(self, tries: int, problem: dict[str, Any]) -> None:
        """Wait before the next try if the server is away for a while, or raise the problem."""
        if problem.get("status") not in _AWAY or tries + 1 >= TRIES_MAX:
            raise ProblemError(problem)
        time.sleep(_delay(tries))

    def _wait(self, tries: int, error: httpx.TransportError) -> None:
        """Wait before the next try, or raise: the tries are used up."""
        if tries + 1 >= TRIES_MAX:
            raise ApiUnreachableError(
                f"the API does not answer: {type(error).__name__} {error}",
                at=self.url,
                expected="a server started by finaz up or finaz api; FINAZ_API_URL says where",
            ) from error
        time.sleep(_delay(tries))


class ApiBlobStore:
    """The blob store behind the API, as `services.ports.BlobStore`: for who has no access to where the blobs stand."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def put(self, data: bytes) -> str:
        """Store the bytes durably; returns their address."""
        return self._client.put_artifact(data)

    def get(self, name: str) -> bytes:
        """The bytes, hashed again here. Raises `BlobMissingError` or `BlobCorruptError`."""
        try:
            data = self._client.artifact(name)
        except ProblemError as error:
            if error.problem.get("code") == BlobMissingError.code:
                raise BlobMissingError("no blob is stored under this address", at=name) from error
            raise
        if address(data) != name:
            raise BlobCorruptError("what came does not hash to its address", at=name, expected=name)
        return data

    def has(self, name: str) -> bool:
        """Whether something is stored under the address."""
        try:
            self.get(name)
        except (BlobMissingError, BlobCorruptError):
            return False
        return True


def messages(lines: Iterator[str]) -> Iterator[Message]:
    """Server-sent events out of the lines of a stream; comments are skipped, an unfinished last event is dropped."""
    kind, event_id = "message", ""
    data: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Message(kind, parse("\n".join(data)), event_id)
            kind, data = "message", []
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id":
            event_id = value


def _delay(tries: int) -> float:
    return float(min(RETRY_DELAY_SECONDS_MAX, RETRY_DELAY_SECONDS_MIN * 2**tries))


def _document(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer; one made up from its status where there is none."""
    try:
        document = json.loads(answer.content)
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document
    return {
        "type": "about:blank",
        "title": answer.reason_phrase,
        "status": answer.status_code,
        "code": "UNKNOWN",
        "detail": f"the server at {answer.url} answered {answer.status_code} without a problem document",
    }


def _part(text: str) -> str:
    return quote(text, safe=":")
