"""Checks Z1 to Z20 of the drill of two owners: an owner that was asleep gets nothing in, and its successor loses nothing.

Pure functions of the evidence. What must stay true: each can fail, and a test alters the evidence so that it does.
"""

from typing import Any, Final

from deployment.drills.two_owners_evidence import Check, Evidence, Observation, Phase, expires_at, wholeness
from domain.instants import format_instant, parse_instant

HIGH_MARKS: Final = {"0": 78, "1": 0, "2": 0, "3": 221}
RECORDS: Final = 299
COUNTS: Final = {"consumed": 6, "filtered": 195, "omitted": 13, "duplicates_skipped": 85}
FENCED: Final = ("stream.renewed", "stream.committed", "stream.succeeded", "stream.released")
"""What a worker says after something was written under its fence; the line carries the position."""

BROKER: Final = "broker: marks of the topic"
LOG: Final = "event log"
PROCESS: Final = "process: exit status, error, emit"
LINES: Final = "process: its log lines"
KERNEL: Final = "/proc"


def seen(passed: bool, what: Any, at: str) -> Observation:
    """An observation."""
    return Observation(passed=passed, seen=what, at=at)


def counted(emit: dict[str, Any] | None) -> dict[str, int]:
    """The treatments of an emit that there are any of."""
    return {name: count for name, count in (emit or {}).get("counts", {}).items() if count}


def output(emit: dict[str, Any] | None) -> dict[str, Any]:
    """The one output of an emit."""
    outputs = list((emit or {}).get("outputs", {}).values())
    return outputs[0] if len(outputs) == 1 else {}


def verdict(emit: dict[str, Any] | None) -> str:
    """The verdict of an emit; empty without one."""
    found = (emit or {}).get("verdict") or {}
    return str(found.get("kind", ""))


def published(phase: Phase) -> list[int]:
    """The tokens under which results were published, in order."""
    return [event["event"]["token"] for event in phase.events("run.result_published.v1")]


def reaches_the_end(evidence: Evidence, emit: dict[str, Any] | None) -> bool:
    """Golden, every record accounted for, ids unique, offsets at the high-water marks."""
    found = output(emit)
    ids = found.get("event_ids", [])
    return (
        found.get("values_hash") == evidence.golden
        and sum(counted(emit).values()) == RECORDS
        and len(ids) == len(set(ids)) > 0
        and (emit or {}).get("next_offsets") == {p: high for p, (_, high) in evidence.marks.items()}
    )


def granted_at(phase: Phase, token: int) -> str:
    """When the token was granted; empty if it was not."""
    event = phase.granted(token)
    return "" if event is None else event["recorded_at"]


# ------------------------------------------------------------------------------------------------ the checks


def _z1(e: Evidence) -> Observation:
    highs = {partition: high for partition, (_, high) in e.marks.items()}
    total = sum(high - low for low, high in e.marks.values())
    return seen(highs == HIGH_MARKS and total == RECORDS, highs, e.marks_at)


def _z2(e: Evidence) -> Observation:
    grant, a = e.zombie.granted(1), e.zombie.actors["A"]
    owner = grant["event"]["owner"] if grant else ""
    return seen(bool(owner) and owner == a.owner, {"token": 1, "owner": owner}, granted_at(e.zombie, 1))


def _z3(e: Evidence) -> Observation:
    b0 = e.zombie.actors["B0"]
    what = {"code": b0.code, "exit_status": b0.exit_status, "emit": b0.emit is not None}
    wanted = {"code": "STREAM_LEASE_OCUPADO", "exit_status": 1, "emit": False}
    return seen(what == wanted, what, e.zombie.instants["intruder_ended"])


def _z4(e: Evidence) -> Observation:
    phase, b0 = e.zombie, e.zombie.actors["B0"]
    by_b0 = [event["position"] for event in phase.log if event["event"].get("owner") == b0.owner]
    ended = parse_instant(phase.instants["intruder_ended"])
    before = [g for g in phase.events("lease.granted.v1") if parse_instant(g["recorded_at"]) <= ended]
    last = {"owner": before[-1]["event"]["owner"], "token": before[-1]["event"]["token"]} if before else {}
    holds = bool(b0.owner) and not by_b0 and last == {"owner": phase.actors["A"].owner, "token": 1}
    return seen(holds, {"events_by_b0": by_b0, "lease": last}, phase.instants["intruder_ended"])


