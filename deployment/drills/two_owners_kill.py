"""Checks K1 to K16 of the drill of two owners: an owner is killed, and its successor goes on from its last commit, in time.

Pure functions of the evidence. What must stay true: each can fail, and a test alters the evidence so that it does.
"""

from collections import Counter
from typing import Any, Final

from deployment.drills.two_owners_evidence import Check, Evidence, Observation, expires_at, wholeness
from deployment.drills.two_owners_zombie import (
    COUNTS,
    KERNEL,
    LINES,
    LOG,
    PROCESS,
    counted,
    granted_at,
    output,
    published,
    reaches_the_end,
    resumed,
    seen,
)
from domain.instants import format_instant, parse_instant

FIRST_COMMIT_SECONDS_MAX: Final = 2.0
"""How long after the dead lease's expiry the successor's first commit may come."""

SIGKILL: Final = -9
CAS: Final = "CAS: the manifests"


def _k1(e: Evidence) -> Observation:
    grant, commits = e.kill.granted(1), e.kill.checkpoints(1)
    owner = grant["event"]["owner"] if grant else ""
    holds = bool(owner) and owner == e.kill.actors["B2"].owner and bool(commits)
    return seen(holds, {"owner": owner, "checkpoints": len(commits)}, granted_at(e.kill, 1))


def _k2(e: Evidence) -> Observation:
    b2 = e.kill.actors["B2"]
    releases = [x["position"] for x in e.kill.events("lease.released.v1") if x["event"]["token"] == 1]
    what = {"exit_status": b2.exit_status, "process_state": e.kill.facts["b2_state"], "releases": releases}
    return seen(
        b2.exit_status == SIGKILL and not e.kill.facts["b2_state"] and not releases, what, e.kill.instants["b2_killed"]
    )


def _k3(e: Evidence) -> Observation:
    killed = e.kill.instants["b2_killed"]
    expiry = expires_at(e.kill, 1, killed)
    released = [x for x in e.kill.events("lease.released.v1") if x["event"]["token"] == 1]
    holds = expiry is not None and parse_instant(killed) < expiry and not released
    return seen(holds, {"killed_at": killed, "expires_at": expiry and format_instant(expiry)}, killed)


def _k4(e: Evidence) -> Observation:
    """C said that it waits, after the kill and while the lease lived, and was granted nothing in that time."""
    phase, c = e.kill, e.kill.actors["C"]
    waits = [line for line in c.said("stream.waiting", phase.facts["c_lines_at_kill"]) if line.get("token") == 1]
    expiry = expires_at(phase, 1, granted_at(phase, 2)) if granted_at(phase, 2) else None
    early = [
        x["position"]
        for x in phase.log
        if x["event"].get("owner") == c.owner and expiry and parse_instant(x["recorded_at"]) < expiry
    ]
    holds = bool(waits) and expiry is not None and bool(c.owner) and not early
    return seen(holds, {"waits": len(waits), "events_of_c_before_expiry": early}, waits[0]["at"] if waits else "")


def _k5(e: Evidence) -> Observation:
    at = granted_at(e.kill, 2)
    expiry = expires_at(e.kill, 1, at) if at else None
    grant = e.kill.granted(2)
    holds = (
        expiry is not None
        and grant is not None
        and grant["event"]["owner"] == e.kill.actors["C"].owner
        and parse_instant(at) >= expiry
    )
    return seen(holds, {"expired_at": expiry and format_instant(expiry), "granted_at": at}, at)


def _k6(e: Evidence) -> Observation:
    tokens = [(x["event"]["owner"], x["event"]["token"]) for x in e.kill.events("lease.granted.v1")]
    wanted = [(e.kill.actors["B2"].owner, 1), (e.kill.actors["C"].owner, 2)]
    return seen(tokens == wanted, [token for _, token in tokens], granted_at(e.kill, 2))


def _k7(e: Evidence) -> Observation:
    return resumed(e.kill, "C", 1)


def _k8(e: Evidence) -> Observation:
    emit, reference = e.kill.actors["C"].emit, e.zombie.actors["B"].emit
    ids = output(emit).get("event_ids", [])
    same = bool(ids) and ids == output(reference).get("event_ids")
    last = e.kill.events("checkpoint.committed.v1")[-1:]
    journal = last[0]["event"]["next_offsets"] if last else {}
    at_marks = journal == {partition: high for partition, (_, high) in e.marks.items()}
    what = {"values_hash": output(emit).get("values_hash"), "same_event_ids": same, "journal": journal}
    return seen(reaches_the_end(e, emit) and same and at_marks, what, e.kill.instants["c_ended"])


def _k9(e: Evidence) -> Observation:
    at = granted_at(e.kill, 2)
    expiry = expires_at(e.kill, 1, at) if at else None
    commits = e.kill.checkpoints(2)
    if expiry is None or not commits:
        return seen(False, {"expired_at": None, "first_commit_at": None}, at)
    after = (parse_instant(commits[0]["recorded_at"]) - expiry).total_seconds()
    return seen(0.0 <= after <= FIRST_COMMIT_SECONDS_MAX, {"seconds_after_expiry": after}, commits[0]["recorded_at"])


