"""What is asked of the API about staged values: pages, downloads, and how staging is doing."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx

from deployment.api_client import ApiClient, ApiUnreachableError
from deployment.problems import ProblemError
from domain.canonical import parse

_PATH: Final = "/v1/staging/values"


class StagingClient(ApiClient):
    """The API, asked about staged values."""

    def staged_values(self, filters: Mapping[str, Any], limit: int | None) -> Iterator[dict[str, Any]]:
        """Rows in clock order, page by page, at most `limit`."""
        return self._items(_PATH, filters, limit)

    def download(self, filters: Mapping[str, Any], form: str) -> Iterator[bytes]:
        """All rows as a file, in pieces. Raises `ApiUnreachableError` if the connection breaks before its end."""
        try:
            with self._http.stream("GET", _PATH, params={**filters, "format": form}) as answer:
                if not answer.is_success:
                    raise ProblemError(parse(answer.read()))
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise ApiUnreachableError(
                f"the download broke off: {error}", at=self.url, expected="all of it; ask again"
            ) from error

    def staging_status(self) -> dict[str, Any]:
        """How staging is doing."""
        document: dict[str, Any] = self._json("GET", "/v1/staging/status")
        return document
