"""The transition tables and what `decide` makes of each command in each state."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import domain.admission.aggregate as admissions
import domain.checkpoints.aggregate as checkpoints
import domain.discrepancies.aggregate as discrepancies
import domain.leases.aggregate as leases
import domain.runs.aggregate as runs
from domain.admission.messages import ClaimKey
from domain.checkpoints.messages import CommitCheckpoint
from domain.discrepancies.messages import (
    DiscrepancyKind,
    RaiseAlert,
    RecordDiscrepancy,
    RecordRepair,
    ResolveAlert,
)
from domain.errors import (
    BodyInvalidError,
    IdempotencyKeyReusedError,
    IllegalTransitionError,
    LeaseHeldError,
    RefusedError,
    RunFinishedError,
    StaleFenceError,
)
from domain.events import Event
from domain.leases.messages import AcquireLease, LeaseGranted, LeaseRenewed, ReleaseLease, RenewLease
from domain.runs.messages import (
    CancelRun,
    FailRun,
    Mode,
    PublishResults,
    RequestCancellation,
    RequestRun,
    RequeueReason,
    RequeueRun,
    ResultRef,
    RunError,
    RunFailed,
    RunSpec,
    StartRun,
)

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)
FLOW = "sha256:" + "f" * 64
SPEC = RunSpec(mode=Mode.BATCH, flow=FLOW, flow_name="f", snapshot=FLOW, as_of=NOW, deadline_seconds=60)
REQUEST = RequestRun(run_id="run_1", principal="ana", spec=SPEC, body_hash=FLOW)
RESULT = ResultRef(output="ema", artifact=FLOW, values_hash=FLOW, rows=6, schema="v1", flow=FLOW, inputs=(FLOW,))
FAULT = RunError(code="STORE_UNAVAILABLE", message="away")


class Story:
    """A run told by commands, each at a second of its own after `NOW`."""

    def __init__(self) -> None:
        self.run = runs.Run("run_1")
        self.events: list[Event] = []
        self.now = NOW

    def tell(self, *commands: runs.RunCommand, after_seconds: float = 1.0) -> "Story":
        for command in commands:
            self.now += timedelta(seconds=after_seconds)
            for event in runs.decide(self.run, command, self.now):
                self.run = runs.evolve(self.run, event, self.now)
                self.events.append(event)
        return self

    def topics(self) -> list[str]:
        return [event.topic.removeprefix("run.").removesuffix(".v1") for event in self.events]


def test_a_run_succeeds_once_with_its_results() -> None:
    """Requested, started, published, ended; the token of the owner that finished it stays."""
    story = Story().tell(REQUEST, StartRun("w", 1), PublishResults(1, (RESULT,)))
    assert story.topics() == ["requested", "started", "result_published", "succeeded"]
    assert story.run.state is runs.RunState.SUCCEEDED
    assert (story.run.run_revision, story.run.attempts, story.run.token) == (2, 1, 1)
    assert story.run.results == (RESULT,)
    assert story.run.finished_at == story.now


def test_the_second_of_two_workers_gets_nothing() -> None:
    """QUEUED → RUNNING is a compare-and-set."""
    with pytest.raises(IllegalTransitionError):
        Story().tell(REQUEST, StartRun("a", 1), StartRun("b", 2))


def test_cancelled_while_queued_is_never_executed() -> None:
    """CANCELLED at once, and a worker that comes later gets nothing."""
    story = Story().tell(REQUEST, RequestCancellation("ana"))
    assert story.topics() == ["requested", "cancelled"]
    with pytest.raises(RunFinishedError):
        story.tell(RequestCancellation("ana"))
    with pytest.raises(IllegalTransitionError):
        story.tell(StartRun("w", 1))


@pytest.mark.parametrize(
    "border",
    [
        CancelRun(1),
        PublishResults(1, (RESULT,)),
        RequeueRun(token=1, reason=RequeueReason.INFRASTRUCTURE, error=FAULT),
        RequeueRun(token=1, reason=RequeueReason.ORPHANED),
        RequeueRun(token=1, reason=RequeueReason.HANDED_BACK),
    ],
)
def test_cancellation_is_honoured_at_whatever_border_comes_next(border: runs.RunCommand) -> None:
    """Publishing and requeueing are borders too; then nothing is published. Asking twice says nothing new."""
    story = Story().tell(REQUEST, StartRun("w", 1), RequestCancellation("ana"), RequestCancellation("ana"), border)
    assert story.topics() == ["requested", "started", "cancellation_requested", "cancelled"]
    assert story.run.results == ()


def test_infrastructure_faults_requeue_with_growing_delay_up_to_the_limit() -> None:
    """The fifth counted failure ends the run FAILED with the last error; crashes count, hand-backs do not."""
    story = Story().tell(REQUEST)
    reasons = [
        RequeueReason.INFRASTRUCTURE,
        RequeueReason.HANDED_BACK,
        RequeueReason.ORPHANED,
        RequeueReason.INFRASTRUCTURE,
    ]
    for token, reason in enumerate([*reasons, RequeueReason.INFRASTRUCTURE, RequeueReason.INFRASTRUCTURE], start=1):
        story.tell(StartRun("w", token), RequeueRun(token=token, reason=reason, error=FAULT))
    delays = [event.delay_seconds for event in story.events if isinstance(event, runs.RunRequeued)]
    assert delays == [0.5, 0.0, 0.0, 8.0, 30.0]
    last = story.events[-1]
    assert isinstance(last, RunFailed)
    assert last.error.code == "ATTEMPTS_EXHAUSTED"
    assert "STORE_UNAVAILABLE: away" in last.error.message
    assert story.run.attempts == 6


@pytest.mark.parametrize(
    "command", [StartRun("w", 1), PublishResults(1, (RESULT,)), RequeueRun(token=1, reason=RequeueReason.ORPHANED)]
)
def test_past_its_deadline_a_run_ends_failed(command: runs.RunCommand) -> None:
    """Whatever happens next to it, by the clock that is passed in."""
    story = Story().tell(REQUEST)
    if not isinstance(command, StartRun):
        story.tell(StartRun("w", 1))
    story.tell(command, after_seconds=60.0)
    last = story.events[-1]
    assert isinstance(last, RunFailed)
    assert last.error.code == "DEADLINE_EXCEEDED"
    assert last.error.attempt == story.run.attempts


def test_a_run_remembers_its_last_errors_only() -> None:
    """However often it is handed back with one, which counts as nobody's failure: the oldest go first."""
    story = Story().tell(REQUEST)
    for token in range(1, runs.ERRORS_MAX + 3):
        error = RunError(code="E", message=str(token))
        requeue = RequeueRun(token=token, reason=RequeueReason.HANDED_BACK, error=error)
        story.tell(StartRun("w", token), requeue)
    assert [error.message for error in story.run.errors] == [str(n) for n in range(3, runs.ERRORS_MAX + 3)]


