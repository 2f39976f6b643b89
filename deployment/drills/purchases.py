"""`finaz drill purchases`: buyers buy under a gateway that misbehaves, while every process is killed at random moments.

Real processes: the API, two processes of the managers, the projector, PostgreSQL and the sandbox gateway, each killed (SIGKILL) at
moments that a seed picks, while buyers reserve and pay through HTTP and the business clock jumps. Then a gateway that is away for
longer than was promised, so that operators have to decide; two of them say the same at once. Then nobody is killed any more, the
gateway tells what it did late, time passes until nothing is left to do, and everything is judged (`purchases_checks.py`).

What must stay true: the drill buys, says operators' words, moves the business clock, starts and kills, and looks; it writes nothing
else. All waits are bounded. A crash leaves a temporary folder at most.
"""

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from deployment.drills.judging import tallied
from deployment.drills.purchases_checks import CHECKS
from deployment.drills.purchases_evidence import FORMAT, Check, Evidence, Mail
from deployment.drills.purchases_stage import Stage
from deployment.settings import child_environment
from deployment.shop_servers import ACCEPTED, Offered, SandboxGateway, free_port, mail_server, shop_environment
from deployment.up import Machine, Plan, machine

MANAGERS: Final = 2

HANG_SECONDS: Final = 1.5
"""How long the gateway leaves a call hanging that it does not answer: longer than it is waited for."""

MAIL_REFUSALS_MAX: Final = 2
"""How often the mail server refuses a mail before it takes it."""

WRONG_MAX: Final = 5
"""Findings that the report shows of one check."""

Say = Callable[[str], None]


def drill(buyers: int, kills: int, seed: int, say: Say) -> Evidence:
    """Carry out the drill with so many buyers and at least so many kills, one of each process."""
    return asyncio.run(_drill(buyers, kills, seed, say))


def report(evidence: Evidence) -> dict[str, Any]:
    """The drill's report, a pure function of its evidence; `ok` tells whether every check held."""
    checks = []
    for check in CHECKS:
        try:
            wrong = check.wrong(evidence)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            wrong = [f"the evidence lacks what is looked at: {type(error).__name__} {error}"]
        checks.append(
            {"id": check.id, "what": check.what, "source": check.source, "pass": not wrong, "wrong": wrong[:5]}
        )
    return {
        "seed": evidence.seed,
        "buyers": len(evidence.asked),
        "purchases": len(evidence.by_purchase()),
        "charges": len(evidence.did("charge")),
        "refunds": len(evidence.did("refund")),
        "events": len(evidence.log),
        "mails": sum(mail.accepted for mail in evidence.mails),
        "kills": evidence.kills,
        "seconds": evidence.seconds,
        **tallied(checks),
    }


def _judged(check: Check, evidence: Evidence) -> dict[str, Any]:
    """A check's line of the report. Evidence that lacks what the check looks at fails it."""
    try:
        wrong = check.wrong(evidence)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        wrong = [f"the evidence lacks what is looked at: {type(error).__name__} {error}"]
    return {
        "id": check.id,
        "what": check.what,
        "source": check.source,
        "pass": not wrong,
        "wrong": wrong[:WRONG_MAX],
    }


async def _drill(buyers: int, kills: int, seed: int, say: Say) -> Evidence:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="finaz-") as folder, mail_server(_moods(seed)) as (smtp_port, mails):
        books = Path(folder) / "books.jsonl"
        with SandboxGateway(books, port=free_port(), hang_seconds=HANG_SECONDS) as gateway:
            say(f"starting PostgreSQL, the API, the projector, {MANAGERS} managers, a gateway and a mail server")
            environment = child_environment() | shop_environment(gateway.url, smtp_port)
            plan = Plan(environment=environment, workers=0, managers=MANAGERS, quiet=True)
            async with machine(plan, lambda what, **more: None) as here:
                stage = Stage(here, gateway, environment, random.Random(seed), say)
                found = await asyncio.to_thread(_performed, stage, here, gateway, buyers, kills)
        done = [msgspec.json.decode(line) for line in books.read_bytes().splitlines()]
        return _evidence(found, seed, done, mails, time.monotonic() - began)


def _performed(stage: Stage, here: Machine, gateway: SandboxGateway, buyers: int, kills: int) -> dict[str, Any]:
    gateway.webhook_url = f"{here.url}/webhooks/gateway"
    gateway.start()
    stage.open(buyers)
    stage.storm(buyers, kills)
    stage.late_charges()
    stage.outage()
    settled = stage.settle()
    if not settled:
        stage.say(here.log_tail())
    return {**stage.gather(), "settled": settled}


def _evidence(
    found: dict[str, Any], seed: int, done: list[dict[str, Any]], mails: list[Offered], seconds: float
) -> Evidence:
    return Evidence(
        format=FORMAT,
        seed=seed,
        gateway=tuple(done),
        mails=tuple(Mail(message_id=mail.message_id, to=mail.to, accepted=mail.accepted) for mail in mails),
        seconds=round(seconds, 3),
        **found,
    )


def _moods(seed: int) -> Callable[[str], str]:
    """A mail server that refuses some mails at first, which ones and how often by the seed."""
    dice, lock = random.Random(f"mail {seed}"), threading.Lock()
    left: dict[str, int] = {}

    def answer(message_id: str) -> str:
        with lock:
            refusals = left.setdefault(message_id, dice.choice((0, 0, 0, 1, MAIL_REFUSALS_MAX)))
            left[message_id] = max(0, refusals - 1)
        return "451 come back later" if refusals else ACCEPTED

    return answer