def _z5(e: Evidence) -> Observation:
    commits = e.zombie.checkpoints(1)
    offsets = commits[-1]["event"]["next_offsets"] if commits else {}
    at_end = offsets == {partition: high for partition, (_, high) in e.marks.items()}
    return seen(
        bool(commits) and not at_end,
        {"checkpoints": len(commits), "next_offsets": offsets},
        commits[-1]["recorded_at"] if commits else e.zombie.instants["gathered"],
    )


def _z6(e: Evidence) -> Observation:
    state = e.zombie.facts.get("a_state")
    stopped_at = e.zombie.instants.get("a_stopped", "")
    return seen(state == "T" and bool(stopped_at), state, stopped_at or e.zombie.instants["gathered"])


def _z7(e: Evidence) -> Observation:
    grant = e.zombie.granted(2)
    owner = grant["event"]["owner"] if grant else ""
    return seen(
        bool(owner) and owner == e.zombie.actors["B"].owner, {"token": 2, "owner": owner}, granted_at(e.zombie, 2)
    )


def _z8(e: Evidence) -> Observation:
    at = granted_at(e.zombie, 2)
    expiry = expires_at(e.zombie, 1, at) if at else None
    holds = expiry is not None and parse_instant(at) >= expiry
    return seen(holds, {"expired_at": expiry and format_instant(expiry), "granted_at": at}, at)


def _z9(e: Evidence) -> Observation:
    woken = e.zombie.instants["a_woken"]
    expiry = expires_at(e.zombie, 2, woken)
    ended = [x for x in e.zombie.events("lease.released.v1") if x["recorded_at"] and x["event"]["token"] == 2]
    released = [x for x in ended if parse_instant(x["recorded_at"]) <= parse_instant(woken)]
    holds = expiry is not None and parse_instant(woken) < expiry and not released
    return seen(holds, {"woken_at": woken, "b_expires_at": expiry and format_instant(expiry)}, woken)


def _z10(e: Evidence) -> Observation:
    phase, a, grant = e.zombie, e.zombie.actors["A"], e.zombie.granted(2)
    after = a.lines[phase.facts["a_lines_asleep"] :]
    passed_on = [x for x in after if x["event"] in FENCED and grant and x.get("position", 0) > grant["position"]]
    refused = [line for line in after if line["event"] == "stream.lease_lost"]
    holds = bool(refused) and not passed_on and a.code == "STREAM_FENCE_OBSOLETO"
    what = {"code": a.code, "refusals": len(refused), "written_after_takeover": len(passed_on)}
    return seen(holds, what, refused[0]["at"] if refused else phase.instants["a_ended"])


def _z11(e: Evidence) -> Observation:
    grant = e.zombie.granted(2)
    late = [c["position"] for c in e.zombie.checkpoints(1) if grant and c["position"] > grant["position"]]
    return seen(grant is not None and not late, {"checkpoints_by_token_1_after": late}, e.zombie.instants["gathered"])


def _z12(e: Evidence) -> Observation:
    a = e.zombie.actors["A"]
    what = {"exit_status": a.exit_status, "emit": a.emit is not None}
    return seen(bool(a.exit_status) and a.emit is None, what, e.zombie.instants["a_ended"])


def _z13(e: Evidence) -> Observation:
    phase, grant, a = e.zombie, e.zombie.granted(2), e.zombie.actors["A"]
    by_a = [
        event["position"]
        for event in phase.log
        if grant
        and event["position"] > grant["position"]
        and (event["event"].get("owner") == a.owner or event["event"].get("token") == 1)
    ]
    return seen(
        grant is not None and bool(a.owner) and not by_a, {"events_by_a_after": by_a}, phase.instants["a_ended"]
    )


def _z14(e: Evidence) -> Observation:
    return resumed(e.zombie, "B", 1)


def resumed(phase: Phase, successor: str, token: int) -> Observation:
    """Whether the successor said that it restored the last commit under the token: manifest and offsets."""
    last = phase.checkpoints(token)[-1] if phase.checkpoints(token) else None
    lines = phase.actors[successor].said("stream.restored")
    line = lines[0] if len(lines) == 1 else {}
    what = {
        "committed": last
        and {"manifest": last["event"]["manifest_hash"], "next_offsets": last["event"]["next_offsets"]},
        "restored": {"manifest": line.get("manifest"), "next_offsets": line.get("next_offsets")},
    }
    at = line.get("at", phase.instants["gathered"])
    return seen(last is not None and what["committed"] == what["restored"], what, at)


