"""What operators ask of the API: jobs, and commands to projections."""

import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from deployment.api_client import ApiClient

LOOK_SECONDS: Final = 0.5
"""How often a watched job is looked at."""

ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
"""States in which a job has ended."""


class OperatorClient(ApiClient):
    """The API, asked by an operator."""

    def request_job(self, kind: str, target: str, document: dict[str, Any]) -> dict[str, Any]:
        """Ask for a job; the job."""
        return self._json("POST", "/v1/jobs", {"kind": kind, "target": target, "document": document})

    def jobs(
        self, state: str | None = None, kind: str | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Jobs, the newest first."""
        filters = {name: value for name, value in (("state", state), ("kind", kind)) if value is not None}
        return self._items("/v1/jobs", filters, limit)

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as of now."""
        return self._json("GET", f"/v1/jobs/{_part(job_id)}")

    def job_history(self, job_id: str) -> list[dict[str, Any]]:
        """What has happened to a job."""
        items: list[dict[str, Any]] = self._json("GET", f"/v1/jobs/{_part(job_id)}/events")["items"]
        return items

    def watch_job(self, job_id: str) -> Iterator[dict[str, Any]]:
        """The job each time it has moved, until it has ended or waits for a confirmation."""
        seen = None
        while True:
            job = self.job(job_id)
            if job["log_position"] != seen:
                seen = job["log_position"]
                yield job
            if job["state"] in ENDED or job["state"] == "AWAITING":
                return
            time.sleep(LOOK_SECONDS)

    def confirm_job(self, job_id: str) -> dict[str, Any]:
        """Have a job go on that waits for that."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/confirm")

    def cancel_job(self, job_id: str) -> dict[str, Any]:
        """Ask that a job end."""
        return self._json("POST", f"/v1/jobs/{_part(job_id)}/cancel")

    def stop_projection_at(self, name: str, position: int, reason: str) -> dict[str, Any]:
        """Have a projection pause at a position; it as it stands now."""
        body = {"position": position, "reason": reason}
        return self._json("POST", f"/v1/projections/{_part(name)}/stop-at", body)

    def skip_event(self, name: str, position: int, reason: str) -> dict[str, Any]:
        """Have a projection pass over the event at which it stopped; it as it stands now."""
        return self._json("POST", f"/v1/projections/{_part(name)}/skip", {"position": position, "reason": reason})

    def projection_log(self, name: str, limit: int) -> dict[str, Any]:
        """What was done to a projection, the newest first, and what it passes over."""
        return self._json("GET", f"/v1/projections/{_part(name)}/log", limit=limit)

    def dead_letter(self, manager: str, command_id: str) -> dict[str, Any]:
        """One dead letter, whole."""
        return self._json("GET", f"/v1/dead-letters/{_part(manager)}/{_part(command_id)}")

    def revive_dead_letters(self, manager: str) -> dict[str, Any]:
        """Have all of a process manager's tried again."""
        return self._json("POST", f"/v1/dead-letters/{_part(manager)}/revive")


def _part(text: str) -> str:
    return quote(text, safe="")
