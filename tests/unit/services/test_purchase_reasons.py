"""What operators are told of a gateway that does not say what it did: its own reason, and whether it was asked at all."""

import asyncio

from domain.purchases.messages import GatewayAnswer, Operation, Outcome, RecordEvidence, Source
from services.gateway import ChargeRequest
from services.purchase_audit import audit
from tests.support.purchase_rig import Rig

REASON = "status 401"


class Silent:
    """A gateway that answers every call with a reason and no outcome."""

    def charge(self, request: ChargeRequest) -> GatewayAnswer:
        return GatewayAnswer(operation=Operation.CHARGE, outcome=Outcome.UNKNOWN, detail=REASON)

    def find_charge(self, intent_id: str) -> GatewayAnswer:
        return GatewayAnswer(operation=Operation.CHARGE, outcome=Outcome.UNKNOWN, detail=REASON)

    def refund(self, request: object) -> GatewayAnswer:
        return GatewayAnswer(operation=Operation.REFUND, outcome=Outcome.UNKNOWN, detail=REASON)

    def find_refund(self, refund_key: str) -> GatewayAnswer:
        return GatewayAnswer(operation=Operation.REFUND, outcome=Outcome.UNKNOWN, detail=REASON)


def test_the_timeline_says_to_operators_why_nothing_is_known() -> None:
    """A call that was not answered stands there with what the gateway, or the connection to it, said; buyers see only that."""
    rig = Rig()
    purchase = rig.buy(rig.create_show(1), ("A0",), "charge:timeout_after")
    rig.turn()
    unknown = GatewayAnswer(operation=Operation.CHARGE, outcome=Outcome.UNKNOWN, detail=REASON)
    rig.deals.carry(purchase, RecordEvidence(unknown, Source.RECONCILIATION, 1))
    seen = {who: asyncio.run(rig.purchases.view(purchase, who)).timeline[-1].detail for who in (None, "ana")}
    assert seen[None] == f"CHARGE UNKNOWN (RECONCILIATION): {REASON}"
    assert seen["ana"] == "CHARGE UNKNOWN (RECONCILIATION)"


def test_an_audit_says_why_and_whether_the_gateway_was_asked() -> None:
    """A silent gateway is a difference with its reason; one that nobody asked is not taken for one that agreed."""
    rig = Rig()
    rig.buy(rig.create_show(1), ("A0",))
    rig.settle_down()
    (difference,) = audit(rig.log, Silent()).differences
    assert difference.what.endswith(REASON)
    assert audit(rig.log, rig.books).gateway_asked
    assert not audit(rig.log, None).gateway_asked