def _z15(e: Evidence) -> Observation:
    emit = e.zombie.actors["B"].emit
    what = {
        "records": sum(counted(emit).values()),
        "values_hash": output(emit).get("values_hash"),
        "event_ids": len(set(output(emit).get("event_ids", []))),
        "next_offsets": (emit or {}).get("next_offsets"),
    }
    return seen(reaches_the_end(e, emit), what, e.zombie.instants["b_ended"])


def _z16(e: Evidence) -> Observation:
    counts = counted(e.zombie.actors["B"].emit)
    return seen(counts == COUNTS, counts, e.zombie.instants["b_ended"])


def _z17(e: Evidence) -> Observation:
    tokens = [event["event"]["token"] for event in e.zombie.events("lease.granted.v1")]
    problems = wholeness(e.zombie)
    return seen(
        bool(tokens) and tokens == sorted(set(tokens)) and not problems,
        {"tokens": tokens, "problems": problems},
        _end(e),
    )


def _z18(e: Evidence) -> Observation:
    tokens = published(e.zombie)
    return seen(tokens == [2], {"published_by_tokens": tokens}, _end(e))


def _z19(e: Evidence) -> Observation:
    phase = e.zombie
    handoffs = [event["event"] for event in phase.events("journal.stream_handed_off.v1")]
    last = phase.checkpoints(1)[-1]["event"] if phase.checkpoints(1) else {}
    wanted = {
        "run_id": phase.run_id,
        "previous_owner": phase.actors["A"].owner,
        "previous_token": 1,
        "owner": phase.actors["B"].owner,
        "token": 2,
        **{name: last.get(name) for name in ("epoch", "manifest", "manifest_hash", "next_offsets")},
    }
    return seen(handoffs == [wanted], handoffs, granted_at(phase, 2))


def _z20(e: Evidence) -> Observation:
    kind = verdict(e.zombie.actors["B"].emit)
    return seen(kind == "EQUAL_TO_BATCH_GOLDEN", kind, e.zombie.instants["b_ended"])


def _end(e: Evidence) -> str:
    return e.zombie.instants["gathered"]


ZOMBIE_CHECKS: Final = (
    Check(id="Z1", what="299 records, high-water 78 and 221, the other partitions 0", source=BROKER, judge=_z1),
    Check(id="Z2", what="A holds token 1", source=LOG, judge=_z2),
    Check(id="Z3", what="the intruder B0: STREAM_LEASE_OCUPADO, exit 1, no emit", source=PROCESS, judge=_z3),
    Check(id="Z4", what="no event by B0; the owner is A, its token 1", source=LOG, judge=_z4),
    Check(id="Z5", what="A committed at least once and is not at the end", source=LOG, judge=_z5),
    Check(id="Z6", what="A is stopped, seen in its process state", source=KERNEL, judge=_z6),
    Check(id="Z7", what="the lease passes to B, token 2", source=LOG, judge=_z7),
    Check(id="Z8", what="not before A's expiry by the database's clock", source=LOG, judge=_z8),
    Check(id="Z9", what="A wakes while B's lease is live", source=LOG, judge=_z9),
    Check(id="Z10", what="A's first fenced action is refused: STREAM_FENCE_OBSOLETO", source=LINES, judge=_z10),
    Check(id="Z11", what="no checkpoint by token 1 after token 2 exists", source=LOG, judge=_z11),
    Check(id="Z12", what="A exits non-zero without an emit", source=PROCESS, judge=_z12),
    Check(id="Z13", what="A's refusal added no event", source=LOG, judge=_z13),
    Check(id="Z14", what="B resumed from A's last commit: same manifest hash and offsets", source=LINES, judge=_z14),
    Check(
        id="Z15",
        what="B: 299 of 299, golden, event ids unique, offsets at the high-water marks",
        source=PROCESS,
        judge=_z15,
    ),
    Check(id="Z16", what="counts 6/195/13/85", source=PROCESS, judge=_z16),
    Check(id="Z17", what="tokens monotone, versions contiguous", source=LOG, judge=_z17),
    Check(id="Z18", what="one publication, token 2", source=LOG, judge=_z18),
    Check(id="Z19", what="the handoff manifest is complete and right", source=LOG, judge=_z19),
    Check(id="Z20", what="verdict EQUAL_TO_BATCH_GOLDEN", source=PROCESS, judge=_z20),
)
