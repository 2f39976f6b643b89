"""A proxy between a client and PostgreSQL that loses answers on purpose: what the server did, the client never hears of."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK_BYTES = 65536


class Wire:
    """Passes bytes both ways. `lose_next_answer`: the next bytes from the server are swallowed and the connection is cut."""

    def __init__(self, server: str, folder: Path) -> None:
        self._server = server
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / ".s.PGSQL.5432"))
        self._socket.listen()
        self._lose = threading.Event()
        self.lost = threading.Event()
        """Set once an answer was lost."""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_answer(self) -> None:
        self.lost.clear()
        self._lose.set()

    def close(self) -> None:
        self._socket.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._open += [client, server]
                for source, sink, is_answer in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=(source, sink, is_answer), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if is_answer and self._lose.is_set():
                    self._lose.clear()
                    self.lost.set()
                    break
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(dsn: str, folder: Path) -> Iterator[tuple[Wire, str]]:
    """A wire to the server of the DSN, and the DSN through it. `folder` should have a short path."""
    host = str(conninfo_to_dict(dsn)["host"])
    wire = Wire(f"{host}/.s.PGSQL.5432", folder)
    try:
        yield wire, make_conninfo(dsn, host=str(folder))
    finally:
        wire.close()
