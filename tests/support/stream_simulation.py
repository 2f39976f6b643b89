"""A seeded simulation of stream workers, their broker, the database's clock and rivals, in virtual time.

A history is one run: workers claim, restore, read, commit and renew; they crash between any two effects, stop inside an append
while the world goes on, lose answers, are overtaken and wake late; an operator mends the reader and asks for retries. The same
seed is the same history. What must stay true is checked by `Oracle`, on its own books, with every append and at the end.

Run many: `python -m tests.support.stream_simulation --histories 100000 --first 0`.
"""

import argparse
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from domain.errors import LeaseHeldError, StaleFenceError, StoreUnavailableError, VersionConflictError
from domain.identity import journal_stream, lease_stream, run_stream
from domain.leases.messages import LeaseGranted, LeaseReleased, LeaseRenewed
from domain.market.event_runs import events_of
from domain.runs.messages import RunSucceeded
from domain.stream.journal import decide as decide_journal
from domain.stream.journal import omitted_now, pending_retries
from domain.stream.messages import BoundedSourceEnded, RequestRetry
from domain.stream.progress import Progress
from domain.stream.treatment import Treatment
from domain.stream.worker_core import StreamCore
from services.checkpoint_appends import JOURNAL_FOLD, Standing
from services.checkpoints import Checkpoints
from services.leases import fold_lease
from services.ports import Append, Appended, Fence, NewEvent, Vacant
from tests.support.stream_runs import RUN, opened
from tests.support.stream_world import (
    BROKEN,
    FLOWS,
    LIMITS,
    PARTITIONS,
    PLANS,
    Blobs,
    BrokenInvariantError,
    CrashedError,
    Database,
    Mutant,
    Oracle,
    Topic,
)

TTL: Final = 6.0
STEPS_MAX: Final = 2000
"""Steps of one history: one that needs more makes no progress, which breaks an invariant too."""


# ------------------------------------------------------------------------------------------------ the actors


