"""One role of one contender, as a script: `driver.py FILE ROLE PLAN`, run by the contender's own Python.

FILE is a `*_jobs.py` beside this one, PLAN a JSON object. It imports nothing but the standard library and FILE, because it runs
in environments where nothing of ours is installed. Every contender is driven by this same code, so the loop that submits, the
clock and the counting are equal for all.

A contender's file has `versions()`, `async prepare(plan)`, `submitter(plan)` (an async context manager that gives
`async submit(key)`, which returns when the job is durably accepted, the job's own name if that isn't the key) and
`async work(plan, ran, stop)` (execute jobs until `stop` is set, calling `ran(name)` as a job begins).

Talk is JSON lines on standard output, commands are lines on standard input; the end of standard input means stop. Instants are
`time.monotonic()`, which all processes of one machine share. What must stay true: the process ends when its starter is gone.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import resource
import sys
import threading
import time
from typing import Any

STOP_SECONDS_MAX = 10.0
"""Seconds that a worker may take to stop; then the process ends itself."""


def say(**message: Any) -> None:
    """One JSON line to the starter."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def cpu_seconds() -> float:
    """Processor time of this process so far, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def prepare(contender: Any, plan: dict[str, Any]) -> None:
    """Make the contender's tables in the plan's database."""
    await contender.prepare(plan)
    say(versions={"python": sys.version.split()[0], **contender.versions()})


async def submit(contender: Any, plan: dict[str, Any]) -> None:
    """Submit the warm-up jobs, wait for the word, submit the jobs, `in_flight` at once, and say when."""
    async with contender.submitter(plan) as submit_one:
        await submit_all(submit_one, [f"{plan['prefix']}warm-{n}" for n in range(plan["warm_up"])], plan["in_flight"])
        say(ready=True)
        if await asyncio.to_thread(sys.stdin.readline) == "":
            return
        cpu = cpu_seconds()
        keys = [f"{plan['prefix']}job-{n}" for n in range(plan["jobs"])]
        began = time.monotonic()
        if plan["pause_seconds"] > 0:
            called, acknowledged = await submit_singly(submit_one, keys, plan["pause_seconds"])
        else:
            called = acknowledged = {}
            await submit_all(submit_one, keys, plan["in_flight"])
        say(
            began=began,
            ended=time.monotonic(),
            called=called,
            acknowledged=acknowledged,
            cpu_seconds=cpu_seconds() - cpu,
        )


async def submit_all(submit_one: Any, keys: list[str], in_flight: int) -> None:
    """Submit every key, `in_flight` at once."""
    remaining = iter(keys)

    async def submit_some() -> None:
        for key in remaining:
            await submit_one(key)

    await asyncio.gather(*(submit_some() for _ in range(in_flight)))


async def submit_singly(submit_one: Any, keys: list[str], pause_seconds: float) -> tuple[dict[str, float], ...]:
    """Submit one key after the other into an idle system; the instants at which each was called and acknowledged."""
    called, acknowledged = {}, {}
    for key in keys:
        await asyncio.sleep(pause_seconds)
        before = time.monotonic()
        name = await submit_one(key) or key
        called[name], acknowledged[name] = before, time.monotonic()
    return called, acknowledged


async def work(contender: Any, plan: dict[str, Any]) -> None:
    """Work until told to stop, then say which jobs were begun when."""
    stop = asyncio.Event()
    started: dict[str, float] = {}
    repeated, cpu = 0, 0.0

    def ran(key: str) -> None:
        nonlocal repeated, cpu
        repeated += key in started
        started[key] = time.monotonic()
        if len(started) == plan["warm_up"]:
            cpu = cpu_seconds()

    working = asyncio.create_task(contender.work(plan, ran, stop))
    told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    say(started=started if plan["pause_seconds"] > 0 else {}, ran=len(started), repeated=repeated,
        cpu_seconds=cpu_seconds() - cpu)  # fmt: skip
    threading.Timer(STOP_SECONDS_MAX, os._exit, (1,)).start()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    os._exit(0)


def main(file: str, role: str, plan: dict[str, Any]) -> None:
    """Load the contender and play the role."""
    spec = importlib.util.spec_from_file_location("contender", file)
    assert spec is not None
    assert spec.loader is not None
    contender = importlib.util.module_from_spec(spec)
    sys.modules["contender"] = contender
    spec.loader.exec_module(contender)
    roles = {"prepare": prepare, "submit": submit, "work": work}
    with contextlib.suppress(ImportError):
        asyncio.set_event_loop_policy(importlib.import_module("uvloop").EventLoopPolicy())
    asyncio.run(roles[role](contender, plan))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
