"""What the drill of purchases gathers, as one plain document: what its checks are pure functions of.

Everything stands as its source gave it: answers as buyers got them, events as the log has them, the gateway's own file line by
line, mails as the server was offered them, read models as the API served them. What must stay true: nothing is judged here; a
document written out and read again gives the same checks.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import msgspec

FORMAT: Final = "FINAZ_PURCHASES_DRILL_V1"

ENDS: Final = {"purchase.confirmed.v1": "CONFIRMED", "purchase.compensated.v1": "COMPENSATED"}
"""The transitions that end a purchase, and the states that they end it in."""

MOVES: Final = {
    "purchase.started.v1": "PENDING",
    "purchase.payment_became_unknown.v1": "UNKNOWN",
    "purchase.unknown_expired.v1": "UNKNOWN_EXPIRED",
    "purchase.payment_received.v1": "PAID",
    "purchase.payment_failed.v1": "PAYMENT_FAILED",
    "purchase.compensation_begun.v1": "COMPENSATION_PENDING",
    **ENDS,
}
"""The state behind each transition: the judge's own table."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What one key of a buyer was answered: a purchase (`purchase_id`) or a refusal (`code`); `again` is what it was later."""

    key: str
    seats: tuple[str, ...]
    payment_method: str
    email: str
    purchase_id: str = ""
    code: str = ""
    again: str = ""


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """A mail that the mail server was offered, and whether it accepted it."""

    message_id: str
    to: tuple[str, ...]
    accepted: bool


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator said about a purchase and what the API answered: a state, or the code of a refusal."""

    purchase_id: str
    word: str
    answer: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `gateway` has what the gateway did, in its order; `served` what the API said at the end, by name."""

    format: str
    seed: int
    show_id: str
    seats: tuple[str, ...]
    asked: tuple[Asked, ...]
    words: tuple[Word, ...]
    log: tuple[dict[str, Any], ...]
    gateway: tuple[dict[str, Any], ...]
    mails: tuple[Mail, ...]
    kills: dict[str, int]
    served: dict[str, Any]
    audits: dict[str, tuple[str, ...]]
    settled: bool
    dead_letters: tuple[tuple[str, str, str, str | None], ...]
    seconds: float

    def by_purchase(self) -> dict[str, list[dict[str, Any]]]:
        """The events of each saga, in their order."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self.log:
            category, _, key = event["stream"].partition("/")
            if category == "purchase":
                found[key].append(event)
        return dict(found)

    def events(self, *topics: str) -> list[dict[str, Any]]:
        """The events of some topics, in the order of the log."""
        return [event for event in self.log if event["topic"] in topics]

    def did(self, operation: str) -> list[dict[str, Any]]:
        """What the gateway did of an operation (`charge`, `refund`) and said to have succeeded."""
        return [line for line in self.gateway if line["operation"] == operation and line["outcome"] == "SUCCEEDED"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check, by name: a pure function of the evidence, giving what it found wrong. `source` says where it looks."""

    id: str
    what: str
    source: str
    wrong: Callable[[Evidence], list[str]]


def state_of(events: list[dict[str, Any]]) -> str:
    """The state that the events of a saga leave it in."""
    return next((MOVES[event["topic"]] for event in reversed(events) if event["topic"] in MOVES), "ABSENT")


def states(evidence: Evidence) -> dict[str, str]:
    """The state of each purchase, by the log."""
    return {purchase_id: state_of(events) for purchase_id, events in evidence.by_purchase().items()}


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """As plain data."""
    document: dict[str, Any] = msgspec.to_builtins(evidence)
    return document


def evidence_of(document: dict[str, Any]) -> Evidence:
    """From plain data. Raises `msgspec.ValidationError`."""
    return msgspec.convert(document, Evidence)