def _k10(e: Evidence) -> Observation:
    tokens, grant = published(e.kill), e.kill.granted(2)
    holds = tokens == [2] and grant is not None and grant["event"]["owner"] == e.kill.actors["C"].owner
    return seen(holds, {"published_by_tokens": tokens}, e.kill.instants["gathered"])


def _k11(e: Evidence) -> Observation:
    gone, b2 = e.kill.instants["b2_sessions_gone"], e.kill.actors["B2"]
    late = [
        x["position"]
        for x in e.kill.log
        if parse_instant(x["recorded_at"]) > parse_instant(gone)
        and (x["event"].get("owner") == b2.owner or x["event"].get("token") == 1)
    ]
    what = {"sessions": e.kill.facts["b2_sessions"], "events_of_b2_after": late}
    return seen(e.kill.facts["b2_sessions"] == 0 and bool(b2.owner) and not late, what, gone)


def _k12(e: Evidence) -> Observation:
    counts = counted(e.kill.actors["C"].emit)
    return seen(counts == COUNTS, counts, e.kill.instants["c_ended"])


def _k13(e: Evidence) -> Observation:
    places: Counter[tuple[int, int]] = Counter()
    for event in e.kill.events("journal.records_omitted.v1"):
        places.update((item["partition"], item["offset"]) for item in event["event"]["items"])
    twice = sorted(place for place, count in places.items() if count > 1)
    what = {"omitted": len(places), "more_than_once": twice}
    return seen(len(places) == COUNTS["omitted"] and not twice, what, e.kill.instants["gathered"])


def _k14(e: Evidence) -> Observation:
    """C encoded the state that it had restored: its address is that of the state that B2 committed."""
    commits = e.kill.checkpoints(1)
    manifest: dict[str, Any] = e.kill.manifests.get(commits[-1]["event"]["manifest"], {}) if commits else {}
    lines = e.kill.actors["C"].said("stream.restored")
    restored = lines[0].get("restored_state") if lines else None
    what = {"committed": manifest.get("state"), "restored": restored}
    return seen(bool(restored) and restored == manifest.get("state"), what, lines[0]["at"] if lines else "")


def _k15(e: Evidence) -> Observation:
    problems = wholeness(e.kill)
    streams = {event["stream"].partition("/")[0] for event in e.kill.log}
    holds = not problems and streams == {"run", "lease", "journal", "checkpoint"}
    return seen(holds, {"streams": sorted(streams), "problems": problems}, e.kill.instants["gathered"])


def _k16(e: Evidence) -> Observation:
    ours, theirs = (_comparable(emit) for emit in (e.kill.actors["C"].emit, e.zombie.actors["B"].emit))
    differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    return seen(bool(ours) and not differing, {"differing": differing}, e.kill.instants["c_ended"])


def _comparable(emit: dict[str, Any] | None) -> dict[str, Any]:
    return {} if emit is None else {"values": emit["outputs"], "counts": emit["counts"], "verdict": emit["verdict"]}


KILL_CHECKS: Final = (
    Check(id="K1", what="B2 holds token 1 and committed at least once", source=LOG, judge=_k1),
    Check(id="K2", what="kill -9: B2 is gone, no release event", source=KERNEL, judge=_k2),
    Check(id="K3", what="its lease is still live", source=LOG, judge=_k3),
    Check(id="K4", what="C waits while it is fresh and does not steal it", source=LINES, judge=_k4),
    Check(id="K5", what="C acquires only after expiry by the database's clock", source=LOG, judge=_k5),
    Check(id="K6", what="its token is one higher", source=LOG, judge=_k6),
    Check(id="K7", what="it resumes exactly at B2's last commit", source=LINES, judge=_k7),
    Check(
        id="K8",
        what="golden, same events as the reference, ids unique, journal at the marks",
        source=PROCESS,
        judge=_k8,
    ),
    Check(id="K9", what="C's first commit at most 2 s after the dead lease's expiry", source=LOG, judge=_k9),
    Check(id="K10", what="one publication, C's token", source=LOG, judge=_k10),
    Check(id="K11", what="no event of B2 once its database sessions are gone", source=LOG, judge=_k11),
    Check(id="K12", what="counts 6/195/13/85", source=PROCESS, judge=_k12),
    Check(id="K13", what="the omitted offsets stand once each", source=LOG, judge=_k13),
    Check(id="K14", what="restored state equals committed state byte for byte", source=CAS, judge=_k14),
    Check(id="K15", what="the run's streams pass the audit's wholeness checks", source=LOG, judge=_k15),
    Check(id="K16", what="C's emit equals B's in values, counts and verdict", source=PROCESS, judge=_k16),
)
