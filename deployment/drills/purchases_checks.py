"""The checks of the drill of purchases, by name: what was charged, refunded, reserved, sold, written and shown is one story.

Pure functions of the evidence, each giving what it found wrong. They fold nothing with the code that they judge. What must stay
true: each can fail, and a test alters the evidence so that it does.
"""

from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any, Final

from deployment.drills.purchases_evidence import ENDS, Check, Evidence, states
from deployment.drills.purchases_mail_checks import MAIL_CHECKS
from domain.instants import parse_instant

VICTIMS: Final = ("api", "gateway", "manager", "manager-2", "postgres", "projector")
GRACE_SECONDS: Final = 120
WORDS: Final = {"charged": "CONFIRMED", "not-charged": "COMPENSATED"}
REFUSED: Final = "REFUSED"

LOG: Final = "event log"
GATEWAY: Final = "the gateway's own file"
BUYERS: Final = "what buyers and operators were answered"
SERVED: Final = "what the API serves at the end"


def _intent(purchase_id: str) -> str:
    return f"int_{purchase_id}"


def _posted(e: Evidence, kind: str) -> dict[str, int]:
    """The entries of a kind in the ledger: what each intent's receivable was debited, its sign turned for a refund."""
    found = {}
    for event in e.events("ledger.entry_posted.v1"):
        if event["event"]["kind"] == kind:
            lines = {line["account"]: line["amount_minor"] for line in event["event"]["lines"]}
            found[event["event"]["intent_id"]] = abs(lines["gateway_receivable"])
    return found


# ------------------------------------------------------------------------------------------------ the drill was one


def _killed(e: Evidence) -> list[str]:
    return [f"{victim} was never killed" for victim in VICTIMS if not e.kills.get(victim)]


def _met(e: Evidence) -> list[str]:
    """Without silence, refunds and both ends, a drill has shown little."""
    outcomes = Counter(
        (x["event"]["operation"], x["event"]["outcome"]) for x in e.events("purchase.evidence_recorded.v1")
    )
    ends = Counter(states(e).values())
    met = {
        "a charge without an answer": outcomes["CHARGE", "UNKNOWN"],
        "a charge that was not found too early": outcomes["CHARGE", "NOT_FOUND"] - _failed_by(e, "NOT_FOUND"),
        "a question that found a charge": len(e.events("purchase.reconciliation_attempted.v1")),
        "a refund": outcomes["REFUND", "SUCCEEDED"],
        "a confirmed purchase": ends["CONFIRMED"],
        "a compensated purchase": ends["COMPENSATED"],
        "an operator's word": len(e.events("purchase.settled.v1")),
        "a refused buyer": sum(one.code == "SEATS_TAKEN" for one in e.asked),
    }
    return [f"the drill has not met {name}" for name, count in met.items() if not count]


def _failed_by(e: Evidence, reason: str) -> int:
    return sum(x["event"]["reason"] == reason for x in e.events("purchase.payment_failed.v1"))


# ------------------------------------------------------------------------------------------------ buyers


def _answered(e: Evidence) -> list[str]:
    known = states(e)
    wrong = [
        f"{one.key}: {one.code or 'no answer'}" for one in e.asked if not one.purchase_id and one.code != "SEATS_TAKEN"
    ]
    wrong += [
        f"{one.key}: {one.purchase_id} is not in the log"
        for one in e.asked
        if one.purchase_id and one.purchase_id not in known
    ]
    bought = {one.purchase_id for one in e.asked}
    return wrong + [f"{purchase_id} was begun for nobody" for purchase_id in known if purchase_id not in bought]


def _refused_leaves_nothing(e: Evidence) -> list[str]:
    """As many purchases' keys are claimed as purchases were answered; a refused key claims nothing."""
    claimed = [
        key for x in e.events("admission.key_claimed.v1") for key in x["event"]["subject_ids"] if key.startswith("res_")
    ]
    bought = [one.purchase_id for one in e.asked if one.purchase_id]
    return (
        []
        if sorted(claimed) == sorted(bought)
        else [f"{len(claimed)} keys are claimed, {len(bought)} purchases answered"]
    )


def _same_again(e: Evidence) -> list[str]:
    return [f"{one.key}: {one.purchase_id}, later {one.again}" for one in e.asked if one.purchase_id != one.again]