@pytest.mark.parametrize(
    "late",
    [
        PublishResults(1, (RESULT,)),
        CancelRun(1),
        FailRun(error=FAULT, token=1),
        RequeueRun(token=1, reason=RequeueReason.INFRASTRUCTURE),
    ],
)
def test_an_overtaken_owner_decides_nothing(late: runs.RunCommand) -> None:
    """A token that no longer executes the run is refused, while another runs it and while it waits."""
    story = Story().tell(REQUEST, StartRun("a", 1), RequeueRun(token=1, reason=RequeueReason.ORPHANED))
    with pytest.raises(StaleFenceError):
        story.tell(late)
    story.tell(StartRun("b", 2))
    with pytest.raises(StaleFenceError):
        story.tell(late)
    story.tell(PublishResults(2, (RESULT,)))
    with pytest.raises(RunFinishedError):
        story.tell(late)


def test_a_run_that_was_never_requested_does_nothing() -> None:
    """Every command but the request is refused."""
    for command in (StartRun("w", 1), RequestCancellation("a"), FailRun(error=FAULT)):
        with pytest.raises(IllegalTransitionError):
            Story().tell(command)
    with pytest.raises(IllegalTransitionError):
        Story().tell(REQUEST, REQUEST)


def lease_after(*steps: tuple[float, Any]) -> leases.Lease:
    """A lease told by (seconds after `NOW`, command)."""
    lease = leases.Lease("r")
    for seconds, command in steps:
        now = NOW + timedelta(seconds=seconds)
        for event in leases.decide(lease, command, now):
            lease = leases.evolve(lease, event, now)
    return lease


