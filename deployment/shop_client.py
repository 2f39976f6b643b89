"""The API's client with what buyers and box offices ask: shows, purchases, and what operators settle."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from deployment.api_client import ApiClient


class ShopClient(ApiClient):
    """As `ApiClient`. Submissions are repeated under their key while the server is away."""

    def create_show(self, body: Any, key: str) -> dict[str, Any]:
        """Put a show on sale."""
        return self._submit("/v1/shows", body, key)

    def shows(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Shows, the newest first."""
        return self._items("/v1/shows", {}, limit)

    def availability(self, show_id: str) -> list[dict[str, Any]]:
        """The seats of a show, as far as is known."""
        return list(self._json("GET", f"/v1/shows/{_part(show_id)}/availability")["seats"])

    def buy(self, body: Any, key: str) -> dict[str, Any]:
        """Reserve seats and begin to pay."""
        return self._submit("/v1/purchases", body, key)

    def purchase(self, purchase_id: str) -> dict[str, Any]:
        """One purchase with its timeline and what happens next."""
        return self._json("GET", f"/v1/purchases/{_part(purchase_id)}")

    def purchases(self, state: str | None, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Purchases, the newest first."""
        return self._items("/v1/purchases", {} if state is None else {"state": state}, limit)

    def settle(self, purchase_id: str, word: str, note: str) -> dict[str, Any]:
        """Say what the gateway did: `charged`, `not-charged` or `refunded`."""
        return self._json("POST", f"/v1/purchases/{_part(purchase_id)}/settle-as-{word}", {"note": note})

    def stuck(self, age_seconds: int, limit: int) -> list[dict[str, Any]]:
        """Purchases that do not end, or whose alerts nobody settled, the longest first."""
        return list(self._json("GET", "/v1/stuck-purchases", age_seconds=age_seconds, limit=limit)["items"])

    def balances(self) -> list[dict[str, Any]]:
        """The ledger's balances by currency."""
        return list(self._json("GET", "/v1/ledger/balances")["items"])

    def sales(self, show_id: str | None, limit: int) -> list[dict[str, Any]]:
        """Sales per day, the newest first."""
        filters = {} if show_id is None else {"show_id": show_id}
        return list(self._json("GET", "/v1/sales", limit=limit, **filters)["items"])

    def erase_person(self, email: str) -> list[str]:
        """Erase a mail address; the purchases that referred to it."""
        return list(self._json("POST", "/v1/contacts/erase", {"email": email})["purchase_ids"])


def _part(text: str) -> str:
    return quote(text, safe=":")