def _ended(e: Evidence) -> list[str]:
    wrong = [] if e.settled else ["something was left to do when the time was over"]
    return wrong + [f"{name} is {state}" for name, state in states(e).items() if state not in ENDS.values()]


# ------------------------------------------------------------------------------------------------ money


def _charged_once(e: Evidence) -> list[str]:
    wrong = [
        f"{intent} was charged {n} times"
        for intent, n in Counter(x["intent_id"] for x in e.did("charge")).items()
        if n > 1
    ]
    ids: dict[str, set[str]] = defaultdict(set)
    for event in e.events("purchase.evidence_recorded.v1"):
        if (
            event["event"]["operation"] == "CHARGE"
            and event["event"]["outcome"] == "SUCCEEDED"
            and event["event"]["gateway_id"]
        ):
            ids[event["event"]["purchase_id"]].add(event["event"]["gateway_id"])
    return wrong + [f"{name} has charges {sorted(found)}" for name, found in ids.items() if len(found) > 1]


def _charges_agree(e: Evidence) -> list[str]:
    return _agree({x["intent_id"]: x["amount_minor"] for x in e.did("charge")}, _posted(e, "CHARGE"), "charged")


def _refunds_agree(e: Evidence) -> list[str]:
    return _agree({x["intent_id"]: x["amount_minor"] for x in e.did("refund")}, _posted(e, "REFUND"), "refunded")


def _agree(gateway: dict[str, int], ledger: dict[str, int], what: str) -> list[str]:
    return [
        f"{intent} {what}: the gateway says {gateway.get(intent)}, the ledger {ledger.get(intent)}"
        for intent in sorted(gateway.keys() | ledger.keys())
        if gateway.get(intent) != ledger.get(intent)
    ]


def _refund_has_charge(e: Evidence) -> list[str]:
    """In the gateway's own order, and in the ledger's."""
    wrong, charged = [], set()
    for line in e.gateway:
        if line["operation"] == "charge" and line["outcome"] == "SUCCEEDED":
            charged.add(line["intent_id"])
        elif line["operation"] == "refund" and line["outcome"] == "SUCCEEDED" and line["intent_id"] not in charged:
            wrong.append(f"{line['intent_id']} was refunded uncharged")
    refunds = [x["intent_id"] for x in e.did("refund")]
    return wrong + [f"{intent} was refunded {n} times" for intent, n in Counter(refunds).items() if n > 1]


def _seat_or_refund(e: Evidence) -> list[str]:
    refunded = {x["intent_id"] for x in e.did("refund")}
    confirmed = {_intent(name) for name, state in states(e).items() if state == "CONFIRMED"}
    sold = {_intent(x["event"]["purchase_id"]) for x in e.events("seat.sold.v1")}
    wrong = []
    for intent in (x["intent_id"] for x in e.did("charge")):
        has_seat = intent in confirmed and intent in sold
        if has_seat == (intent in refunded):
            kept = "seats" if has_seat else "no seats"
            wrong.append(f"{intent} is charged, has {kept}, and is refunded: {intent in refunded}")
    charged = {x["intent_id"] for x in e.did("charge")}
    return wrong + [f"{intent} has its seats for nothing" for intent in sorted(confirmed - charged)]


def _sums_to_zero(e: Evidence) -> list[str]:
    wrong = []
    accounts: Counter[str] = Counter()
    for event in e.events("ledger.entry_posted.v1"):
        lines = event["event"]["lines"]
        if sum(line["amount_minor"] for line in lines):
            wrong.append(f"{event['stream']} version {event['version']} does not sum to zero")
        for line in lines:
            accounts[line["account"]] += line["amount_minor"]
    served = [one["accounts"] for one in e.served["balances"] if one["currency"] == "EUR"]
    total: int = sum(accounts.values())
    if served != [dict(accounts)] or total:
        wrong.append(f"balances served {served}, in the log {dict(accounts)}")
    return wrong


def _attempted_first(e: Evidence) -> list[str]:
    attempted = {
        kind: {_intent(x["event"]["purchase_id"]) for x in e.events(f"purchase.{kind}_attempted.v1")}
        for kind in ("charge", "refund")
    }
    return [
        f"{line['intent_id']}: a {line['operation']} that was never attempted"
        for line in e.gateway
        if line["intent_id"] not in attempted[line["operation"]]
    ]


