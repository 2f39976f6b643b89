"""The checks of the drill of purchases: all hold of what a real drill gathered, and each fails on evidence altered for it."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployment.drills.purchases import report
from deployment.drills.purchases_checks import CHECKS
from deployment.drills.purchases_evidence import evidence_document, evidence_of
from domain.canonical import canonical, parse

EVIDENCE = Path(__file__).parents[2] / "fixtures" / "drills" / "purchases.evidence.json"

Document = dict[str, Any]
Alteration = Callable[[Document], None]


def gathered() -> Document:
    document: Document = parse(EVIDENCE.read_bytes())
    return document


def of(document: Document, topic: str, **fields: Any) -> list[Document]:
    """The events of a topic with these fields."""
    return [
        row
        for row in document["log"]
        if row["topic"] == topic and all(row["event"].get(name) == value for name, value in fields.items())
    ]


def did(document: Document, operation: str) -> list[Document]:
    return [x for x in document["gateway"] if (x["operation"], x["outcome"]) == (operation, "SUCCEEDED")]


def without(document: Document, row: Document) -> None:
    """The log without an event, its other events moved up."""
    at = document["log"].index(row)
    for later in document["log"][at + 1 :]:
        later["position"] -= 1
        later["version"] -= later["stream"] == row["stream"]
    del document["log"][at]


def repeated(document: Document, row: Document, **changes: Any) -> None:
    """The log with an event once more, at its end."""
    again = copy.deepcopy(row)
    again["event"] |= changes
    again["position"] = document["log"][-1]["position"] + 1
    again["version"] = 1 + max((x["version"] for x in document["log"] if x["stream"] == row["stream"]), default=0)
    document["log"].append(again)


def confirmed(document: Document) -> str:
    return str(of(document, "purchase.confirmed.v1")[0]["event"]["purchase_id"])


def uncharged(document: Document) -> str:
    """A purchase that came to nothing without a charge."""
    charged = {x["intent_id"] for x in did(document, "charge")}
    failed = [str(x["event"]["purchase_id"]) for x in of(document, "purchase.compensated.v1")]
    return next(name for name in failed if f"int_{name}" not in charged)


def another_amount(document: Document) -> None:
    did(document, "charge")[0]["amount_minor"] += 1


def charged_again(document: Document) -> None:
    document["gateway"].append(did(document, "charge")[0] | {"gateway_id": "ch_2"})


def charged_under_two_names(document: Document) -> None:
    row = of(document, "purchase.evidence_recorded.v1", operation="CHARGE", outcome="SUCCEEDED")[0]
    repeated(document, row, gateway_id="ch_2")


def charge_untold(document: Document) -> None:
    line = {
        "operation": "charge",
        "outcome": "SUCCEEDED",
        "gateway_id": "ch_9",
        "amount_minor": 1000,
        "currency": "EUR",
    }
    document["gateway"].append({**line, "intent_id": f"int_{uncharged(document)}"})


def refund_lost(document: Document) -> None:
    document["gateway"].remove(did(document, "refund")[0])


def refund_before_charge(document: Document) -> None:
    document["gateway"].sort(key=lambda line: str(line["operation"]), reverse=True)


def refunded_sale(document: Document) -> None:
    sale = next(x for x in did(document, "charge") if x["intent_id"] == f"int_{confirmed(document)}")
    document["gateway"].append({**sale, "operation": "refund", "gateway_id": "re_9"})


def one_sided(document: Document) -> None:
    of(document, "ledger.entry_posted.v1")[0]["event"]["lines"][0]["amount_minor"] += 1


def balances_stale(document: Document) -> None:
    document["served"]["balances"][0]["accounts"]["ticket_sales"] -= 1


def unattempted(document: Document) -> None:
    for row in of(document, "purchase.charge_attempted.v1", purchase_id=confirmed(document)):
        without(document, row)


def guessed(document: Document) -> None:
    of(document, "purchase.payment_failed.v1", reason="NOT_FOUND")[0]["event"]["reason"] = "UNKNOWN"


def not_found_believed_early(document: Document) -> None:
    row = of(document, "purchase.payment_failed.v1", reason="NOT_FOUND")[0]
    attempts = of(document, "purchase.charge_attempted.v1", purchase_id=row["event"]["purchase_id"])
    attempts[-1]["event"]["decided_at"] = row["event"]["decided_at"]


def sold_twice(document: Document) -> None:
    repeated(document, of(document, "seat.sold.v1")[0])


def sold_to_nobody(document: Document) -> None:
    of(document, "seat.sold.v1")[0]["event"]["purchase_id"] = uncharged(document)


def reserved_while_kept(document: Document) -> None:
    sold = of(document, "seat.sold.v1")[0]
    repeated(document, of(document, "seat.reserved.v1", seat=sold["event"]["seat"])[0], purchase_id=uncharged(document))


def never_released(document: Document) -> None:
    without(document, of(document, "seat.released.v1")[-1])


def both_heard(document: Document) -> None:
    word = next(one for one in document["words"] if one["answer"] == "REFUSED")
    word["answer"] = "CONFIRMED"


def settled_against_the_word(document: Document) -> None:
    for one in document["words"]:
        one["word"] = "charged" if one["word"] == "not-charged" else "not-charged"


def unsigned(document: Document) -> None:
    of(document, "purchase.settled.v1")[0]["event"]["principal"] = ""


def told_twice(document: Document) -> None:
    repeated(document, of(document, "notice.posted.v1")[0])


def never_delivered(document: Document) -> None:
    without(document, of(document, "notice.delivered.v1")[0])


def mail_lost(document: Document) -> None:
    lost = document["mails"][0]["message_id"]
    document["mails"] = [mail for mail in document["mails"] if mail["message_id"] != lost]


def another_message_id(document: Document) -> None:
    document["mails"].append(document["mails"][0] | {"message_id": "<other@finaz.invalid>"})


def nobody_was_told(document: Document) -> None:
    row = of(document, "purchase.mail_recorded.v1")[0]
    message_id = row["event"]["message_id"]
    without(document, row)
    document["mails"] = [mail for mail in document["mails"] if mail["message_id"] != message_id]


def mail_again_and_again(document: Document) -> None:
    document["mails"] += [document["mails"][0]] * 100


def offered_under_another_id(document: Document) -> None:
    document["mails"].insert(0, document["mails"][0] | {"message_id": "<other@finaz.invalid>", "accepted": False})


def mail_to_another(document: Document) -> None:
    document["mails"][0]["to"] = [document["asked"][-1]["email"]]


def address_in_the_log(document: Document) -> None:
    of(document, "purchase.started.v1")[0]["event"]["contact_id"] = document["asked"][0]["email"]


def sale_missed(document: Document) -> None:
    document["served"]["sales"][0]["seats"] -= 1


def timeline_cut(document: Document) -> None:
    next(iter(document["served"]["purchases"].values()))["timeline"].pop()


def something_to_do(document: Document) -> None:
    view = next(iter(document["served"]["purchases"].values()))
    view["next_action"] = {"action": "refund", "due_at": "2026-11-30T12:00:00Z"}


def unanswered(document: Document) -> None:
    document["asked"][0] |= {"purchase_id": "", "code": ""}


def refused_for_no_reason(document: Document) -> None:
    next(one for one in document["asked"] if one["code"])["code"] = "DEFECT"


def begun_for_nobody(document: Document) -> None:
    row = of(document, "purchase.started.v1")[0]
    repeated(document, {**row, "stream": "purchase/res_x", "version": 0})


def key_burnt(document: Document) -> None:
    repeated(document, of(document, "admission.key_claimed.v1")[-1])


def another_purchase_later(document: Document) -> None:
    next(one for one in document["asked"] if one["purchase_id"])["again"] = "SEATS_TAKEN"


def never_ended(document: Document) -> None:
    without(document, of(document, "purchase.confirmed.v1")[0])


def time_was_over(document: Document) -> None:
    document["settled"] = False


def hole_in_the_log(document: Document) -> None:
    del document["log"][7]


def seat_served_free(document: Document) -> None:
    next(one for one in document["served"]["seats"] if one["state"] == "SOLD")["state"] = "FREE"


def postgres_spared(document: Document) -> None:
    del document["kills"]["postgres"]


def nobody_refused(document: Document) -> None:
    document["asked"] = [one for one in document["asked"] if one["purchase_id"]]


def audit_finding(document: Document) -> None:
    document["audits"]["purchases"] = ["res_1: seat A1 is FREE for nobody"]


def dead_letter(document: Document) -> None:
    document["dead_letters"] = [["payment", "charge", "res_1", "why"]]


ALTERATIONS: dict[str, tuple[Alteration, ...]] = {
    "killed": (postgres_spared,),
    "met": (nobody_refused,),
    "whole": (hole_in_the_log,),
    "answered": (unanswered, refused_for_no_reason, begun_for_nobody),
    "refused": (key_burnt,),
    "same-again": (another_purchase_later,),
    "ended": (never_ended, time_was_over),
    "charged-once": (charged_again, charged_under_two_names),
    "charges": (another_amount, charge_untold),
    "refunds": (refund_lost, refunded_sale),
    "refund-of-charge": (refund_before_charge,),
    "seat-or-refund": (charge_untold, refund_lost, refunded_sale, sold_to_nobody),
    "zero": (one_sided, balances_stale),
    "attempted": (unattempted,),
    "not-blind": (guessed, not_found_believed_early),
    "sold-once": (sold_twice, sold_to_nobody),
    "kept-for-one": (reserved_while_kept, never_released),
    "seats-served": (seat_served_free,),
    "one-word": (both_heard, settled_against_the_word, unsigned),
    "notices": (told_twice, never_delivered),
    "mails": (mail_lost, another_message_id, nobody_was_told),
    "mail-ids": (offered_under_another_id,),
    "mail-repeats": (mail_again_and_again,),
    "mail-to": (mail_to_another,),
    "personal": (address_in_the_log,),
    "sales": (sale_missed,),
    "status": (timeline_cut, something_to_do),
    "audits": (audit_finding, dead_letter),
}


def test_all_checks_hold_of_what_a_real_drill_gathered() -> None:
    """Written out and read again, the evidence gives the same report."""
    first = report(evidence_of(gathered()))
    assert [check for check in first["checks"] if not check["pass"]] == []
    again = evidence_document(evidence_of(gathered()))
    assert report(evidence_of(parse(canonical(again)))) == first
    assert first["ok"]


def test_every_check_has_its_alteration() -> None:
    """None is there that nobody has seen fail."""
    assert list(ALTERATIONS) == [check.id for check in CHECKS]


@pytest.mark.parametrize(
    ("check", "alter"),
    [(check, alter) for check, alters in ALTERATIONS.items() for alter in alters],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_check_fails_on_evidence_altered_for_it(check: str, alter: Alteration) -> None:
    """What it is there to see, it sees, whatever else is seen besides."""
    document = gathered()
    alter(document)
    found = report(evidence_of(document))
    assert check in {one["id"] for one in found["checks"] if not one["pass"]}
    assert not found["ok"]


def test_evidence_that_lacks_what_is_looked_at_fails() -> None:
    """A drill that gathered nothing has shown nothing."""
    document = gathered()
    document["served"] = {}
    failed = {one["id"] for one in report(evidence_of(document))["checks"] if not one["pass"]}
    assert failed >= {"seats-served", "sales", "zero", "status"}
