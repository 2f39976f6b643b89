"""A load generator for HTTP in a process of its own: raw sockets of asyncio, keep-alive, loopback only.

    python -m deployment.bench.http_load    reads one JSON plan on stdin, writes one JSON answer on stdout

It does as little as can be done per request, so that what is measured is the server. What must stay true: it speaks to loopback
addresses only, opens `CONNECTIONS_MAX` connections at most, sends what it was told to and nothing else, and ends within
`SECONDS_MAX`; an answer of another status than the plan's is an error, not a figure.
"""

import asyncio
import ipaddress
import json
import sys
import time
from typing import Any, Final, cast

import uvloop

CONNECTIONS_MAX: Final = 1024
SECONDS_MAX: Final = 300.0
"""Limits of one plan."""

NUMBER: Final = "<number->"
"""Stands in a plan's headers and body for the number of the request, in as many digits."""

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length: "


class Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request, until the shared list is empty."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._buffer = b""
        self._sent_at = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        """Send the next request, or end."""
        request = self._load.next()
        if request is None:
            if not self.done.done():
                self.done.set_result(None)
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(_HEAD_END)
        if head_end < 0:
            return
        at = self._buffer.find(_LENGTH, 0, head_end) + len(_LENGTH)
        length = int(self._buffer[at : self._buffer.find(b"\r\n", at)])
        if len(self._buffer) < head_end + len(_HEAD_END) + length:
            return
        if self._buffer[9:12] != self._load.status:
            self._fail(self._buffer[:1000].decode("latin-1"))
            return
        self._load.seconds.append(time.perf_counter() - self._sent_at)
        self._buffer = b""
        self.start()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error}")

    def _fail(self, sentence: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(sentence))
        self._transport.close()


class Load:
    """The requests of one plan, handed out one by one, and the seconds that each took."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.status = str(plan["status"]).encode()
        self.seconds: list[float] = []
        self._left = int(plan["requests"])
        self._number = 0
        body = json.dumps(plan["body"]).encode()
        headers = "".join(f"{name}: {value}\r\n" for name, value in plan["headers"].items())
        head = f"{plan['method']} {plan['path']} HTTP/1.1\r\nhost: {plan['host']}\r\n{headers}"
        whole = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        self._pieces = whole.split(NUMBER.encode())

    def next(self) -> bytes | None:
        """The next request, with its own number wherever the plan says `NUMBER`; None when all are sent."""
        if self._left == 0:
            return None
        self._left -= 1
        self._number += 1
        return (b"%0*d" % (len(NUMBER), self._number)).join(self._pieces)


async def perform(plan: dict[str, Any]) -> dict[str, Any]:
    """Carry out a plan; the seconds from the first request to the last answer, and each answer's."""
    host, port, connections = plan["host"], int(plan["port"]), int(plan["connections"])
    if not ipaddress.ip_address(host).is_loopback or not 1 <= connections <= CONNECTIONS_MAX:
        raise ValueError("loopback addresses only, and a bounded number of connections")
    loop = asyncio.get_running_loop()
    load = Load(plan)
    opened = [(await loop.create_connection(lambda: Connection(load), host, port))[1] for _ in range(connections)]
    began = time.perf_counter()
    for connection in opened:
        connection.start()
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.gather(*(connection.done for connection in opened))
    elapsed = time.perf_counter() - began
    return {"requests": len(load.seconds), "elapsed_seconds": elapsed, "seconds": load.seconds}


def main() -> None:
    """Read the plan, perform it, write the answer."""
    json.dump(uvloop.run(perform(json.load(sys.stdin))), sys.stdout)


if __name__ == "__main__":
    main()
