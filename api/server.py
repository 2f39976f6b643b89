"""Serve the application: uvicorn on uvloop and httptools, stopped gracefully and within a bounded time.

On SIGTERM or SIGINT: no new connections, watches end (their clients resume elsewhere), requests in flight have
`SHUTDOWN_SECONDS_MAX` to finish, then they are answered 503. A submission that is cut so was appended whole or not at all, and the
client's repeat gets the same answer.
"""

import asyncio
import gc
import os
import re
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.app import Api
from api.operations import answer_headers
from api.problems import problem_of
from domain.errors import IdempotencyKeyInvalidError, InputError

KEEP_ALIVE_SECONDS: Final = 30
"""How long an idle connection is kept."""

SHUTDOWN_SECONDS_MAX: Final = 10
"""How long requests in flight may take once the server was told to stop."""

CONNECTIONS_MAX: Final = 4096
"""Connections at once; more get a bare 503. The application refuses by itself beyond `api.app.REQUESTS_MAX` requests."""

GC_ALLOCATIONS: Final = 20_000
"""Objects allocated beyond those freed before the youngest are looked through for cycles; requests leave hardly any."""

SWITCH_SECONDS: Final = 0.0005
"""How long a busy thread keeps the interpreter from another; by default ten times that, longer than a commit takes."""

HEAD_BYTES_MAX: Final = 65_536
"""Bytes of a request's line and headers that may come in before they are complete."""

HEAD_SECONDS_MAX: Final = 20.0
"""How long a new connection may take to send its first request's head, and any later head that has begun."""

BACKLOG: Final = 1024
"""Connections that wait to be accepted."""


_CONTROL_IN_KEY: Final = re.compile(rb"(?im)^idempotency-key:[^\r\n]*[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which refuses what isn't HTTP with a problem document like everything else here.

    A head must end within `HEAD_BYTES_MAX` and `HEAD_SECONDS_MAX`. What comes after a whole request and is no HTTP takes nothing
    from that request: it is answered, and then the connection is closed.
    """

    _last: bytes = b""
    _in_head: bool = True
    _head_bytes: int = 0
    _head_timer: asyncio.TimerHandle | None = None
    _deaf: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._last = data
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response(f"the request's head is longer than {HEAD_BYTES_MAX} bytes")
            elif self._head_timer is None:
                self._time_head()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_arrived()
        super().on_headers_complete()

    def _time_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self._head_is_late)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.send_400_response(f"the request's head did not arrive within {HEAD_SECONDS_MAX:g} seconds")

    def _is_answering(self) -> bool:
        """Whether a whole request is being executed."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def send_400_response(self, msg: str) -> None:
        self._deaf = True
        if self._is_answering():
            self.cycle.keep_alive = False
            return
        error = InputError(msg, at="request", expected="HTTP/1.1")
        if _CONTROL_IN_KEY.search(self._last):
            error = IdempotencyKeyInvalidError(
                "the idempotency key has a control character", at="Idempotency-Key", expected="no controls"
            )
        request_id = os.urandom(16).hex()
        answer = problem_of(error, request_id)
        head = b"".join(b"%s: %s\r\n" % header for header in answer_headers(answer, request_id))
        end = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(answer.body)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + end + answer.body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server. `on_ready` is told the port once it listens; the application is told as soon as it is to stop."""

    def __init__(
        self, app: Api, config: uvicorn.Config, on_ready: Callable[[int], None], *, owns_process: bool
    ) -> None:
        super().__init__(config)
        self._owns_process = owns_process
        self._app = app
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            if self._owns_process:
                _tune_process()
            listening = sockets or [socket for server in self.servers for socket in server.sockets]
            self._on_ready(listening[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stopping()
        await super().shutdown(sockets)


def _tune_process() -> None:
    """Fit the interpreter to a server: what has been loaded stays for ever; the committer's thread must not wait for the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    sys.setswitchinterval(SWITCH_SECONDS)


def make_server(
    app: Api,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    on_ready: Callable[[int], None] = lambda port: None,
    owns_process: bool = True,
) -> Server:
    """A server, not yet started: `await serve()` runs it, `should_exit = True` stops it. Port 0 takes a free one.

    `owns_process` False: others live in the process too (tests), whose interpreter is left as it is.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS_MAX,
        limit_concurrency=CONNECTIONS_MAX,
        backlog=BACKLOG,
    )
    return Server(app, config, on_ready, owns_process=owns_process)


async def serve(
    app: Api,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    listener: socket.socket | None = None,
    on_ready: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve until SIGTERM or SIGINT, on `listener` if one is given, else on `host` and `port`. Run it on uvloop: `run`."""
    server = make_server(app, host, port, on_ready=on_ready)
    await server.serve(None if listener is None else [listener])


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, such as `serve(…)`, on an event loop of uvloop's."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