def _never_blind(e: Evidence) -> list[str]:
    """A payment fails by the gateway's word, by an operator's, or by time before any attempt; "not found" late enough."""
    wrong = []
    for name, events in e.by_purchase().items():
        attempted = None
        for event in events:
            if event["topic"] == "purchase.charge_attempted.v1":
                attempted = parse_instant(event["event"]["decided_at"])
            if event["topic"] != "purchase.payment_failed.v1":
                continue
            reason, at = event["event"]["reason"], parse_instant(event["event"]["decided_at"])
            early = attempted is not None and at - attempted < timedelta(seconds=GRACE_SECONDS)
            told = reason in ("DECLINED", "OPERATOR") or (reason == "NOT_FOUND" and not early)
            if not told and (reason != "RESERVATION_EXPIRED" or attempted is not None):
                wrong.append(f"{name} failed: {reason}, last attempt {attempted}, {at}")
    return wrong


# ------------------------------------------------------------------------------------------------ seats


def _seats_sold_once(e: Evidence) -> list[str]:
    sold = Counter(x["stream"] for x in e.events("seat.sold.v1"))
    wrong = [f"{stream} was sold {n} times" for stream, n in sold.items() if n > 1]
    confirmed = {name for name, state in states(e).items() if state == "CONFIRMED"}
    return wrong + [
        f"{x['stream']} was sold to {x['event']['purchase_id']}, which is not confirmed"
        for x in e.events("seat.sold.v1")
        if x["event"]["purchase_id"] not in confirmed
    ]


def _seats_kept_for_one(e: Evidence) -> list[str]:
    """Reserved, then released or sold by the same purchase, never by another, and never reserved while it is kept."""
    kept: dict[str, str] = {}
    wrong = []
    for event in e.events("seat.reserved.v1", "seat.released.v1", "seat.sold.v1"):
        seat, who = event["stream"], event["event"]["purchase_id"]
        if (seat in kept) if event["topic"] == "seat.reserved.v1" else (kept.get(seat) != who):
            wrong.append(f"{seat} is kept for {kept.get(seat)}: {event['topic']} of {who}")
        if event["topic"] == "seat.reserved.v1":
            kept[seat] = who
        elif event["topic"] == "seat.released.v1":
            kept.pop(seat, None)
    open_ones = {name for name, state in states(e).items() if state != "COMPENSATED"}
    return wrong + [f"{seat} is still kept for {who}" for seat, who in kept.items() if who not in open_ones]


def _seats_served(e: Evidence) -> list[str]:
    sold = {x["event"]["seat"] for x in e.events("seat.sold.v1")}
    return [
        f"seat {one['seat']} is served as {one['state']}"
        for one in e.served["seats"]
        if one["state"] != ("SOLD" if one["seat"] in sold else "FREE")
    ]


# ------------------------------------------------------------------------------------------------ operators, others, status


def _one_word(e: Evidence) -> list[str]:
    """Two operators said the same at once: one is heard, the other told that it is settled; what was said holds."""
    wrong = []
    found = states(e)
    by_purchase: dict[str, list[Any]] = defaultdict(list)
    for one in e.words:
        by_purchase[one.purchase_id].append(one)
    settled = Counter(x["event"]["purchase_id"] for x in e.events("purchase.settled.v1"))
    for name, words in by_purchase.items():
        answers = sorted(one.answer for one in words)
        if answers.count(REFUSED) != len(words) - 1 or settled[name] != 1:
            wrong.append(f"{name}: {answers}, settled {settled[name]} times")
        if found[name] != WORDS[words[0].word]:
            wrong.append(f"{name} was settled as {words[0].word} and is {found[name]}")
    signed = [x for x in e.events("purchase.settled.v1") if not (x["event"]["principal"] and x["event"]["note"])]
    return wrong + [f"{x['stream']} is settled without name or note" for x in signed]


def _sales_caught_up(e: Evidence) -> list[str]:
    """They were away during the whole storm."""
    sold = Counter[str]()
    for event in e.events("notice.posted.v1"):
        if event["event"]["name"] == "PaymentSucceeded":
            sold.update(purchases=1, seats=len(event["event"]["seats"]), revenue_minor=event["event"]["amount_minor"])
        else:
            sold.update(cancelled=1)
    served = Counter[str]()
    for one in e.served["sales"]:
        served.update({name: one[name] for name in ("purchases", "seats", "revenue_minor", "cancelled")})
    return [
        f"{name}: served {served[name]}, told {sold[name]}"
        for name in sold.keys() | served.keys()
        if sold[name] != served[name]
    ]


