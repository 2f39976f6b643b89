"""What tests of jobs share: a runner over any log, and a kind that does what the test says."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from domain.jobs.messages import JobSlotTaken
from services.job_kinds import Done, JobKind, JobWork, Outcome
from services.job_runner import JobRunner
from services.jobs import Jobs, JobView
from services.ports import EventLog

TTL_SECONDS = 6.0


class ScriptedKind:
    """A kind of job that runs `script`, and remembers what it was asked to do."""

    name = "scripted"

    def __init__(self, script: Callable[[JobWork], Outcome] = lambda work: Done({"done": True})) -> None:
        self.script = script
        self.undone: list[str] = []
        self.attempts: list[int] = []

    def checked(self, target: str, document: Mapping[str, Any]) -> dict[str, Any]:
        return {"depth": 1, **document}

    def run(self, work: JobWork) -> Outcome:
        self.attempts.append(work.attempt)
        return self.script(work)

    def undo(self, work: JobWork) -> None:
        self.undone.append(work.job_id)


class JobRig:
    """Jobs of one scripted kind over a log, with as many runners as the test wants."""

    def __init__(self, log: EventLog, kind: JobKind | None = None, clock: Callable[[], float] | None = None) -> None:
        self.log = log
        self.kind = kind or ScriptedKind()
        self.kinds: dict[str, JobKind] = {self.kind.name: self.kind}
        self.jobs = Jobs(log, self.kinds)
        self.reports: list[str] = []
        self._clock = clock

    def living(self) -> list[tuple[str, str, str]]:
        """The jobs whose slot is taken, by folding the log."""
        slots: dict[str, tuple[str, str, str] | None] = {}
        for recorded in self.log.read_log(0, 10**6, ("job_slot.taken.v1", "job_slot.freed.v1")):
            event: Any = recorded.event
            taken = isinstance(event, JobSlotTaken)
            slots[recorded.stream] = (event.kind, event.target, event.job_id) if taken else None
        return [found for found in slots.values() if found is not None]

    def runner(self, owner: str) -> JobRunner:
        """A runner of this owner."""
        more = {"monotonic": self._clock} if self._clock else {}
        return JobRunner(
            self.log,
            self.kinds,
            owner,
            self.living,
            ttl_seconds=TTL_SECONDS,
            report=lambda event, _: self.reports.append(event),
            **more,
        )

    def request(self, target: str = "it", principal: str = "ana", **document: Any) -> str:
        """Ask for a job; its id."""
        return asyncio.run(self.jobs.request(self.kind.name, target, document, principal)).job_id

    def view(self, job_id: str) -> JobView:
        """The job as of now."""
        return asyncio.run(self.jobs.get(job_id))

    def cancel(self, job_id: str) -> JobView:
        return asyncio.run(self.jobs.cancel(job_id, "bo"))

    def confirm(self, job_id: str) -> JobView:
        return asyncio.run(self.jobs.confirm(job_id, "bo"))

    def topics(self, job_id: str) -> list[str]:
        """What has happened to the job, without the progress."""
        names = [e.event.topic.removeprefix("job.").removesuffix(".v1") for e in asyncio.run(self.jobs.events(job_id))]
        return [name for name in names if name != "progressed"]
