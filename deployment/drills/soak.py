"""`finaz drill soak`: continuous load while worker, projector, process manager, API and PostgreSQL are killed in turn.

One client submits runs without a pause, each under a key of its own, and repeats what was not answered; one process after another
gets `kill -9` at a random instant and is started again by the supervisor. At the end the load stops, the system is left to settle,
and the log is judged: every run that the API acknowledged has ended, nothing was published twice, no overtaken owner wrote, no
alert and no dead letter is there that nobody expected.

What must stay true: a submission counts as acknowledged only when its answer arrived; all waits are bounded.
"""

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from deployment.api_client import ApiBlobStore, ApiClient
from deployment.drills.audited import audit_findings
from deployment.drills.database import Database
from deployment.drills.judging import by_run, end_of, late_effects, lost, published_twice, recoveries
from deployment.fixture_run import fixture_body, store_fixture_snapshot
from deployment.problems import ProblemError
from deployment.settings import child_environment
from deployment.supervision import STABLE_SECONDS
from deployment.up import Machine, Plan, machine
from domain.errors import FinazError, InfrastructureError

VICTIMS: Final = ("worker-1", "projector", "manager", "api", "postgres")
"""Who is killed, in this order, one a round."""

WORKERS: Final = 2
LEASE_TTL_SECONDS: Final = 3.0

ROUND_SECONDS: Final = (1.0, 4.0)
"""Seconds between two kills: a random time in between."""

RESTART_SECONDS: Final = 10.0
"""Seconds that a killed process may take to be there again, on a busy machine."""

LOAD_PAUSE_SECONDS: Final = 0.02
"""Seconds between two submissions of the load."""

SETTLE_SECONDS_MAX: Final = 120.0
"""How long the system may take to end everything and catch up once the load has stopped."""

Say = Callable[[str], None]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a soak gathered. `unanswered` counts submissions whose client gave up: they may or may not have been admitted."""

    acknowledged: tuple[str, ...]
    unanswered: int
    kills: dict[str, int]
    settled: bool
    alerts: tuple[tuple[str, str, str], ...]
    dead_letters: tuple[tuple[str, str, str, str | None], ...]
    log: tuple[dict[str, Any], ...]
    seconds: float
    audit_findings: tuple[str, ...] = ()


def soak(rounds: int, minutes: float, seed: int, say: Say) -> Evidence:
    """Kill for so many rounds, and on until so many minutes have passed."""
    return asyncio.run(_soak(rounds, minutes * 60.0, random.Random(seed), say))


def report(evidence: Evidence) -> dict[str, Any]:
    """The soak's report, a pure function of its evidence; `ok` tells whether all of it held."""
    runs = by_run(evidence.log)
    ends = Counter(end_of(runs.get(run_id, ())) or "UNFINISHED" for run_id in evidence.acknowledged)
    missing, twice, late = lost(evidence.acknowledged, runs), published_twice(runs), late_effects(runs)
    positions = [event["position"] for event in evidence.log]
    whole = positions == list(range(1, len(positions) + 1))
    troubles = (missing, twice, late, evidence.alerts, evidence.dead_letters, evidence.audit_findings)
    return {
        "ok": evidence.settled and whole and bool(evidence.acknowledged) and not any(troubles),
        "acknowledged": len(evidence.acknowledged),
        "ended": dict(ends),
        "lost": len(missing),
        "published_twice": len(twice),
        "late_effects": len(late),
        "alerts": [list(alert) for alert in evidence.alerts],
        "dead_letters": [list(letter) for letter in evidence.dead_letters],
        "unanswered": evidence.unanswered,
        "kills": evidence.kills,
        "orphans_recovered": len(recoveries(runs)),
        "events": len(evidence.log),
        "log_contiguous": whole,
        "settled": evidence.settled,
        "audit_findings": list(evidence.audit_findings),
        "seconds": evidence.seconds,
    }