class Worker:
    """A worker process: `step` does what is next and says after how many seconds to go on. Nothing of it survives a crash."""

    def __init__(self, simulation: "Simulation", name: str) -> None:
        self.world = simulation
        self.owner = name
        self.fence: Fence | None = None
        self.progress: Progress
        self.standing: Standing
        self.renew_at = 0.0
        self.checkpoints = Checkpoints(simulation.database, simulation.blobs, store_threads=1)

    def step(self) -> float:
        """One step. Raises `CrashedError` where the process dies, `StaleFenceError` where it finds itself overtaken."""
        world, dice = self.world, self.world.dice
        if self.fence is None:
            return self._claim()
        if dice.random() < 0.03:
            raise CrashedError
        if dice.random() < 0.04:
            return dice.random() * 2.5 * TTL  # stopped: it wakes when others may have taken over
        if world.now >= self.renew_at:
            self._renew()
        if self.progress.at_marks:
            self._finish()
            return 0.0
        self._read()
        if self.progress.uncommitted and dice.random() < 0.35:
            self._commit()
        return 0.05 + dice.random() * 0.8

    # ---------------------------------------------------------------- lease

    def _claim(self) -> float:
        stream = lease_stream(RUN)
        read = self.world.database.read_streams_blocking([stream])
        held = fold_lease(RUN, read.streams[stream])
        if held.is_live(read.now):
            assert held.expires_at is not None
            return float((held.expires_at - read.now).total_seconds()) + self.world.dice.random() * 0.5
        token = held.token + 1
        granted = LeaseGranted(resource=RUN, owner=self.owner, token=token, ttl_seconds=TTL)
        new = NewEvent(stream, len(read.streams[stream]) + 1, granted, self.world.new_id())
        try:
            self.world.append(self, Append(events=(new,), guard=Vacant(RUN, held.token)))
        except (LeaseHeldError, StaleFenceError, VersionConflictError, StoreUnavailableError):
            return 0.1  # it may have been granted and the answer lost: then it waits for its own lease to run out
        self.fence = Fence(RUN, self.owner, token)
        self.renew_at = self.world.now + TTL / 3
        self._restore()
        return 0.0

    def _renew(self) -> None:
        assert self.fence is not None
        stream = lease_stream(RUN)
        version = len(self.world.database.read_streams_blocking([stream]).streams[stream]) + 1
        renewed = LeaseRenewed(resource=RUN, owner=self.owner, token=self.fence.token, ttl_seconds=TTL)
        append = Append(events=(NewEvent(stream, version, renewed, self.world.new_id()),), guard=self.fence)
        for _ in range(3):
            try:
                self.world.append(self, append)
                break
            except StoreUnavailableError:
                continue
        self.renew_at = self.world.now + TTL / 3

    # ---------------------------------------------------------------- progress

    def _restore(self) -> None:
        world, start = self.world, dict.fromkeys(range(PARTITIONS), 0)
        restored = self.checkpoints.restore(RUN, PLANS[id(world.flow)])
        self.standing, state = restored.standing, restored.state
        next_offsets = restored.next_offsets or start
        if state is not None and world.mutant is Mutant.DEDUPE:
            state = state | {"identities": [{"blocks": [], "loads": []} for _ in range(PARTITIONS)]}
        if world.mutant is Mutant.OFFSETS:
            next_offsets = {p: max(offset, world.read_to.get(p, 0)) for p, offset in next_offsets.items()}
        core = StreamCore(world.flow, PARTITIONS, LIMITS)
        if state is not None:
            core.restore(state)
        self.progress = Progress(core, start, next_offsets, world.topic.marks, bulk_records_min=1)
        if world.mutant is Mutant.RESTORE and world.older is not None:
            core.restore(world.older[0])
            self.progress = Progress(core, start, world.older[1], world.topic.marks)
        for pending in omitted_now(self.standing.journal):
            self._retry(pending)

    def _retry(self, pending: Any) -> None:
        record = self.checkpoints.quarantined(pending)
        if self.world.mended and record.value is not None:
            record = msgspec.structs.replace(record, value=record.value.removeprefix(BROKEN))
        self.progress.retry(record, pending.requested)
        self.world.retried()
        if self.world.mutant is Mutant.RETRY:
            self.progress.core.counts[Treatment.OMITTED] += 1

    def _read(self) -> None:
        progress, dice = self.progress, self.world.dice
        for partition in dice.sample(range(PARTITIONS), PARTITIONS):
            offset = progress.next_offsets[partition]
            records, next_offset = self.world.topic.poll(partition, offset, dice.randrange(1, 6), self.world.now)
            if self.world.at_once:
                progress.take_all(records)
            else:
                for record in records:
                    progress.take(record)
            progress.reach(partition, next_offset)
            self.world.read_to[partition] = max(self.world.read_to.get(partition, 0), next_offset)

    def _commit(self, *journal: Any, extra: Sequence[NewEvent] = ()) -> None:
        assert self.fence is not None
        for pending in () if journal else pending_retries(self.standing.journal):
            self._retry(pending)
        cut, world = self.progress.cut(), self.world
        first = () if self.standing.journal.source else (opened(self.fence, world.topic.marks, PARTITIONS),)
        for _ in range(3):
            try:
                committed = self.checkpoints.commit(
                    cut,
                    self.fence,
                    self.standing,
                    journal=(*first, *journal),
                    extra=extra,
                    send=lambda log, append: world.append(self, append),
                )
            except StoreUnavailableError:
                continue
            world.older, world.newest = world.newest, (cut.state, cut.next_offsets)
            self.standing = self.checkpoints.refresh(committed.standing)
            return
        raise CrashedError  # the store is away for too long

    def _finish(self) -> None:
        assert self.fence is not None
        for pending in pending_retries(self.standing.journal):
            self._retry(pending)
        self.progress.finish()
        token, world, leases = self.fence.token, self.world, lease_stream(RUN)
        version = len(world.database.read_streams_blocking([leases]).streams[leases]) + 1
        released = LeaseReleased(resource=RUN, owner=self.owner, token=token)
        extra = (
            NewEvent(run_stream(RUN), 1, RunSucceeded(run_id=RUN, token=token), world.new_id()),
            NewEvent(leases, version, released, world.new_id()),
        )
        ended = BoundedSourceEnded(run_id=RUN, epoch=1, token=token, marks={})
        self._commit(ended, extra=extra)


