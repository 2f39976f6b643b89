"""The sandbox gateway on loopback, in a thread of the test's process, and the adapter that talks to it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from deployment.gateway_books import Books
from deployment.gateway_sandbox import make_sandbox
from services.adapters.gateway_http import HttpGateway

API_KEY = "sandbox-key"
ANSWER_SECONDS = 1.0
"""After which no answer is none: well beyond what an answer takes on a busy machine."""


@contextmanager
def sandbox_server(books: Books) -> Iterator[str]:
    """Serve these books; the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(make_sandbox(books, API_KEY, hang_seconds=ANSWER_SECONDS * 1.5), log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(5)
        listener.close()


@contextmanager
def http_gateway(books: Books) -> Iterator[HttpGateway]:
    """The adapter on a sandbox with these books."""
    with sandbox_server(books) as url:
        gateway = HttpGateway(url, API_KEY, answer_seconds_max=ANSWER_SECONDS)
        try:
            yield gateway
        finally:
            gateway.close()
