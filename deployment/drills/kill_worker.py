"""`finaz drill kill-worker`: runs in flight, `kill -9` for the worker that executes them, and another takes over.

Real processes on embedded services, started through `deployment.up`. The kill comes at a random instant after a worker has
claimed runs; a round in which it hit nothing is repeated. Judged by the log alone (`deployment.drills.judging`): all that was
submitted SUCCEEDED, nothing was published twice, no overtaken owner wrote anything.

What must stay true: the drill fails if nothing was orphaned, for then it has shown nothing. All waits are bounded; a crash leaves
a temporary folder at most.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from deployment.api_client import ApiBlobStore, ApiClient
from deployment.demo import PRICES, PRICES_FILE, PRICES_FLOW, prices_of_file
from deployment.drills.audited import audit_findings
from deployment.drills.database import Database
from deployment.drills.judging import Recovery, by_run, end_of, late_effects, lost, published_twice, recoveries
from deployment.fixture_files import fixture_path
from deployment.importing import imported
from deployment.settings import child_environment
from deployment.up import Machine, Plan, machine
from domain.canonical import parse
from domain.errors import WaitTimeoutError

LEASE_TTL_SECONDS: Final = 3.0
WORKERS: Final = 2

KILL_DELAY_SECONDS_MAX: Final = 0.1
"""The kill comes at a random instant up to so long after runs were seen to be claimed."""

ROUNDS_MAX: Final = 5
"""How often the kill may miss before the drill gives up."""

CLAIM_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 120.0

RECOVERY_SECONDS_MAX: Final = 2.0
"""How long after the dead lease's expiry another worker must have started the run."""

PEERS: Final = {"pgqueuer": "30 s", "procrastinate": "never within 45 s", "DBOS": "never within 45 s"}
"""What comparable systems need for the same (kill -9 with another worker alive), each tried once; docs/benchmarks.md."""

