"""The checks of the drill of two owners: all hold of what a real drill gathered, and each fails on evidence altered for it."""

import copy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deployment.drills.two_owners import report
from deployment.drills.two_owners_evidence import evidence_document, evidence_of
from deployment.drills.two_owners_kill import KILL_CHECKS
from deployment.drills.two_owners_zombie import ZOMBIE_CHECKS
from domain.canonical import canonical, parse
from domain.instants import format_instant, parse_instant

EVIDENCE = Path(__file__).parents[2] / "fixtures" / "drills" / "two_owners.evidence.json"

Document = dict[str, Any]
Alteration = Callable[[Document], None]


def gathered() -> Document:
    document: Document = parse(EVIDENCE.read_bytes())
    return document


def of(document: Document, phase: str, topic: str, token: int | None = None) -> list[Document]:
    """The events of a topic (of a token) in a phase's log."""
    return [
        event
        for event in document[phase]["log"]
        if event["topic"] == topic and (token is None or event["event"].get("token") == token)
    ]


def shifted(event: Document, seconds: float) -> None:
    event["recorded_at"] = format_instant(parse_instant(event["recorded_at"]) + timedelta(seconds=seconds))


def late_by_a(document: Document) -> None:
    """A checkpoint of A's stands behind B's grant."""
    log = document["zombie"]["log"]
    late = copy.deepcopy(of(document, "zombie", "checkpoint.committed.v1", 1)[-1])
    late["position"] = log[-1]["position"] + 1
    log.append(late)


def renewed_by_a(document: Document) -> None:
    """A renewal by A stands behind B's grant."""
    log = document["zombie"]["log"]
    late = copy.deepcopy(of(document, "zombie", "lease.renewed.v1", 1)[-1])
    late["position"] = log[-1]["position"] + 1
    log.append(late)


def granted_to_b0(document: Document) -> None:
    grant = copy.deepcopy(of(document, "zombie", "lease.granted.v1", 1)[0])
    grant["event"]["owner"] = document["zombie"]["actors"]["B0"]["owner"]
    document["zombie"]["log"].append(grant)


def at_the_end(document: Document) -> None:
    highs = {partition: high for partition, (_, high) in document["marks"].items()}
    of(document, "zombie", "checkpoint.committed.v1", 1)[-1]["event"]["next_offsets"] = highs


def granted_early(phase: str) -> Alteration:
    return lambda d: shifted(of(d, phase, "lease.granted.v1", 2)[0], -2.0)


def woken_late(document: Document) -> None:
    """A wakes when B has given its lease back."""
    document["zombie"]["instants"]["a_woken"] = document["zombie"]["instants"]["gathered"]


def committed_after_waking(document: Document) -> None:
    actor = document["zombie"]["actors"]["A"]
    line = copy.deepcopy(next(line for line in actor["lines"] if line["event"] == "stream.committed"))
    line["position"] = 10**6
    actor["lines"].append(line)


def restored_elsewhere(phase: str, name: str) -> Alteration:
    def alter(document: Document) -> None:
        lines = document[phase]["actors"][name]["lines"]
        next(line for line in lines if line["event"] == "stream.restored")["next_offsets"]["3"] = 1

    return alter


def twice(phase: str, topic: str) -> Alteration:
    """The event stands twice."""

    def alter(document: Document) -> None:
        document[phase]["log"].append(copy.deepcopy(of(document, phase, topic)[0]))

    return alter


def emitted(phase: str, name: str, **changes: Any) -> Alteration:
    return lambda d: d[phase]["actors"][name]["emit"].update(changes)


def value_changed(phase: str, name: str) -> Alteration:
    def alter(document: Document) -> None:
        (output,) = document[phase]["actors"][name]["emit"]["outputs"].values()
        output["values"][2] = 2.5
        output["values_hash"] = "sha256:" + "0" * 64

    return alter


def other_ids(document: Document) -> None:
    (output,) = document["kill"]["actors"]["C"]["emit"]["outputs"].values()
    output["event_ids"][0] = "fixture.event.9.9"


def missing_version(phase: str) -> Alteration:
    """An event in the middle of a stream is gone."""

    def alter(document: Document) -> None:
        log = document[phase]["log"]
        log.remove(of(document, phase, "checkpoint.committed.v1")[1])

    return alter


def released_by_b2(document: Document) -> None:
    released = copy.deepcopy(of(document, "kill", "lease.released.v1")[0])
    released["event"] |= {"token": 1, "owner": document["kill"]["actors"]["B2"]["owner"]}
    document["kill"]["log"].append(released)


def killed_late(document: Document) -> None:
    document["kill"]["instants"]["b2_killed"] = document["kill"]["instants"]["gathered"]


def never_waited(document: Document) -> None:
    actor = document["kill"]["actors"]["C"]
    actor["lines"] = [line for line in actor["lines"] if line["event"] != "stream.waiting"]


def written_after_its_sessions(document: Document) -> None:
    late = copy.deepcopy(of(document, "kill", "lease.renewed.v1", 1)[-1])
    late["recorded_at"] = document["kill"]["instants"]["gathered"]
    document["kill"]["log"].append(late)


def never_committed(document: Document) -> None:
    for event in of(document, "kill", "checkpoint.committed.v1", 1):
        document["kill"]["log"].remove(event)


def other_state(document: Document) -> None:
    for manifest in document["kill"]["manifests"].values():
        manifest["state"] = "sha256:" + "0" * 64


