"""Contacts: mail addresses by reference, in a table outside the log, so that they can be erased.

What must stay true: no event holds an address; erasing leaves the reference, which then leads to nobody. An address is written
before the append that refers to it and removed if that is refused; a crash in between leaves an address that nobody refers to,
which a sweep removes after a day. A sweep costs the same however many purchases there were: it looks at a bounded number of
addresses, and at none twice.
"""

import re
import unicodedata
from typing import Final
from uuid import uuid4

from domain.errors import BodyInvalidError
from projections.reading import Query
from projections.statements import statements

ADDRESS_CHARACTERS_MAX: Final = 254
"""Characters of a mail address, by RFC 5321."""

SWEEP_AGE_SECONDS: Final = 86_400.0
"""Age at which an address that no purchase refers to is removed."""

SWEEP_CALLS: Final = 500
"""Addresses written between two sweeps."""

SWEEP_ROWS_MAX: Final = 1000
"""Addresses that one sweep looks at, each of them once for ever: twice what is written between two, so that sweeps keep up."""

_ATOM: Final = r"(?:[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]|[^\x00-\x7f])+"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS: Final = re.compile(rf"(?=[^@]{{1,64}}@){_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*\Z")
_ENCODED_WORD: Final = "=?"
"""How a header's text begins that mail programs decode: the mail would go to what is decoded."""

_SQL: Final = statements("services", "contacts.sql")


def checked_address(address: str) -> str:
    """The address itself, if a mail's header holds it as it stands: atoms, no quoting, no encoded words, NFC, printable.

    Raises `BodyInvalidError`, which does not repeat it: logs must not know it.
    """
    plain = address.isprintable() and unicodedata.is_normalized("NFC", address) and _ENCODED_WORD not in address
    if len(address) > ADDRESS_CHARACTERS_MAX or not plain or _ADDRESS.match(address) is None:
        raise _no_address()
    return address


def erasable_address(address: str) -> str:
    """The address itself; whatever was once taken for one can be erased. Raises `BodyInvalidError`."""
    if len(address) > ADDRESS_CHARACTERS_MAX or "@" not in address:
        raise _no_address()
    return address


def _no_address() -> BodyInvalidError:
    return BodyInvalidError("this is no mail address", at="$.email", expected="name@domain")


class Contacts:
    """The table of contacts. Blocks; any thread may call it. Everything raises `StoreUnavailableError`."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._calls = 0

    def put(self, purchase_id: str, address: str) -> str:
        """Keep an address for a purchase; its reference."""
        self._calls += 1
        if self._calls % SWEEP_CALLS == 0:
            self.sweep()
        contact_id = f"con_{uuid4().hex}"
        given = {"contact_id": contact_id, "purchase_id": purchase_id, "address": address}
        self._query.rows(_SQL["put"], given)
        return contact_id

    def address(self, contact_id: str) -> str | None:
        """The address, or None if it was erased."""
        rows = self._query.rows(_SQL["address"], {"contact_id": contact_id})
        return rows[0][0] if rows else None

    def remove(self, contact_id: str) -> None:
        """Remove what was put for an append that was refused."""
        self._query.rows(_SQL["remove"], {"contact_id": contact_id})

    def erase(self, address: str) -> tuple[str, ...]:
        """Erase a person by address; the purchases that referred to it."""
        return tuple(purchase_id for (purchase_id,) in self._query.rows(_SQL["erase"], {"address": address}))

    def sweep(self) -> None:
        """Look at some old addresses that were never looked at, and remove those that no purchase refers to."""
        self._query.rows(_SQL["sweep"], {"age_seconds": SWEEP_AGE_SECONDS, "limit": SWEEP_ROWS_MAX})
