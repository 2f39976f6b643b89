"""What settles an alert is said with it, whatever its source, and is what the domain accepts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from domain.discrepancies.aggregate import DiscrepancyState
from domain.discrepancies.messages import DiscrepancyKind
from domain.errors import AlertNotFoundError, RefusedError
from domain.purchases.deal import _settled
from domain.purchases.messages import Alert, Settlement, SettlePurchase
from domain.purchases.saga import Saga, SagaState
from projections.discrepancies.projection import DiscrepancyRow
from projections.purchases.projection import PurchaseRow
from services.alert_sources import PURCHASE_KINDS, PurchaseAlerts, ReconcilerAlerts, settle_command
from services.alerts import refuse_others

AT = datetime(2026, 1, 5, tzinfo=UTC)
RUN = "run_" + "a" * 64


class Rows:
    """A read model with one row."""

    def __init__(self, row: msgspec.Struct) -> None:
        self._row = row

    def rows(self, statement: str, arguments: Mapping[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return [(msgspec.json.encode(self._row).decode(),)]


def purchase_in(state: SagaState, kind: str) -> PurchaseRow:
    return PurchaseRow(
        purchase_id="res_1",
        state=state.value,
        principal="ana",
        show_id="show_1",
        seats=("A1",),
        amount_minor=1000,
        currency="EUR",
        alerts=(kind,),
        state_since=AT,
        started_at=AT,
        first_position=1,
        position=2,
    )


def accepts(saga: Saga, settlement: Settlement) -> bool:
    """Whether the purchase takes this word."""
    try:
        list(_settled(saga, SettlePurchase(settlement=settlement, principal="op", note="asked"), AT))
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize("kind", PURCHASE_KINDS)
@pytest.mark.parametrize("state", [state for state in SagaState if state is not SagaState.ABSENT])
def test_an_alert_of_a_purchase_names_the_words_that_its_state_takes(state: SagaState, kind: str) -> None:
    """All of them and no other; where the purchase takes none, that it goes on by itself."""
    (found,) = PurchaseAlerts(Rows(purchase_in(state, kind))).newest("ALERTED", 10, 10)
    charges = ("ch_1",) if state is SagaState.COMPENSATION_PENDING else ()
    saga = Saga(state=state, purchase_id="res_1", amount_minor=1000, currency="EUR", charges=charges, alerts=(kind,))
    taken = [word.word for word in Settlement if accepts(saga, word)]
    said = found.view.settle_with
    if taken:
        assert said == f"finaz purchase settle res_1 {'|'.join(taken)} --note TEXT"
    else:
        assert said == f"nothing yet, it is {state.value} and goes on by itself: finaz purchase status res_1"


@pytest.mark.parametrize("state", [state for state in DiscrepancyState if state is not DiscrepancyState.ABSENT])
def test_an_alert_of_the_reconciler_is_resolved_by_its_own_command(state: DiscrepancyState) -> None:
    """While it is open; one that is being repaired or is over asks nothing."""
    row = DiscrepancyRow(
        kind="RUN_DIFFERS",
        subject=RUN,
        state=state.value,
        expected="a",
        actual="b",
        outcome="",
        principal=None,
        times_found=1,
        found_at=AT,
        changed_at=AT,
        first_position=1,
        position=2,
    )
    (found,) = ReconcilerAlerts(Rows(row)).newest(None, 10, 10)
    opened = state is DiscrepancyState.ALERTED
    assert found.view.settle_with == (f"finaz alert resolve RUN_DIFFERS {RUN} --note TEXT" if opened else "")


@pytest.mark.parametrize("kind", [kind.value for kind in Alert])
def test_a_kind_of_purchases_is_told_what_settles_it(kind: str) -> None:
    """Resolving it like one of the reconciler's is refused with the command that is right; no kind is both."""
    with pytest.raises(AlertNotFoundError) as caught:
        refuse_others(kind, at="kind")
    assert (caught.value.expected, kind in DiscrepancyKind.__members__) == (
        settle_command("PURCHASE_ID", Settlement),
        False,
    )
    assert settle_command("res_1", Settlement) == "finaz purchase settle res_1 charged|not-charged|refunded --note TEXT"


@pytest.mark.parametrize("kind", [*(kind.value for kind in DiscrepancyKind), "NO_KIND"])
def test_other_kinds_go_on(kind: str) -> None:
    """The reconciler's, and what is nobody's, which is not found later."""
    refuse_others(kind, at="kind")
