"""Flows by content: checked, brought into canonical form and addressed once, however often they are sent.

Clients send the same flow again and again, with other tags and instants. What must stay true: a flow is remembered by the exact
text of all its members, so what is remembered is what would be found again; what is wrong is never remembered. Bounded by number
and by size; losing it all loses time only. What is given out is shared: read it, don't change it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from domain.canonical import address, canonical, parse
from domain.market.flow import FlowSpec, flow_body, parse_flow

KNOWN_FLOWS_MAX: Final = 512
"""Flows remembered."""

KNOWN_FLOW_BYTES_MAX: Final = 16 * 1024
"""Bytes of a flow that is remembered; a larger one is worked out every time."""


@dataclass(frozen=True)
class KnownFlow:
    """A valid flow, its canonical body, that body's bytes, and their address."""

    spec: FlowSpec
    body: dict[str, Any]
    text: bytes
    address: str


def known_flow(value: Any) -> KnownFlow:
    """The flow of a JSON value that `canonical.parse` gave. Raises as `parse_flow` does."""
    try:
        # Injective on JSON values (1 and 1.0 differ), and a tenth of the cost of reading the flow.
        document = _encode(value)
    except (OverflowError, TypeError, ValueError):
        return _worked_out(value)
    return _remembered(document) if len(document) <= KNOWN_FLOW_BYTES_MAX else _worked_out(value)


_encode: Final = msgspec.json.Encoder().encode


@lru_cache(maxsize=KNOWN_FLOWS_MAX)
def _remembered(document: bytes) -> KnownFlow:
    return _worked_out(parse(document))


def _worked_out(value: Any) -> KnownFlow:
    spec = parse_flow(value)
    body = flow_body(spec)
    text = canonical(body)
    return KnownFlow(spec, body, text, address(text))