def _status_readable(e: Evidence) -> list[str]:
    """Each purchase's status tells the log's events in their order, ends, and waits for nothing."""
    wrong = []
    found = states(e)
    for name, events in e.by_purchase().items():
        view = e.served["purchases"].get(name, {})
        told = [(entry["position"], entry["what"]) for entry in view.get("timeline", ())]
        if told != [(x["position"], x["topic"].split(".")[1]) for x in events]:
            wrong.append(f"{name} has a timeline of {len(told)} entries, its stream {len(events)} events")
        if view.get("state") != found[name] or view.get("next_action") is not None:
            wrong.append(
                f"{name} is served as {view.get('state')}, next {view.get('next_action')}; it is {found[name]}"
            )
    return wrong


def _audited(e: Evidence) -> list[str]:
    return [*e.audits["purchases"], *e.audits["log"], *(f"dead letter: {letter}" for letter in e.dead_letters)]


def _whole(e: Evidence) -> list[str]:
    positions = [event["position"] for event in e.log]
    versions: Counter[str] = Counter()
    wrong = [] if positions == list(range(1, len(positions) + 1)) else ["the log's positions are not contiguous"]
    for event in e.log:
        versions[event["stream"]] += 1
        if event["version"] != versions[event["stream"]]:
            wrong.append(f"{event['stream']} has version {event['version']} where {versions[event['stream']]} is due")
    return wrong


CHECKS: Final = (
    Check(id="killed", what="every process was killed, PostgreSQL too", source="the drill", wrong=_killed),
    Check(id="met", what="silence, refunds, both ends, refusals and operators were met", source=LOG, wrong=_met),
    Check(id="whole", what="the log is whole", source=LOG, wrong=_whole),
    Check(
        id="answered",
        what="every buyer has a purchase or was told that seats are taken",
        source=BUYERS,
        wrong=_answered,
    ),
    Check(id="refused", what="whoever was refused left nothing", source=LOG, wrong=_refused_leaves_nothing),
    Check(id="same-again", what="the same key was answered the same after the storm", source=BUYERS, wrong=_same_again),
    Check(id="ended", what="every purchase came to an end", source=LOG, wrong=_ended),
    Check(id="charged-once", what="never two charges for an intent", source=GATEWAY, wrong=_charged_once),
    Check(id="charges", what="charges at the gateway are those in the ledger", source=GATEWAY, wrong=_charges_agree),
    Check(id="refunds", what="refunds at the gateway are those in the ledger", source=GATEWAY, wrong=_refunds_agree),
    Check(
        id="refund-of-charge", what="never a refund without a charge, nor two", source=GATEWAY, wrong=_refund_has_charge
    ),
    Check(id="seat-or-refund", what="every charge has its seats or its refund", source=GATEWAY, wrong=_seat_or_refund),
    Check(id="zero", what="the ledger sums to zero, and so it is served", source=LOG, wrong=_sums_to_zero),
    Check(
        id="attempted",
        what="nothing was asked of the gateway before it was recorded",
        source=LOG,
        wrong=_attempted_first,
    ),
    Check(id="not-blind", what="no payment failed by anybody's guess", source=LOG, wrong=_never_blind),
    Check(id="sold-once", what="every seat was sold once, to whom is confirmed", source=LOG, wrong=_seats_sold_once),
    Check(id="kept-for-one", what="no seat was kept for two", source=LOG, wrong=_seats_kept_for_one),
    Check(id="seats-served", what="the list of seats agrees", source=SERVED, wrong=_seats_served),
    Check(id="one-word", what="of two operators one was heard, with name and note", source=BUYERS, wrong=_one_word),
    *MAIL_CHECKS,
    Check(
        id="sales", what="sales per day caught up with a storm that they missed", source=SERVED, wrong=_sales_caught_up
    ),
    Check(
        id="status",
        what="every status tells its whole story and waits for nothing",
        source=SERVED,
        wrong=_status_readable,
    ),
    Check(id="audits", what="both audits find nothing, and nothing was set aside", source="the audits", wrong=_audited),
)
"""All of them, in the order of the report."""