class Simulation:
    """One history by its seed."""

    def __init__(self, seed: int, mutant: Mutant = Mutant.NONE) -> None:
        self.dice = random.Random(seed)
        self.mutant = mutant
        self.at_once = seed % 2 == 0  # how records are taken must make no difference
        self.flow = self.dice.choice(FLOWS)
        self.topic = Topic(self.dice)
        self.database = Database(mutant)
        self.blobs = Blobs()
        self.oracle = Oracle(self.blobs)
        self.database.on_event = self.oracle.see
        self.blobs.on_put = lambda: self._may_crash(0.004)
        self.now = 0.0
        self.mended = False
        self.read_to: dict[int, int] = {}
        self.older: Any = None
        self.newest: Any = None
        self._counted = Counter[str]()
        self._started = 0
        self._depth = 0
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Any]] = []
        self._busy: set[int] = set()
        for _ in range(self.dice.randrange(1, 4)):
            self._start(self.dice.random() * 3)
        if self.dice.random() < 0.5:
            self._schedule(self.dice.random() * 20, self._operate)

    def run(self) -> None:
        """To the run's success. Raises `BrokenInvariantError`."""
        for _ in range(STEPS_MAX):
            if self.oracle.ended:
                break
            self._next()
        else:
            raise BrokenInvariantError(f"the run did not end in {STEPS_MAX} steps")
        for _ in range(20):  # those who don't know yet wake up
            if self._queue:
                self._next()
        self.oracle.at_end(self)

    def happened(self) -> dict[str, int]:
        """How often what happened, for those who ask whether anything did."""
        assert self.oracle.manifest is not None
        takeovers = {"takeovers": self.oracle.token - 1, "commits": self.oracle.manifest.epoch}
        return {**takeovers, **self._counted, **self.oracle.manifest.counts}

    def new_id(self) -> UUID:
        """A fresh event id."""
        return UUID(int=(0xF << 76) | next(self._ids))

    def append(self, worker: Worker, append: Append) -> Appended:
        """A worker's append: it may die before or after it, be stopped before it, or not get its answer."""
        self._may_crash(0.02)
        if self.dice.random() < 0.06 and self._depth < 2:
            self._stop_inside(worker, self.dice.random() * 2 * TTL)
        appended = self.database.append_blocking(append)
        self._may_crash(0.02)
        if self.dice.random() < 0.05:
            self._counted["lost answers"] += 1
            raise StoreUnavailableError("the answer was lost")
        return appended

    def retried(self) -> None:
        """A record was tried again."""
        self._counted["retries"] += 1

    def reference(self) -> tuple[dict[str, int], list[tuple[str, int]]]:
        """Counts and accepted identities of a worker to whom nothing happens."""
        progress = Progress(StreamCore(self.flow, PARTITIONS, LIMITS), dict.fromkeys(range(PARTITIONS), 0))
        for partition, records in enumerate(self.topic.records):
            for record in records:
                progress.take(record)
            progress.reach(partition, self.topic.marks[partition])
        cut = progress.cut()
        return cut.counts, sorted((event.event_id, event.revision) for event in events_of(cut.accepted))

    # ---------------------------------------------------------------- virtual time

    def _schedule(self, delay: float, action: Any) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def _next(self) -> None:
        at, _, action = heapq.heappop(self._queue)
        if isinstance(action, Worker) and id(action) in self._busy:  # stopped inside an append: it goes on there
            return
        self._move_to(at)
        if isinstance(action, Worker):
            self._step(action)
        else:
            action()

    def _move_to(self, at: float) -> None:
        if at > self.now:
            self.database.advance(at - self.now)
            self.now = at

    def _step(self, worker: Worker) -> None:
        self._busy.add(id(worker))
        try:
            delay = worker.step()
        except (CrashedError, StaleFenceError, VersionConflictError) as error:
            self._counted["crashes" if isinstance(error, CrashedError) else "refused"] += 1
            self._start(self.dice.random() * 4)  # another process in its place, under another identity
        else:
            if not self.oracle.ended:
                self._schedule(max(delay, 0.01), worker)
        finally:
            self._busy.discard(id(worker))

    def _stop_inside(self, worker: Worker, seconds: float) -> None:
        """The process is stopped here; the others go on."""
        until = self.now + seconds
        self._depth += 1
        while self._queue and self._queue[0][0] <= until:
            self._next()
        self._depth -= 1
        self._move_to(until)

    def _start(self, delay: float) -> None:
        self._started += 1
        self._schedule(delay, Worker(self, f"owner-{self._started}"))

    def _may_crash(self, chance: float) -> None:
        if self._busy and self.dice.random() < chance:
            raise CrashedError

    def _operate(self) -> None:
        """The operator mends the reader and asks for all that is omitted."""
        self.mended = True
        stream = journal_stream(RUN)
        read = self.database.read_state_blocking(stream, JOURNAL_FOLD)
        if self.oracle.ended:
            return
        for number, event in enumerate(decide_journal(read.state, RequestRetry(principal="ana", items=())), 1):
            new = NewEvent(stream, read.version + number, event, self.new_id())
            self.database.append_blocking(Append(events=(new,)))
        if self.dice.random() < 0.6:
            self._schedule(self.dice.random() * 10, self._operate)


def failing(seeds: Iterator[int] | range, mutant: Mutant = Mutant.NONE) -> Iterator[tuple[int, BaseException]]:
    """The seeds whose histories break, and how."""
    for seed in seeds:
        try:
            Simulation(seed, mutant).run()
        except Exception as error:  # whatever it is, a history must not end so
            yield seed, error


def main() -> int:
    """Run many histories; say which seeds break, and how many passed in what time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mutant", choices=[mutant.name for mutant in Mutant], default=Mutant.NONE.name)
    given = parser.parse_args()
    began, broken = time.monotonic(), 0
    for seed, error in failing(range(given.first, given.first + given.histories), Mutant[given.mutant]):
        broken += 1
        print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
    print(f"{given.histories} histories, {broken} broken, {time.monotonic() - began:.1f} s")
    return min(broken, 1)


if __name__ == "__main__":
    raise SystemExit(main())
