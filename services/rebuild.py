"""Rebuild jobs: a projection's rows made again beside those that are served, compared with them, and served in their place.

`switch` says when: `always`; `if_equal`, only where the comparison found no difference (else the job fails, with the report); or
`on_confirmation`, when an operator who has read the report says so. `action` `roll_back` has the old copy, which the last switch
kept, catch up and serve again; `drop_old` drops it.

What must stay true: what is served changes in the switch and nowhere else; every attempt goes on from what the one before left, or
starts over, and a switch that was made is not made again; where an operator confirms, the copy that was compared is served and no
other; a rebuild that is cancelled or fails leaves what was served and nothing beside it. A crash at any point leaves a copy beside,
which the next attempt of the job, or any other rebuild, finds; where that was the last attempt, a runner with nothing else to do
drops it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from domain.canonical import canonical
from domain.errors import (
    BodyInvalidError,
    FinazError,
    InfrastructureError,
    ProjectionUnknownError,
    RebuildRunningError,
    StaleFenceError,
)
from projections.rebuilding.rebuildable import KEEP_SECONDS, Builder, Difference, Goal, Open, Rebuildable, Rebuilt
from services import effects
from services.job_kinds import Confirm, Done, JobCancelledError, JobHandedBackError, JobWork, Outcome, Refused
from services.ports import BlobStore

KIND: Final = "rebuild"
ALWAYS: Final = "always"
IF_EQUAL: Final = "if_equal"
ON_CONFIRMATION: Final = "on_confirmation"
SWITCHES: Final = (ALWAYS, IF_EQUAL, ON_CONFIRMATION)
REBUILD: Final = "rebuild"
ROLL_BACK: Final = "roll_back"
DROP_OLD: Final = "drop_old"
ACTIONS: Final = (REBUILD, ROLL_BACK, DROP_OLD)

KEEP_SECONDS_MAX: Final = 31 * 86_400.0
"""Seconds for which an old copy can be kept."""

ROWS_DIFFER: Final = "ROWS_DIFFER"
"""The code of a rebuild that was to switch only if equal, and was not."""

REPORT_FORMAT: Final = "FINAZ_REBUILD_REPORT_V1"

_LETS_PASS: Final = (JobCancelledError, JobHandedBackError, StaleFenceError, InfrastructureError)
"""What ends an attempt and not the job: the copy beside is left to the next attempt, or to `undo`."""

Note = Callable[[str, str, str, str, int], None]
"""Adds to a projection's log: name, action, principal, reason, position."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rebuild is asked with."""

    action: str = REBUILD
    switch: str = ALWAYS
    keep_seconds: float = KEEP_SECONDS


