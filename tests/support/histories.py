"""Random legal histories: what a log may hold, made by driving the aggregates' own `decide` with random commands.

`histories()` is a hypothesis strategy; `seeded_moves(seed, count)` the same without hypothesis, for big logs and benchmarks. A
move that is refused changes nothing, so any sequence of moves is a legal history, and shrinking stays simple. `History` has it
twice: as `Recorded` events (numbered, with instants that a test's clock gave) and as `Append`s for a real log.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from hypothesis import strategies as st

from domain.admission.aggregate import Admission
from domain.admission.aggregate import decide as decide_admission
from domain.admission.messages import ClaimKey
from domain.checkpoints.aggregate import Checkpoint
from domain.checkpoints.aggregate import decide as decide_checkpoint
from domain.checkpoints.aggregate import evolve as evolve_checkpoint
from domain.checkpoints.messages import CommitCheckpoint
from domain.errors import FinazError
from domain.events import Event, Metadata, Recorded
from domain.identity import admission_stream, checkpoint_stream, journal_stream, lease_stream, run_id_of, run_stream
from domain.leases.aggregate import Lease
from domain.leases.aggregate import decide as decide_lease
from domain.leases.aggregate import evolve as evolve_lease
from domain.leases.messages import AcquireLease, ReleaseLease, RenewLease
from domain.runs.aggregate import Run, RunCommand
from domain.runs.aggregate import decide as decide_run
from domain.runs.aggregate import evolve as evolve_run
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
    RunHandedOff,
    RunSpec,
    StartRun,
)
from domain.stream.journal import Journal, omitted_now
from domain.stream.journal import decide as decide_journal
from domain.stream.journal import evolve as evolve_journal
from domain.stream.messages import (
    LateItem,
    OmittedItem,
    Place,
    RecordsLate,
    RecordsOmitted,
    RecordsRetried,
    RequestRetry,
    RetriedItem,
    SourceOpened,
)
from domain.stream.treatment import Treatment
from services.ports import Append, NewEvent

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
OPERATION = "runs.create"
PRINCIPALS = ("ana", "bo", "čeněk")
TAGS = ("nightly", "fx", "équité", "a,b", '"quoted"', "{}")
OWNERS = ("owner-a", "owner-b", "owner-c")
TTL_SECONDS = 6.0
ADDRESSES = tuple("sha256:" + f"{n:x}" * 64 for n in range(8))


class Move(msgspec.Struct, frozen=True):
    """One try: `kind` names a method of the generator, the rest are dice that it may use."""

    kind: str
    run: int = 0
    dice: tuple[int, int, int] = (0, 0, 0)


class History(msgspec.Struct, frozen=True):
    """A legal history. `events[i].position == i + 1`; `appends` are the same events in the same order, grouped."""

    events: tuple[Recorded, ...]
    appends: tuple[Append, ...]

    def stream(self, name: str) -> tuple[Recorded, ...]:
        """The events of one stream, in order."""
        return tuple([recorded for recorded in self.events if recorded.stream == name])


class _Generator:
    """Plays moves against the aggregates and keeps what came of them."""

    def __init__(self) -> None:
        self.now = START
        self.events: list[Recorded] = []
        self.appends: list[Append] = []
        self._versions: dict[str, int] = {}
        self._runs: dict[str, Run] = {}
        self._leases: dict[str, Lease] = {}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._journals: dict[str, Journal] = {}

    def play(self, move: Move) -> None:
        """Try the move; what the aggregates refuse does not happen."""
        self.now += timedelta(microseconds=1 + move.dice[0])
        try:
            getattr(self, "_" + move.kind)(move)
        except FinazError:
            return

    # ---------------------------------------------------------------- moves

    def _submit(self, move: Move) -> None:
        a, b, c = move.dice
        mode = tuple(Mode)[a % 3]
        principal, body_hash = PRINCIPALS[move.run % len(PRINCIPALS)], ADDRESSES[move.run % len(ADDRESSES)]
        key = f"key-{move.run}"
        run_id = run_id_of(principal, OPERATION, key, body_hash)
        claim = ClaimKey(principal=principal, operation=OPERATION, key=key, body_hash=body_hash, subject_ids=(run_id,))
        request = RequestRun(
            run_id=run_id,
            principal=principal,
            spec=RunSpec(
                mode=mode,
                flow=ADDRESSES[b % len(ADDRESSES)],
                flow_name=f"flow-{b % 5}",
                snapshot=ADDRESSES[c % len(ADDRESSES)],
                as_of=START - timedelta(microseconds=a),
                tags=TAGS[: b % (len(TAGS) + 1)],
                priority=c % 201 - 100,
                deadline_seconds=86_400 if a % 4 else 1 + c % 60,
                topic=f"topic-{b % 3}" if mode is Mode.STREAM else "",
                bounded=mode is not Mode.STREAM or c % 2 == 0,
                continues=f"run_{c % 3}" if mode is Mode.STREAM and b % 2 else "",
                schedule=ADDRESSES[a % len(ADDRESSES)] if mode is Mode.REPLAY and b % 2 else "",
            ),
            body_hash=body_hash,
            sweep_id=f"sweep_{c % 3}" if c % 2 else None,
        )
        known = self._runs.get(run_id, Run(run_id))
        claimed = decide_admission(Admission(), claim)
        requested = decide_run(known, request, self.now)
        self._append(
            (admission_stream(principal, OPERATION, key), claimed), (run_stream(run_id), requested), principal=principal
        )

    def _start(self, move: Move) -> None:
        run, lease = self._run(move), self._lease(move)
        owner = OWNERS[move.dice[1] % len(OWNERS)]
        granted = decide_lease(
            lease, AcquireLease(run.run_id, owner, TTL_SECONDS, f"label-{move.dice[2] % 3}"), self.now
        )
        token = evolve_lease(lease, granted[0], self.now).token
        started = decide_run(run, StartRun(owner, token), self.now)
        self._append((lease_stream(run.run_id), granted), (run_stream(run.run_id), started))

    def _hand_off(self, move: Move) -> None:
        run, lease = self._run(move), self._lease(move)
        owner = OWNERS[move.dice[1] % len(OWNERS)]
        if run.state.value == "RUNNING" and lease.expires_at is not None:
            self.now = max(self.now, lease.expires_at)  # its owner has gone silent
        granted = decide_lease(lease, AcquireLease(run.run_id, owner, TTL_SECONDS), self.now)
        token = evolve_lease(lease, granted[0], self.now).token
        handed_off = RunHandedOff(run_id=run.run_id, token=token, previous_token=run.token, owner=owner)
        evolve_run(run, handed_off, self.now)
        self._append((lease_stream(run.run_id), granted), (run_stream(run.run_id), (handed_off,)))

    def _acquire(self, move: Move) -> None:
        lease = self._lease(move)
        owner = OWNERS[move.dice[1] % len(OWNERS)]
        self._append(
            (lease_stream(lease.resource), decide_lease(lease, AcquireLease(lease.resource, owner, 2.5), self.now))
        )

    def _renew(self, move: Move) -> None:
        lease = self._lease(move)
        renewed = decide_lease(lease, RenewLease(lease.owner, lease.token, TTL_SECONDS), self.now)
        self._append((lease_stream(lease.resource), renewed))

    def _release(self, move: Move) -> None:
        lease = self._lease(move)
        released = decide_lease(lease, ReleaseLease(lease.owner, lease.token), self.now)
        self._append((lease_stream(lease.resource), released))

    def _ask_cancel(self, move: Move) -> None:
        self._command(move, lambda run: RequestCancellation(run.principal))

    def _cancel(self, move: Move) -> None:
        self._end(move, lambda run: CancelRun(_executing(run)))

    def _requeue(self, move: Move) -> None:
        error = RunError(code="STORE_UNAVAILABLE", message=f"away {move.dice[2]} – \U0001f4c9", attempt=1)
        reason = tuple(RequeueReason)[move.dice[1] % 3]
        error_given = error if move.dice[2] % 2 else None
        self._end(move, lambda run: RequeueRun(token=_executing(run), reason=reason, error=error_given))

    def _fail(self, move: Move) -> None:
        if self._run(move).state.value == "QUEUED" and move.dice[1] % 4:
            return  # a run that nobody executes seldom fails
        error = RunError(code="BLOB_MISSING", message="no blob", at="$.snapshot", attempt=1)
        self._end(move, lambda run: FailRun(error=error, token=_executing(run)))

    def _publish(self, move: Move) -> None:
        outputs = 1 + move.dice[1] % 3
        results = tuple([_result(n, move.dice[2]) for n in range(outputs)])
        self._end(move, lambda run: PublishResults(_executing(run), results))

    def _stream(self, move: Move) -> None:
        """A checkpoint, and with it what its records became: omitted, late, tried again."""
        run, (a, b, c) = self._run(move), move.dice
        checkpoint = self._checkpoints.get(run.run_id, Checkpoint(run.run_id))
        journal = self._journals.get(run.run_id, Journal(run.run_id))
        start = checkpoint.next_offsets.get("0", 0)
        events: list[Event] = [] if journal.source else [_opened(run.run_id, _executing(run))]
        epoch, known = checkpoint.epoch + 1, omitted_now(journal)
        if known and b % 2:
            treatment = tuple(Treatment)[c % len(Treatment)]
            again = RetriedItem(partition=0, offset=known[a % len(known)].offset, treatment=treatment)
            events.append(RecordsRetried(run_id=run.run_id, epoch=epoch, items=(again,)))
        if a % 4:
            omitted = tuple(_omitted(start + n, terminal=(b + n) % 3 == 0) for n in range(a % 4))
            events.append(RecordsOmitted(run_id=run.run_id, epoch=epoch, items=omitted))
        if c % 3 == 0:
            late = LateItem(partition=1, offset=start, event_id="événement", revision=c, event_time=START)
            events.append(RecordsLate(run_id=run.run_id, epoch=epoch, items=(late,)))
        commit = CommitCheckpoint(
            epoch=epoch,
            token=_executing(run) or checkpoint.token,
            manifest=ADDRESSES[a % len(ADDRESSES)],
            manifest_hash=ADDRESSES[b % len(ADDRESSES)],
            next_offsets={"0": start + 4, "1": start + 1},
        )
        self._append(
            (journal_stream(run.run_id), events),
            (checkpoint_stream(run.run_id), decide_checkpoint(checkpoint, commit)),
        )

    def _ask_retry(self, move: Move) -> None:
        run = self._run(move)
        journal = self._journals.get(run.run_id, Journal(run.run_id))
        wanted = omitted_now(journal)[move.dice[1] % 3 :]
        items = tuple(Place(partition=one.partition, offset=one.offset) for one in wanted)
        self._append((journal_stream(run.run_id), decide_journal(journal, RequestRetry(principal="bo", items=items))))

    def _wait(self, move: Move) -> None:
        self.now += timedelta(seconds=move.dice[1] % 8)

    # ---------------------------------------------------------------- what moves are made of

    def _run(self, move: Move) -> Run:
        runs = list(self._runs.values())
        if not runs:
            raise FinazError("no run yet")
        return runs[move.run % len(runs)]

    def _lease(self, move: Move) -> Lease:
        run_id = self._run(move).run_id
        return self._leases.get(run_id, Lease(run_id))

    def _command(self, move: Move, command: Callable[[Run], RunCommand]) -> None:
        run = self._run(move)
        self._append((run_stream(run.run_id), decide_run(run, command(run), self.now)))

    def _end(self, move: Move, command: Callable[[Run], RunCommand]) -> None:
        """A command that ends an attempt, with the release of its lease in one append where the lease is live."""
        run, lease = self._run(move), self._lease(move)
        events = decide_run(run, command(run), self.now)
        released: tuple[Event, ...] = ()
        if lease.is_live(self.now):
            released = decide_lease(lease, ReleaseLease(lease.owner, lease.token), self.now)
        self._append((run_stream(run.run_id), events), (lease_stream(run.run_id), released))

    def _append(self, *streams: tuple[str, Sequence[Event]], principal: str | None = None) -> None:
        new: list[NewEvent] = []
        metadata = Metadata(principal=principal, correlation_id=streams[-1][0] if principal else None)
        for stream, events in streams:
            for event in events:
                position = len(self.events) + 1
                version = self._versions.get(stream, 0) + 1
                self._versions[stream] = version
                event_id = UUID(int=(0xF << 76) | position)
                new.append(NewEvent(stream, version, event, event_id))
                recorded = Recorded(
                    position=position,
                    stream=stream,
                    version=version,
                    event_id=event_id,
                    recorded_at=self.now,
                    event=event,
                    metadata=metadata,
                )
                self.events.append(recorded)
                self._evolve(recorded)
        if new:
            self.appends.append(Append(events=tuple(new), metadata=metadata))

    def _evolve(self, recorded: Recorded) -> None:
        category, _, key = recorded.stream.partition("/")
        if category == "run":
            self._runs[key] = evolve_run(self._runs.get(key, Run(key)), recorded.event, self.now)
        elif category == "lease":
            self._leases[key] = evolve_lease(self._leases.get(key, Lease(key)), recorded.event, self.now)
        elif category == "checkpoint":
            self._checkpoints[key] = evolve_checkpoint(self._checkpoints.get(key, Checkpoint(key)), recorded.event)
        elif category == "journal":
            self._journals[key] = evolve_journal(self._journals.get(key, Journal(key)), recorded.event)


def played(moves: Iterable[Move]) -> History:
    """The history that the moves make."""
    generator = _Generator()
    for move in moves:
        generator.play(move)
    return History(tuple(generator.events), tuple(generator.appends))


WEIGHTED_KINDS = (
    *("submit",) * 5,
    *("start",) * 9,
    *("publish",) * 3,
    *("requeue", "renew") * 3,
    *("hand_off", "wait", "ask_cancel", "stream") * 2,
    *("acquire", "release", "cancel", "fail", "ask_retry"),
)


def moves(runs: int = 6) -> st.SearchStrategy[Move]:
    """One move over at most `runs` runs."""
    die = st.integers(0, 255)
    return st.builds(Move, st.sampled_from(WEIGHTED_KINDS), st.integers(0, runs - 1), st.tuples(die, die, die))


def histories(moves_max: int = 60, runs: int = 6) -> st.SearchStrategy[History]:
    """Legal histories of up to `moves_max` moves over up to `runs` runs; the empty one included."""
    return st.lists(moves(runs), max_size=moves_max).map(played)


def random_moves(seed: int, count: int, runs: int) -> list[Move]:
    """`count` moves of any kind by a seed, without hypothesis."""
    dice = random.Random(seed)
    return [
        Move(
            dice.choice(WEIGHTED_KINDS),
            dice.randrange(runs),
            (dice.randrange(256), dice.randrange(256), dice.randrange(256)),
        )
        for _ in range(count)
    ]


def seeded_moves(seed: int, count: int, runs: int | None = None) -> list[Move]:
    """`count` moves by a seed. By default runs are many and each lives a few moves, as in a real log."""
    dice = random.Random(seed)

    def die() -> int:
        return dice.randrange(256)

    made: list[Move] = []
    while len(made) < count:
        run = dice.randrange(runs) if runs else len(made)
        made.append(Move("submit", run, (die(), die(), die())))
        lives = (("start", "publish"), ("start", "renew", "publish"), ("start", "requeue", "start", "fail"))
        made += [Move(kind, -1 if runs is None else run, (die(), die(), die())) for kind in dice.choice(lives)]
    return made[:count]


def seeded_history(seed: int, count: int, runs: int | None = None) -> History:
    """The history of `seeded_moves`: the same for a seed, for ever."""
    return played(seeded_moves(seed, count, runs))


def _opened(run_id: str, token: int) -> SourceOpened:
    return SourceOpened(
        run_id=run_id,
        source="market",
        partitions=2,
        start_offsets={"0": 0, "1": 0},
        marks=None,
        owner="owner-a",
        token=token,
    )


def _omitted(offset: int, terminal: bool) -> OmittedItem:
    quarantine = None if terminal else ADDRESSES[offset % len(ADDRESSES)]
    return OmittedItem(partition=0, offset=offset, detail="illisible", terminal=terminal, quarantine=quarantine)


def _executing(run: Run) -> int:
    return run.token if run.state.value == "RUNNING" else 0


def _result(output: int, salt: int) -> ResultRef:
    return ResultRef(
        output=f"output-{output}",
        artifact=ADDRESSES[salt % len(ADDRESSES)],
        values_hash=ADDRESSES[(salt + output) % len(ADDRESSES)],
        rows=salt,
        schema="FINAZ_FEATURES_V1",
        flow=ADDRESSES[output],
        inputs=(ADDRESSES[0],),
    )