def test_the_worked_case_of_the_lease() -> None:
    """TTL 6 s: A acquires (1); 7 s pass; B acquires (2); A's renewal is refused."""
    lease = lease_after((0, AcquireLease("r", "A", 6)), (7, AcquireLease("r", "B", 6)))
    assert (lease.owner, lease.token) == ("B", 2)
    with pytest.raises(StaleFenceError):
        leases.decide(lease, RenewLease("A", 1, 6), NOW + timedelta(seconds=7))


def test_the_four_branches_of_acquire() -> None:
    """Created with token 1; held by another; mine is renewed; expired or released goes to whoever asks, token + 1."""
    ask_a, ask_b = AcquireLease("r", "A", 6), AcquireLease("r", "B", 6)
    created = lease_after((0, ask_a))
    assert created.token == 1
    with pytest.raises(LeaseHeldError):
        leases.decide(created, ask_b, NOW + timedelta(seconds=5.999))
    (renewed,) = leases.decide(created, ask_a, NOW + timedelta(seconds=5))
    assert isinstance(renewed, LeaseRenewed)
    assert renewed.token == 1
    for command in (ask_a, ask_b):
        (reclaimed,) = leases.decide(created, command, NOW + timedelta(seconds=6))
        assert isinstance(reclaimed, LeaseGranted)
        assert reclaimed.token == 2
    released = lease_after((0, ask_a), (1, ReleaseLease("A", 1)))
    (again,) = leases.decide(released, ask_a, NOW + timedelta(seconds=1))
    assert isinstance(again, LeaseGranted)
    assert again.token == 2


def test_a_fence_is_of_owner_and_token_together() -> None:
    """The right token in another's hands, or another token in the owner's, holds nothing."""
    lease = lease_after((0, AcquireLease("r", "A", 6)))
    for command in (RenewLease("B", 1, 6), ReleaseLease("B", 1), RenewLease("A", 2, 6), ReleaseLease("A", 0)):
        with pytest.raises(StaleFenceError):
            leases.decide(lease, command, NOW)
    assert leases.decide(lease, ReleaseLease("A", 1), NOW)


def test_an_expired_lease_cannot_be_renewed_by_anybody() -> None:
    """Not even by its last owner; it ends at its expiry exactly."""
    lease = lease_after((0, AcquireLease("r", "A", 6)), (5, RenewLease("A", 1, 6)))
    assert lease.expires_at == NOW + timedelta(seconds=11)
    for command in (RenewLease("A", 1, 6), ReleaseLease("A", 1)):
        with pytest.raises(StaleFenceError):
            leases.decide(lease, command, NOW + timedelta(seconds=11))


@pytest.mark.parametrize("ttl", [0.0, -1.0, float("nan"), leases.TTL_SECONDS_MAX * 2, float("inf")])
def test_a_lease_has_a_bounded_length(ttl: float) -> None:
    """Zero, negative, endless and not-a-number are refused."""
    with pytest.raises(BodyInvalidError):
        leases.decide(leases.Lease("r"), AcquireLease("r", "A", ttl), NOW)


def test_a_key_means_one_body_for_ever() -> None:
    """Claimed once; repeated in silence; refused for another body."""
    claim = ClaimKey(principal="ana", operation="runs.create", key="k", body_hash="h1", subject_ids=("run_1",))
    (event,) = admissions.decide(admissions.Admission(), claim)
    taken = admissions.evolve(admissions.Admission(), event)
    assert taken.subject_ids == ("run_1",)
    assert admissions.decide(taken, claim) == ()
    other = ClaimKey(principal="ana", operation="runs.create", key="k", body_hash="h2", subject_ids=("run_2",))
    with pytest.raises(IdempotencyKeyReusedError):
        admissions.decide(taken, other)
    with pytest.raises(IllegalTransitionError):
        admissions.evolve(taken, event)