class RebuildKind:
    """The kind `rebuild`. `targets` opens each projection by its name; `note` records what was done in the projection's log."""

    name = KIND

    def __init__(self, targets: Mapping[str, Open], blobs: BlobStore, note: Note) -> None:
        self._targets = targets
        self._blobs = blobs
        self._note = note

    def checked(self, target: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """See `JobKind`."""
        if target not in self._targets:
            raise ProjectionUnknownError(
                f"there is no projection {target[:80]!r}", at="$.target", expected=", ".join(sorted(self._targets))
            )
        parameters = _read(document)
        _check("switch", parameters.switch, SWITCHES)
        _check("action", parameters.action, ACTIONS)
        if not 0.0 <= parameters.keep_seconds <= KEEP_SECONDS_MAX:
            raise BodyInvalidError(
                f"{parameters.keep_seconds} seconds",
                at="$.document.keep_seconds",
                expected=f"0 to {KEEP_SECONDS_MAX:g}",
            )
        return msgspec.structs.asdict(parameters)

    def run(self, work: JobWork) -> Outcome:
        """See `JobKind`."""
        parameters = _read(work.document)
        fence = work.fence
        rebuild = self._targets[work.target](Builder(fence.resource, fence.owner, fence.token))
        try:
            rebuild.claim()
            if parameters.action == DROP_OLD:
                dropped = rebuild.drop_old(expired_only=False)
                self._note(work.target, "drop-old", work.principal, f"{dropped} copies, {work.job_id}", 0)
                return Done({"dropped": dropped})
            rebuilt = rebuild.switched()
            if rebuilt is not None:  # and the attempt that did it did not live to say so
                return self._done(work, rebuilt, None, None)
            return self._rebuilt(work, parameters, rebuild)
        finally:
            rebuild.close()

    def undo(self, work: JobWork) -> None:
        """See `JobKind`."""
        fence = work.fence
        rebuild = self._targets[work.target](Builder(fence.resource, fence.owner, fence.token))
        try:
            rebuild.claim()
            if rebuild.switched() is None:
                rebuild.drop_built()
        finally:
            rebuild.close()

    def drop_expired(self, expired: Callable[[], Sequence[str]]) -> list[str]:
        """Drop the old copies whose time is over, of the projections that `expired` names; what was done.

        A projection that is being rebuilt is passed over.
        """
        done = []
        for target in expired():
            with self._between_jobs(target) as rebuild:
                dropped = rebuild.drop_old(expired_only=True) if rebuild is not None else 0
            if dropped:
                self._note(target, "drop-old", "", "the time for which it was kept is over", 0)
                done.append(f"dropped {dropped} old copies of {target}")
        return done

    def drop_left(self, left: Callable[[], Sequence[str]]) -> list[str]:
        """Drop the copies beside what is served whose job has ended without dropping them, of the projections that `left` names.

        So ends a job whose last attempt died. `left` is asked again once nobody else can begin a copy.
        """
        done = []
        for target in left():
            with self._between_jobs(target) as rebuild:
                if rebuild is not None and target in left():
                    rebuild.drop_built()
                    done.append(f"dropped what a rebuild of {target} had left")
        return done

    @contextmanager
    def _between_jobs(self, target: str) -> Iterator[Rebuildable | None]:
        """A projection that no job can work on meanwhile; None where one does, or where it isn't known here."""
        if target not in self._targets:
            yield None
            return
        rebuild = self._targets[target](Builder(f"expiry_{target}", "expiry"))
        try:
            try:
                rebuild.claim()
            except RebuildRunningError:
                yield None
                return
            yield rebuild
        finally:
            rebuild.close()

    def _rebuilt(self, work: JobWork, parameters: Parameters, rebuild: Rebuildable) -> Outcome:
        try:
            rebuild.begin(from_old=parameters.action == ROLL_BACK, confirmed=work.confirmed)
            rebuild.catch_up(work, Goal.SERVED)
            difference, report = None, None
            if not work.confirmed:
                difference = rebuild.compare(work)
                report = self._report(work, difference)
                outcome = _undecided(parameters, difference, report)
                if isinstance(outcome, Refused):
                    rebuild.drop_built()
                if outcome is not None:
                    return outcome
            rebuild.catch_up(work, Goal.LOG)
            rebuilt = rebuild.switch(work, parameters.keep_seconds)
        except _LETS_PASS:
            raise
        except FinazError:
            rebuild.drop_built()
            raise
        return self._done(work, rebuilt, difference, report)

    def _done(self, work: JobWork, rebuilt: Rebuilt, difference: Difference | None, report: str | None) -> Done:
        action = "roll-back" if work.document.get("action") == ROLL_BACK else "rebuild"
        self._note(
            work.target, action, work.principal, f"generation {rebuilt.generation}, {work.job_id}", rebuilt.position
        )
        result: dict[str, Any] = {"generation": rebuilt.generation, "position": rebuilt.position}
        return Done(result | _summary(difference), report)

    def _report(self, work: JobWork, difference: Difference) -> str:
        document: dict[str, Any] = {
            "format": REPORT_FORMAT,
            "job_id": work.job_id,
            "projection": work.target,
            "difference": msgspec.to_builtins(difference),
        }
        return effects.store_blob(self._blobs, canonical(document))


def left_behind(
    beside: Callable[[], Sequence[tuple[str, str]]], living: Callable[[], Sequence[tuple[str, str, str]]]
) -> list[str]:
    """The projections with a copy beside whose job has ended. A job lives before it has a copy, so copies are looked at first."""
    copies = beside()
    alive = {job_id for _, _, job_id in living()}
    return [name for name, job_id in copies if job_id not in alive]


def _undecided(parameters: Parameters, difference: Difference, report: str) -> Outcome | None:
    """What ends the attempt before the switch; None where it may go on."""
    if parameters.switch == ON_CONFIRMATION:
        return Confirm(report, _summary(difference) | {"position": difference.position})
    if parameters.switch == IF_EQUAL and not difference.equal:
        found = f"{difference.missing} missing, {difference.extra} extra, {difference.different} different rows"
        return Refused(ROWS_DIFFER, f"the served rows are not those that the events make: {found}", report)
    return None


def _summary(difference: Difference | None) -> dict[str, Any]:
    if difference is None:
        return {}
    names = ("served_rows", "rebuilt_rows", "missing", "extra", "different")
    return {name: getattr(difference, name) for name in names}


def _read(document: Mapping[str, Any]) -> Parameters:
    try:
        return msgspec.convert(dict(document), Parameters)
    except msgspec.ValidationError as error:
        raise BodyInvalidError(str(error), at="$.document", expected="action, switch, keep_seconds") from error


def _check(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BodyInvalidError(f"{value[:80]!r}", at=f"$.document.{field}", expected=", ".join(known))