async def _soak(rounds: int, seconds: float, dice: random.Random, say: Say) -> Evidence:
    began = time.monotonic()
    environment = child_environment() | {"FINAZ_LEASE_TTL_SEC": str(LEASE_TTL_SECONDS)}
    say(f"starting PostgreSQL, the API, the projector, the process managers and {WORKERS} workers")
    async with machine(Plan(environment=environment, workers=WORKERS, quiet=True), lambda what, **more: None) as here:
        with ApiClient(here.url, here.token) as client:
            snapshot = await asyncio.to_thread(store_fixture_snapshot, ApiBlobStore(client))
        load = Load(here, snapshot)
        load.start()
        kills = await asyncio.to_thread(_kill_in_turn, here, rounds, began + seconds, dice, say)
        await asyncio.to_thread(load.stop)
        say(f"the load has stopped after {len(load.acknowledged)} acknowledged runs; waiting for everything to settle")
        evidence = await asyncio.to_thread(_gather, here, load, kills, say)
        if not evidence.settled:
            say(here.log_tail())
    return msgspec.structs.replace(evidence, seconds=round(time.monotonic() - began, 3))


class Load:
    """A client that submits runs one after another, in a thread of its own, until it is stopped."""

    def __init__(self, here: Machine, snapshot: str) -> None:
        self.acknowledged: list[str] = []
        self.unanswered = 0
        self._here = here
        self._snapshot = snapshot
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="finaz-load", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Submit nothing more; the submission under way is seen to its end."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        with ApiClient(self._here.url, self._here.token) as client:
            while not self._stopping.is_set():
                number += 1
                try:
                    body = fixture_body(self._snapshot, ("soak",))
                    self.acknowledged.append(client.submit_run(body, f"soak-{number}")["run_id"])
                except (InfrastructureError, ProblemError) as error:
                    if isinstance(error, ProblemError) and error.problem.get("status", 500) < 500:
                        raise
                    self.unanswered += 1
                self._stopping.wait(LOAD_PAUSE_SECONDS)


def _kill_in_turn(here: Machine, rounds: int, until: float, dice: random.Random, say: Say) -> dict[str, int]:
    """Kill one after another; how often each was killed. Nobody is killed so often that its supervisor would give it up."""
    kills: Counter[str] = Counter()
    killed_at: dict[str, float] = {}
    number = 0
    while number < rounds or time.monotonic() < until:
        victim = VICTIMS[number % len(VICTIMS)]
        number += 1
        spared_until = killed_at.get(victim, float("-inf")) + STABLE_SECONDS + RESTART_SECONDS
        time.sleep(max(dice.uniform(*ROUND_SECONDS), spared_until - time.monotonic()))
        if _killed(here, victim):
            kills[victim] += 1
            killed_at[victim] = time.monotonic()
            say(f"round {number}: killed {victim}")
        else:
            say(f"round {number}: {victim} was not there to be killed")
    return dict(kills)


def _killed(here: Machine, victim: str) -> bool:
    """`kill -9`; whether there was something to kill."""
    try:
        if victim == "postgres":
            assert here.database is not None
            here.database.kill()
        else:
            os.kill(here.pids[victim], signal.SIGKILL)
    except (KeyError, ProcessLookupError, FinazError):
        return False
    return True


def _gather(here: Machine, load: Load, kills: dict[str, int], say: Say) -> Evidence:
    """Wait until everything has ended and been looked at, and fetch what the report needs."""
    with Database(here.dsn) as database:
        nothing = [(0,)]
        waits = ("unfinished", "due_verifications", "behind")
        settled = all(database.wait(name, lambda rows: rows == nothing, SETTLE_SECONDS_MAX) for name in waits)
        if not settled:
            say(", ".join(f"{name}: {database.rows(name)[0][0]}" for name in waits))
        with ApiClient(here.url, here.token) as client:
            log = tuple(client.log())
        return Evidence(
            acknowledged=tuple(load.acknowledged),
            unanswered=load.unanswered,
            kills=kills,
            settled=settled,
            alerts=tuple(database.rows("alerts")),
            dead_letters=tuple(database.rows("dead_letters")),
            log=log,
            seconds=0.0,
            audit_findings=audit_findings(here, say),
        )