def test_checkpoints_only_go_forward() -> None:
    """Epochs without gaps; offsets and tokens never back."""

    def commit(epoch: int, token: int, offset: int) -> CommitCheckpoint:
        return CommitCheckpoint(epoch=epoch, token=token, manifest="m", manifest_hash="h", next_offsets={"0": offset})

    first = checkpoints.Checkpoint("run_1")
    (event,) = checkpoints.decide(first, commit(1, 2, 10))
    cut = checkpoints.evolve(first, event)
    assert checkpoints.decide(cut, commit(2, 2, 10))
    for bad in (commit(1, 2, 11), commit(3, 2, 11), commit(2, 2, 9)):
        with pytest.raises(RefusedError):
            checkpoints.decide(cut, bad)
    with pytest.raises(StaleFenceError):
        checkpoints.decide(cut, commit(2, 1, 11))


def discrepancy_after(*commands: Any) -> tuple[discrepancies.Discrepancy, list[str]]:
    """A discrepancy told by commands, and the topics of its events."""
    state, topics = discrepancies.Discrepancy(), []
    for command in commands:
        for event in discrepancies.decide(state, command):
            state = discrepancies.evolve(state, event)
            topics.append(event.topic.removeprefix("discrepancy.").removesuffix(".v1"))
    return state, topics


def found(actual: str = "no blob") -> RecordDiscrepancy:
    return RecordDiscrepancy(kind=DiscrepancyKind.ARTIFACT_MISSING, subject="run_1", expected=FLOW, actual=actual)


def test_a_discrepancy_that_lasts_is_recorded_once_and_may_come_back() -> None:
    """Found once however often it is seen; repaired; found again later; alerted about once."""
    repaired, alert = RecordRepair(repair="again"), RaiseAlert(reason="gone for good")
    _, topics = discrepancy_after(found(), found(), repaired, found(), alert, alert, found(), repaired)
    assert topics == ["found", "repaired", "found", "alert_raised", "repaired"]
    with pytest.raises(IllegalTransitionError):
        discrepancy_after(repaired)
    with pytest.raises(IllegalTransitionError):
        discrepancy_after(found(), ResolveAlert(principal="ops", note="what alert?"))
    for note in ("", " ", "x" * (discrepancies.NOTE_CHARACTERS_MAX + 1)):
        with pytest.raises(BodyInvalidError):
            discrepancy_after(found(), alert, ResolveAlert(principal="ops", note=note))


def test_what_an_operator_has_resolved_is_not_raised_again_while_it_stays_as_it_was() -> None:
    """Another difference is raised; so is the same one after the two had been equal in between."""
    resolved = (found(), RaiseAlert(reason="gone for good"), ResolveAlert(principal="ops", note="written off"))
    assert discrepancy_after(*resolved, found(), found())[1] == ["found", "alert_raised", "alert_resolved"]
    assert discrepancy_after(*resolved, found("other bytes"))[1][3:] == ["found"]
    assert discrepancy_after(*resolved, RecordRepair(repair="equal again"), found())[1][3:] == ["repaired", "found"]


def test_an_operators_word_does_not_settle_what_can_be_made_right() -> None:
    """A read model that still differs is raised again, whoever has resolved its alert: it can be rebuilt."""
    differs = RecordDiscrepancy(kind=DiscrepancyKind.RUN_DIFFERS, subject="run_1", expected="a", actual="b")
    resolved = (differs, RaiseAlert(reason="odd"), ResolveAlert(principal="ops", note="I have seen it"))
    assert discrepancy_after(*resolved, differs)[1][3:] == ["found"]


ALL_TABLES: list[Any] = [
    discrepancies.DISCREPANCY_TRANSITIONS,
    runs.RUN_TRANSITIONS,
    leases.LEASE_TRANSITIONS,
    admissions.ADMISSION_TRANSITIONS,
    checkpoints.CHECKPOINT_TRANSITIONS,
]


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_every_state_is_reached_from_the_first_one(table: Any) -> None:
    """No row that cannot happen, no state that nothing leads to."""
    reached = {next(state for state, _ in table.rows if state.name == "ABSENT")}
    for _ in table.rows:
        reached |= {after for (before, _), after in table.rows.items() if before in reached}
    assert reached == set(next(iter(reached)).__class__)


def test_the_end_of_a_run_is_final() -> None:
    """The three ends that the specification names, and no other."""
    assert {state.name for state in runs.FINISHED} == {"SUCCEEDED", "FAILED", "CANCELLED"}
