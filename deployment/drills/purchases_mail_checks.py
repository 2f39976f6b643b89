"""Checks of the drill of purchases about what is told to others: notices and mails, each once by name, to the right address.

Pure functions of the evidence, each giving what it found wrong. What must stay true: each can fail, and a test alters the evidence
so that it does.
"""

import re
from collections import Counter
from typing import Final

from deployment.drills.purchases_evidence import Check, Evidence, states
from domain.canonical import canonical
from services.process_managers.purchase_mail import THREADS

TOLD: Final = {"CONFIRMED": "PaymentSucceeded", "COMPENSATED": "ReservationCancelled"}
MAILS: Final = {"CONFIRMED": "confirmed", "COMPENSATED": "failed"}

MESSAGE_ID: Final = re.compile(r"<(res_[0-9a-f]{40})\.(confirmed|failed(-\d+)?|correction-\d+)@finaz\.invalid>")

MAILBOX: Final = "what the mail server was offered"


def _told_once(e: Evidence) -> list[str]:
    """Each end is told by its own notice, once, and each notice was delivered."""
    posted = Counter((x["event"]["purchase_id"], x["event"]["name"]) for x in e.events("notice.posted.v1"))
    due = Counter((name, TOLD[state]) for name, state in states(e).items() if state in TOLD)
    wrong = [f"{key} was told {posted[key]} times" for key in posted.keys() | due.keys() if posted[key] != due[key]]
    delivered = Counter(x["event"]["notice_id"] for x in e.events("notice.delivered.v1"))
    ids = Counter(x["event"]["notice_id"] for x in e.events("notice.posted.v1"))
    return wrong + [
        f"{one} was delivered {delivered[one]} times" for one in ids.keys() | delivered.keys() if delivered[one] != 1
    ]


def _mail_of_each_end(e: Evidence) -> list[str]:
    """The mail of its end was accepted, under one Message-ID for each mail that is recorded, and recorded if accepted."""
    recorded = {
        (x["event"]["purchase_id"], x["event"]["mail"]): x["event"]["message_id"]
        for x in e.events("purchase.mail_recorded.v1")
    }
    accepted = {mail.message_id for mail in e.mails if mail.accepted}
    wrong = [
        f"{mail} of {name} is recorded and was never accepted"
        for (name, mail), one in recorded.items()
        if one not in accepted
    ]
    wrong += [f"{one} was accepted and is not recorded" for one in sorted(accepted - set(recorded.values()))]
    wrong += [
        f"{name} is {state} and nobody was told"
        for name, state in states(e).items()
        if not _has_mail(name, state, recorded)
    ]
    ids = Counter(recorded.values())
    wrong += [f"{one} stands for {n} mails" for one, n in ids.items() if n > 1]
    again = Counter((x["event"]["purchase_id"], x["event"]["mail"]) for x in e.events("purchase.mail_recorded.v1"))
    return wrong + [f"{key} is recorded {n} times" for key, n in again.items() if n > 1]


def _has_mail(name: str, state: str, recorded: dict[tuple[str, str], str]) -> bool:
    kinds = {mail.partition("-")[0] for purchase, mail in recorded if purchase == name}
    return state not in MAILS or MAILS[state] in kinds or (state == "COMPENSATED" and "correction" in kinds)


def _one_message_id(e: Evidence) -> list[str]:
    """However often a mail is offered, refused and offered again, its Message-ID is made of its purchase and its name alone."""
    known = states(e)
    found = {mail.message_id: MESSAGE_ID.fullmatch(mail.message_id) for mail in e.mails}
    return [f"{one} is no mail's Message-ID" for one, match in found.items() if match is None or match[1] not in known]


def _mail_repeated_by_kills_only(e: Evidence) -> list[str]:
    """A mail goes out again only where a crash fell between acceptance and record: one of each thread that sends, at most."""
    repeats = sum(count - 1 for count in Counter(mail.message_id for mail in e.mails if mail.accepted).values())
    kills = sum(count for name, count in e.kills.items() if name.startswith("manager") or name == "postgres")
    return [] if repeats <= kills * THREADS else [f"{repeats} mails were repeated by {kills} kills"]


def _mail_to_buyer(e: Evidence) -> list[str]:
    emails = {one.purchase_id: one.email for one in e.asked if one.purchase_id}
    return [
        f"{mail.message_id} went to {mail.to}"
        for mail in e.mails
        if mail.to != (emails.get(mail.message_id.strip("<>").partition(".")[0]),)
    ]


def _no_address_in_the_log(e: Evidence) -> list[str]:
    text = canonical([event["event"] for event in e.log]).decode("utf-8")
    return [f"{one.email} stands in the log" for one in e.asked if one.email in text]


MAIL_CHECKS: Final = (
    Check(id="notices", what="each end was told to others, once", source="event log", wrong=_told_once),
    Check(id="mails", what="each end has its mail, under one Message-ID", source=MAILBOX, wrong=_mail_of_each_end),
    Check(id="mail-ids", what="a mail keeps its Message-ID when offered again", source=MAILBOX, wrong=_one_message_id),
    Check(
        id="mail-repeats", what="no mail was repeated but by a kill", source=MAILBOX, wrong=_mail_repeated_by_kills_only
    ),
    Check(id="mail-to", what="every mail went to its buyer alone", source=MAILBOX, wrong=_mail_to_buyer),
    Check(id="personal", what="no address is in the log", source="event log", wrong=_no_address_in_the_log),
)