def changed(place: str, value: Any) -> Alteration:
    """Set what stands at a place (`zombie.actors.A.code`)."""

    def alter(document: Document) -> None:
        *path, last = place.split(".")
        for step in path:
            document = document[step]
        document[last] = value

    return alter


ALTERATIONS: dict[str, Alteration] = {
    "Z1": changed("marks.3", [0, 220]),
    "Z2": changed("zombie.actors.A.owner", "somebody"),
    "Z3": changed("zombie.actors.B0.exit_status", 0),
    "Z4": granted_to_b0,
    "Z5": at_the_end,
    "Z6": changed("zombie.facts.a_state", "S"),
    "Z7": changed("zombie.actors.B.owner", "somebody"),
    "Z8": granted_early("zombie"),
    "Z9": woken_late,
    "Z10": committed_after_waking,
    "Z11": late_by_a,
    "Z12": changed("zombie.actors.A.exit_status", 0),
    "Z13": renewed_by_a,
    "Z14": restored_elsewhere("zombie", "B"),
    "Z15": value_changed("zombie", "B"),
    "Z16": emitted("zombie", "B", counts={"consumed": 6, "filtered": 195, "omitted": 12, "duplicates_skipped": 86}),
    "Z17": missing_version("zombie"),
    "Z18": twice("zombie", "run.result_published.v1"),
    "Z19": lambda d: of(d, "zombie", "journal.stream_handed_off.v1")[0]["event"].update(previous_token=2),
    "Z20": emitted("zombie", "B", verdict={"kind": "DIFFERS_BY_INPUT"}),
    "K1": never_committed,
    "K2": released_by_b2,
    "K3": killed_late,
    "K4": never_waited,
    "K5": granted_early("kill"),
    "K6": lambda d: of(d, "kill", "lease.granted.v1", 2)[0]["event"].update(token=3),
    "K7": restored_elsewhere("kill", "C"),
    "K8": other_ids,
    "K9": lambda d: shifted(of(d, "kill", "checkpoint.committed.v1", 2)[0], 3.0),
    "K10": twice("kill", "run.result_published.v1"),
    "K11": written_after_its_sessions,
    "K12": emitted("kill", "C", counts={"consumed": 6, "filtered": 195, "omitted": 13, "duplicates_skipped": 84}),
    "K13": twice("kill", "journal.records_omitted.v1"),
    "K14": other_state,
    "K15": missing_version("kill"),
    "K16": value_changed("kill", "C"),
}

FURTHER: dict[str, list[Alteration]] = {
    "Z3": [changed("zombie.actors.B0.code", "LEASE_HELD"), changed("zombie.actors.B0.emit", {})],
    "Z10": [changed("zombie.actors.A.code", "STALE_FENCE")],
    "Z12": [changed("zombie.actors.A.emit", {"outputs": {}})],
    "Z15": [emitted("zombie", "B", next_offsets={"0": 78, "1": 0, "2": 0, "3": 220})],
    "Z18": [lambda d: of(d, "zombie", "run.result_published.v1")[0]["event"].update(token=1)],
    "Z19": [twice("zombie", "journal.stream_handed_off.v1")],
    "Z20": [changed("zombie.actors.B.emit", None)],
    "K3": [released_by_b2],
    "K2": [changed("kill.actors.B2.exit_status", 0), changed("kill.facts.b2_state", "S")],
    "K11": [changed("kill.facts.b2_sessions", 1)],
    "K16": [emitted("kill", "C", verdict={"kind": "DIVERGED"})],
}
"""Other ways in which some of them must fail."""

CASES = list(ALTERATIONS.items())
CASES += [(check, alter) for check, several in FURTHER.items() for alter in several]


def held(document: Document) -> dict[str, bool]:
    return {check["id"]: check["pass"] for check in report(evidence_of(document))["checks"]}


def test_all_hold_of_what_a_real_drill_gathered() -> None:
    """36 of 36, each with an observation, a source and an instant; the document survives being written out."""
    made = report(evidence_of(gathered()))
    assert (made["ok"], made["passed"], made["failed"], len(made["checks"])) == (True, 36, 0, 36)
    for check in made["checks"]:
        assert check["seen"] is not None
        assert check["source"]
        assert parse_instant(check["at"]).tzinfo is not None
    again = evidence_document(evidence_of(gathered()))
    assert canonical(again) == canonical(gathered())


def test_there_is_an_alteration_for_each_check() -> None:
    """Z1 to Z20, K1 to K16, none forgotten."""
    wanted = [f"Z{n}" for n in range(1, 21)] + [f"K{n}" for n in range(1, 17)]
    assert [check.id for check in (*ZOMBIE_CHECKS, *KILL_CHECKS)] == wanted
    assert list(ALTERATIONS) == wanted


@pytest.mark.parametrize(("check", "alter"), CASES, ids=[check for check, _ in CASES])
def test_each_check_fails_on_evidence_altered_for_it(check: str, alter: Alteration) -> None:
    """A check that could not fail would show nothing."""
    document = gathered()
    alter(document)
    assert held(document)[check] is False


def test_evidence_that_is_not_there_fails_checks_and_the_report() -> None:
    """Without a log, lines and emits nothing holds that rests on them; nothing raises."""
    document = gathered()
    for phase in ("zombie", "kill"):
        document[phase] |= {"log": [], "facts": {}, "manifests": {}}
        for actor in document[phase]["actors"].values():
            actor |= {"emit": None, "lines": [], "owner": "", "code": "", "exit_status": None}
    made = report(evidence_of(document))
    assert made["ok"] is False
    assert [check["id"] for check in made["checks"] if check["pass"]] == ["Z1"]