Say = Callable[[str], None]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a drill gathered: what it submitted, whom it killed when (by the database's clock), and the whole log."""

    submitted: tuple[str, ...]
    killed_at: tuple[datetime, ...]
    log: tuple[dict[str, Any], ...]
    seconds: float
    audit_findings: tuple[str, ...] = ()


def drill(runs: int, seed: int, say: Say) -> Evidence:
    """Carry out the drill with so many runs in flight."""
    return asyncio.run(_drill(runs, random.Random(seed), say))


def report(evidence: Evidence) -> dict[str, Any]:
    """The drill's report, a pure function of its evidence; `ok` tells whether all of it held."""
    runs = by_run(evidence.log)
    found = recoveries(runs)
    succeeded = sum(end_of(runs.get(run_id, ())) == "SUCCEEDED" for run_id in evidence.submitted)
    twice, late = published_twice(runs), late_effects(runs)
    restarted = [_restart_seconds(recovery) for recovery in found]
    in_time = all(seconds is not None and seconds <= RECOVERY_SECONDS_MAX for seconds in restarted)
    return {
        "ok": bool(found)
        and in_time
        and succeeded == len(evidence.submitted)
        and not (twice or late or evidence.audit_findings),
        "submitted": len(evidence.submitted),
        "succeeded": succeeded,
        "lost": len(lost(evidence.submitted, runs)),
        "published_twice": len(twice),
        "late_effects": len(late),
        "kills": len(evidence.killed_at),
        "orphaned": len(found),
        "lease_ttl_seconds": LEASE_TTL_SECONDS,
        "recovered_after_seconds": _longest(_since_kill(recovery, evidence.killed_at) for recovery in found),
        "restarted_after_expiry_seconds": _longest(restarted),
        "restarted_after_expiry_seconds_max": RECOVERY_SECONDS_MAX,
        "peers_recover_after": PEERS,
        "audit_findings": list(evidence.audit_findings),
        "seconds": evidence.seconds,
    }


async def _drill(runs: int, dice: random.Random, say: Say) -> Evidence:
    began = time.monotonic()
    environment = child_environment() | {"FINAZ_LEASE_TTL_SEC": str(LEASE_TTL_SECONDS)}
    say(f"starting PostgreSQL, the API, the projector, the process managers and {WORKERS} workers")
    async with machine(Plan(environment=environment, workers=WORKERS, quiet=True), lambda what, **more: None) as here:
        submitted, killed_at, log = await asyncio.to_thread(_performed, here, runs, dice, say)
        findings = await asyncio.to_thread(audit_findings, here, say)
    return Evidence(
        submitted=tuple(submitted),
        killed_at=tuple(killed_at),
        log=tuple(log),
        seconds=round(time.monotonic() - began, 3),
        audit_findings=findings,
    )


def _performed(
    here: Machine, runs: int, dice: random.Random, say: Say
) -> tuple[list[str], list[datetime], list[dict[str, Any]]]:
    submitted: list[str] = []
    killed_at: list[datetime] = []
    with ApiClient(here.url, here.token) as client, Database(here.dsn) as database:
        snapshot = imported(fixture_path(PRICES_FILE), PRICES, ApiBlobStore(client), quiet=True)["address"]
        for number in range(ROUNDS_MAX):
            say(f"round {number + 1}: submitting {runs} runs")
            for part, body in enumerate(sweeps(snapshot, runs)):
                submitted += client.submit_sweep(body, f"kill-worker-{number}-{part}")["run_ids"]
            killed_at.append(_kill(here, database, dice, say))
            if not database.wait("unfinished", lambda rows: rows == [(0,)], END_SECONDS_MAX):
                say(f"{database.rows('unfinished')[0][0]} runs have not ended in {END_SECONDS_MAX:g} seconds")
                say(here.log_tail())
            log = list(client.log())
            orphans = len(recoveries(by_run(log)))
            say(f"{orphans} runs were orphaned and recovered")
            if orphans:
                break
        return submitted, killed_at, log


def _kill(here: Machine, database: Database, dice: random.Random, say: Say) -> datetime:
    """`kill -9` for the worker that has claimed the most; the instant, by the database's clock."""
    if not database.wait("claimed", bool, CLAIM_SECONDS_MAX):
        raise WaitTimeoutError("no worker claimed a run", at="drill", expected=f"within {CLAIM_SECONDS_MAX:g} seconds")
    time.sleep(dice.uniform(0.0, KILL_DELAY_SECONDS_MAX))
    claimed = database.rows("claimed")
    label = claimed[0][0] if claimed else "worker-1"
    os.kill(here.pids[label], signal.SIGKILL)
    ((killed_at,),) = database.rows("now")
    say(f"killed {label} with {claimed[0][1] if claimed else 0} runs claimed")
    return killed_at  # type: ignore[no-any-return]


def sweeps(snapshot: str, runs: int) -> list[dict[str, Any]]:
    """Bodies of sweeps that make just so many EMA runs over real prices: tickers times lengths, and the rest."""
    tickers = list(prices_of_file())
    lengths, rest = divmod(runs, len(tickers))
    parts = [(tickers, range(2, 2 + lengths)), (tickers[:rest], range(2 + lengths, 3 + lengths))]
    return [
        {
            "mode": "BATCH",
            "flows": [parse(fixture_path(PRICES_FLOW).read_bytes())],
            "instruments": instruments,
            "parameters": [{"ema": {"length": length}} for length in chosen],
            "snapshot": snapshot,
            "as_of": "2014-01-01T00:00:00Z",
            "tags": ["drill"],
        }
        for instruments, chosen in parts
        if instruments and chosen
    ]


def _restart_seconds(recovery: Recovery) -> float | None:
    """From the expiry of the dead lease to the next start."""
    if recovery.restarted_at is None:
        return None
    return (recovery.restarted_at - recovery.lease_expired_at).total_seconds()


def _since_kill(recovery: Recovery, killed_at: tuple[datetime, ...]) -> float | None:
    """From the last kill before the next start to that start."""
    if recovery.restarted_at is None:
        return None
    kills = [at for at in killed_at if at <= recovery.restarted_at]
    return (recovery.restarted_at - kills[-1]).total_seconds() if kills else None


def _longest(seconds: Any) -> float | None:
    known = [s for s in seconds if s is not None]
    return round(max(known), 3) if known else None
