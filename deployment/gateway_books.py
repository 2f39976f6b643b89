"""The sandbox gateway's books: what it really did, and how it is told to behave. No I/O but its own file.

It keeps a gateway's promise (one charge per intent, one refund per key) and misbehaves in every other way that it is told to: each
call takes the next behaviour of its script. A script is written into the payment method (`charge:timeout_after;refund:decline`) or
set by intent. With a file, every change is appended and flushed before it counts, so a killed sandbox remembers.

| behaviour | charge | refund |
| --- | --- | --- |
| `succeed` (default), `decline` | done and said | done and said |
| `timeout_before` | no answer, nothing done | the same |
| `timeout_after` | no answer, but done | the same |
| `late` | no answer; done only after the next question, which still finds nothing | no answer; done at the next call |
| `twice` | done, and told by two webhooks besides | the same |
| `other_amount` | done over one unit more | the same |
| `not_found_early` | done, no answer, and the next question finds nothing | as `timeout_after` |
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from domain.purchases.identity import refund_key_of
from domain.purchases.messages import GatewayAnswer, Operation, Outcome
from services.gateway import ChargeRequest, RefundRequest

BEHAVIOURS: Final = (
    "succeed",
    "decline",
    "timeout_before",
    "timeout_after",
    "late",
    "twice",
    "other_amount",
    "not_found_early",
)

Told = Callable[[str, GatewayAnswer], None]
"""Takes a webhook: the intent and what to tell."""


class Entry(msgspec.Struct, kw_only=True):
    """What the gateway did under one key: `SUCCEEDED` or `DECLINED`, over how much."""

    gateway_id: str
    outcome: str
    amount_minor: int
    currency: str


class Books:
    """The truth of the sandbox. Any thread may call it."""

    def __init__(self, file: Path | None = None, told: Told | None = None) -> None:
        self.charges: dict[str, Entry] = {}
        self.refunds: dict[str, Entry] = {}
        """By intent; the refund of a second charge by its own key."""
        self.second_charges: dict[str, Entry] = {}
        """By intent: what a gateway does that breaks its promise (`charge_again`)."""
        self.calls: list[tuple[str, str]] = []
        self.told = told
        self._file = file
        self._scripts: dict[str, list[str]] = {}
        self._late: dict[str, tuple[str, Any]] = {}
        self._hidden: set[str] = set()
        self._lock = threading.RLock()
        if file is not None and file.exists():
            for line in file.read_text("utf-8").splitlines():
                self._apply(json.loads(line))

    # ---------------------------------------------------------------- scripts

    def script(self, intent_id: str, text: str) -> None:
        """Set how calls about an intent behave, in turn: `charge:timeout_after,succeed;refund:decline`. Raises `ValueError`."""
        with self._lock:
            for part in text.split(";"):
                operation, _, behaviours = part.partition(":")
                names = [name for name in behaviours.split(",") if name]
                if operation not in ("charge", "refund") or not set(names) <= set(BEHAVIOURS):
                    raise ValueError(f"{part!r} is no script")
                self._scripts[f"{operation}/{intent_id}"] = names

    def _behaviour(self, operation: str, intent_id: str, payment_method: str = "") -> str:
        if payment_method.startswith(("charge:", "refund:")) and f"seen/{intent_id}" not in self._scripts:
            self._scripts[f"seen/{intent_id}"] = []
            self.script(intent_id, payment_method)
        script = self._scripts.get(f"{operation}/{intent_id}", [])
        return script.pop(0) if script else "succeed"

    # ---------------------------------------------------------------- calls

    def charge(self, request: ChargeRequest) -> GatewayAnswer:
        """One call to charge."""
        with self._lock:
            self.calls.append(("charge", request.intent_id))
            behaviour = self._behaviour("charge", request.intent_id, request.payment_method)
            known = self.charges.get(request.intent_id)
            if known is not None:
                silent = behaviour.startswith("timeout") or behaviour in ("late", "not_found_early")
                return unknown(Operation.CHARGE) if silent else _said(Operation.CHARGE, known)
            entry = _entry("ch", request.intent_id, request.amount_minor, request.currency, behaviour)
            if behaviour == "timeout_before":
                return unknown(Operation.CHARGE)
            if behaviour == "late":
                self._late[request.intent_id] = (request.intent_id, entry)
                return unknown(Operation.CHARGE)
            self._do("charge", request.intent_id, entry)
            if behaviour == "not_found_early":
                self._hidden.add(request.intent_id)
            if behaviour in ("timeout_after", "not_found_early"):
                return unknown(Operation.CHARGE)
            answer = _said(Operation.CHARGE, entry)
        if behaviour == "twice":
            self.tell(request.intent_id, answer)
            self.tell(request.intent_id, answer)
        return answer

    def find_charge(self, intent_id: str) -> GatewayAnswer:
        """One question what became of a charge."""
        with self._lock:
            self.calls.append(("find_charge", intent_id))
            entry = self.charges.get(intent_id)
            if intent_id in self._hidden:
                self._hidden.discard(intent_id)
                entry = None
            late = self._late.pop(intent_id, None)
            if late is not None:
                self._do("charge", *late)
            if entry is None:
                return GatewayAnswer(operation=Operation.CHARGE, outcome=Outcome.NOT_FOUND)
            return _said(Operation.CHARGE, entry)

    def refund(self, request: RefundRequest) -> GatewayAnswer:
        """One call to refund."""
        with self._lock:
            self.calls.append(("refund", request.intent_id))
            behaviour = self._behaviour("refund", request.intent_id)
            name = _refund_name(request.intent_id, request.refund_key)
            known = self.refunds.get(name)
            silent = behaviour.startswith("timeout") or behaviour in ("late", "not_found_early")
            if known is not None:
                return unknown(Operation.REFUND) if silent else _said(Operation.REFUND, known)
            charge = self.charges.get(request.intent_id)
            second = name != request.intent_id and request.intent_id not in self.second_charges
            if second or charge is None or charge.outcome != Outcome.SUCCEEDED.value or behaviour == "decline":
                return GatewayAnswer(operation=Operation.REFUND, outcome=Outcome.DECLINED, detail="refused")
            if behaviour in ("timeout_before", "late"):
                return unknown(Operation.REFUND)
            entry = _entry("re", request.refund_key, request.amount_minor, request.currency, behaviour)
            self._do("refund", name, entry)
            if silent:
                return unknown(Operation.REFUND)
            answer = _said(Operation.REFUND, entry)
        if behaviour == "twice":
            self.tell(request.intent_id, answer)
            self.tell(request.intent_id, answer)
        return answer

    def find_refund(self, refund_key: str) -> GatewayAnswer:
        """One question what became of a refund."""
        with self._lock:
            intent_id = refund_key.removeprefix(refund_key_of(""))
            self.calls.append(("find_refund", intent_id))
            entry = self.refunds.get(intent_id) or self.refunds.get(refund_key)
            if entry is None:
                return GatewayAnswer(operation=Operation.REFUND, outcome=Outcome.NOT_FOUND)
            return _said(Operation.REFUND, entry)

    def charge_again(self, intent_id: str) -> None:
        """Break the promise: charge an intent that was charged a second time (at most), and tell."""
        with self._lock:
            first = self.charges[intent_id]
            entry = self.second_charges.get(intent_id) or msgspec.structs.replace(first, gateway_id=f"ch2_{intent_id}")
            self._do("second_charge", intent_id, entry)
        self.tell(intent_id, _said(Operation.CHARGE, entry))

    def settle_late(self) -> list[str]:
        """Do now what was put off (`late`): the intents charged."""
        with self._lock:
            late, self._late = self._late, {}
            for intent_id, entry in late.values():
                self._do("charge", intent_id, entry)
            return list(late)

    def tell(self, intent_id: str, answer: GatewayAnswer | None = None) -> None:
        """Send a webhook about what was done for an intent."""
        entry = self.charges.get(intent_id)
        if answer is None and entry is not None:
            answer = _said(Operation.CHARGE, entry)
        if answer is not None and self.told is not None:
            self.told(intent_id, answer)

    # ---------------------------------------------------------------- the file

    def _do(self, operation: str, intent_id: str, entry: Entry) -> None:
        """Do it, unless it was done: what was put off is not done again beside what a later call has done."""
        if intent_id in self._kept(operation):
            return
        change = {"operation": operation, "intent_id": intent_id, **msgspec.to_builtins(entry)}
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(change) + "\n")
                file.flush()
        self._apply(change)

    def _apply(self, change: dict[str, Any]) -> None:
        entry = msgspec.convert({name: change[name] for name in Entry.__struct_fields__}, Entry)
        self._kept(change["operation"]).setdefault(change["intent_id"], entry)

    def _kept(self, operation: str) -> dict[str, Entry]:
        return {"charge": self.charges, "second_charge": self.second_charges}.get(operation, self.refunds)


def unknown(operation: Operation, detail: str = "no answer") -> GatewayAnswer:
    """An answer that never came."""
    return GatewayAnswer(operation=operation, outcome=Outcome.UNKNOWN, detail=detail)


def _refund_name(intent_id: str, refund_key: str) -> str:
    return refund_key if refund_key == refund_key_of(intent_id, 2) else intent_id


def _entry(prefix: str, key: str, amount_minor: int, currency: str, behaviour: str) -> Entry:
    outcome = Outcome.DECLINED if behaviour == "decline" else Outcome.SUCCEEDED
    amount = amount_minor + (behaviour == "other_amount")
    return Entry(gateway_id=f"{prefix}_{key}", outcome=outcome.value, amount_minor=amount, currency=currency)


def _said(operation: Operation, entry: Entry) -> GatewayAnswer:
    return GatewayAnswer(
        operation=operation,
        outcome=Outcome(entry.outcome),
        amount_minor=entry.amount_minor,
        currency=entry.currency,
        gateway_id=entry.gateway_id,
    )
