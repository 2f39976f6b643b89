"""What operators ask of the API about the log: streams, events, states, what caused what, exports, and following it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from deployment.api_client import ApiUnreachableError, Message
from deployment.operator_client import OperatorClient
from deployment.problems import ProblemError
from domain.canonical import parse

_PROBLEM: Final = b'{"problem":'
"""How the last line of an export begins that could not be given whole."""


class InspectionClient(OperatorClient):
    """The API, asked about the log."""

    def streams(self, prefix: str | None, limit: int | None) -> Iterator[dict[str, Any]]:
        """Streams by name, page by page, at most `limit`."""
        return self._items("/v1/streams", _given(prefix=prefix), limit)

    def stream_events(self, stream: str, limit: int | None, backward: bool) -> Iterator[dict[str, Any]]:
        """The events of a stream, at most `limit`."""
        order = "desc" if backward else "asc"
        return self._items("/v1/streams/events", {"stream": stream, "order": order}, limit)

    def state(self, stream: str, version: int | None, at: str | None) -> dict[str, Any]:
        """The state of an aggregate as of a version or an instant."""
        return self._json("GET", "/v1/streams/state", **_given(stream=stream, version=version, at=at))

    def difference(self, stream: str, before: int, after: int) -> dict[str, Any]:
        """What changed between two versions."""
        return self._json("GET", "/v1/streams/difference", **{"stream": stream, "from": before, "to": after})

    def causes(self, event_id: str) -> dict[str, Any]:
        """The event and everything that led to it."""
        return self._json("GET", f"/v1/events/{event_id}/causes")

    def effects(self, event_id: str) -> dict[str, Any]:
        """The event and everything that came of it."""
        return self._json("GET", f"/v1/events/{event_id}/effects")

    def search(self, filters: Mapping[str, Any], limit: int | None) -> Iterator[dict[str, Any]]:
        """Events for which all filters hold, at most `limit`."""
        return self._items("/v1/events/search", _given(**filters), limit)

    def follow(self, filters: Mapping[str, Any], after: int | None) -> Iterator[Message]:
        """Events as they come, for ever: a connection that breaks is taken up behind the last of them."""
        query = urlencode(_given(**filters, after=after), doseq=True)
        return self._stream(f"/v1/events/follow?{query}" if query else "/v1/events/follow")

    def export(self, stream: str | None, first: int, last: int | None) -> Iterator[bytes]:
        """The lines of an export, the head's first.

        Raises `ApiUnreachableError` if the connection breaks, `ProblemError` behind the last line that could be given.
        """
        params = _given(stream=stream, first=None if stream else first, last=last)
        try:
            with self._http.stream("GET", "/v1/events/export", params=params) as answer:
                if not answer.is_success:
                    raise ProblemError(parse(answer.read()))
                for line in _lines(answer.iter_bytes()):
                    if line.startswith(_PROBLEM):
                        raise ProblemError(parse(line)["problem"])
                    yield line
        except httpx.TransportError as error:
            raise ApiUnreachableError(
                f"the export broke off: {error}", at=self.url, expected="all of it; ask again"
            ) from error


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, (), [])}
