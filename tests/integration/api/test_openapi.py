"""The OpenAPI document is complete and true, and the examples of docs/api.md run: both against a whole running system."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.name_pattern import name_pattern
from api.problems import PROBLEM_MEDIA_TYPE
from api.run_schemas import FLOW, OPS
from api.schemas import components, error_codes
from deployment.fixture_files import fixture_path
from domain.errors import NameInvalidError
from domain.identity import checked_name
from domain.market.ops import OPS as REGISTRY
from domain.market.ops import ChoiceParameter
from services.alerts import RUNNERS
from tests.support.command_line import Up, environment, finaz_up

CHECKOUT = Path(__file__).parents[3]
SCHEMATHESIS_SECONDS_MAX = 300
EXAMPLES_SECONDS_MAX = 300


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with finaz_up() as here:
        yield here


@pytest.fixture(scope="module")
def snapshot(up: Up) -> str:
    """The fixture snapshot, stored."""
    file = str(fixture_path("snapshots/fixture.snapshot.01.jsonl"))
    found: str = up.answer("snapshot", "import", file, "--name", "docs", "--format", "jsonl", "--via", "api")["address"]
    return found


@pytest.fixture(scope="module")
def document(up: Up) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{up.url}/schema/openapi.json", trust_env=False).json()
    return found


def test_schemathesis_finds_nothing(up: Up, snapshot: str) -> None:
    """All checks of schemathesis in all its phases, on a system with runs: what the document calls valid, or not, is just that."""
    flow = str(fixture_path("flows/01_A_feature.json"))
    up.answer("run", "submit", "--flow", flow, "--snapshot", snapshot, "--wait")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CHECKOUT / "schemathesis.toml")),
            *("run", f"{up.url}/schema/openapi.json"),
            *("--header", f"Authorization: Bearer {up.token}"),
            *("--max-examples", "4", "--seed", "1", "--request-timeout", "20", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=SCHEMATHESIS_SECONDS_MAX,
        env=environment(),
        cwd=up.folder,
    )
    for name in RUNNERS:  # it is thorough, and may have paused them
        up.answer("projection", "resume", name)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or "No issues found" in done.stdout, done.stdout[-2000:]


def test_every_operation_says_what_it_needs_and_what_can_go_wrong(document: dict[str, Any]) -> None:
    """Each has a name of its own, its scope unless it is public, and problem documents for what any request can meet."""
    names = []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            names.append(operation["operationId"])
            assert ("security" in operation) == path.startswith("/v1/")
            responses = operation["responses"]
            assert {"400", "500", "503"} <= responses.keys()
            assert ("401" in responses) == ("403" in responses) == ("security" in operation)
            problems = [r for status, r in responses.items() if status >= "400" and status != "503"]
            assert all(PROBLEM_MEDIA_TYPE in response["content"] for response in problems)
    assert len(set(names)) == len(names)


def test_every_reference_in_the_document_resolves(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references <= schemas.keys()


def test_flows_are_documented_as_they_are_registered() -> None:
    """Ops, their versions, and every parameter with its bounds are those of the registry."""
    node = FLOW["properties"]["nodes"]["items"]["properties"]
    assert set(OPS) == {name for name, _ in REGISTRY}
    assert node["op_version"]["maximum"] == max(version for _, version in REGISTRY)
    documented = node["parameters"]["properties"]
    registered = {name: spec for op in REGISTRY.values() for name, spec in op.parameters.items()}
    assert documented.keys() == registered.keys()
    for name, spec in registered.items():
        if isinstance(spec, ChoiceParameter):
            assert tuple(documented[name]["enum"]) == spec.choices
        else:
            assert (documented[name]["minimum"], documented[name]["maximum"]) == (min_of(name), spec.most)


def min_of(parameter: str) -> int:
    return min(op.parameters[parameter].least for op in REGISTRY.values() if parameter in op.parameters)  # type: ignore[union-attr]


def test_codes_in_the_document_are_all_there_are() -> None:
    assert set(components()["Problem"]["properties"]["code"]["enum"]) == error_codes()


def test_the_pattern_of_names_admits_only_names() -> None:
    """Every character that it admits may stand anywhere in a name, and it leaves out none of the plain ones."""
    pattern = re.compile(name_pattern())
    for code in range(0x30000):
        if 0xD800 <= code <= 0xDFFF:
            continue
        text = f"e{chr(code)}\u0041\uac00{chr(code)}"
        if pattern.match(text):
            assert checked_name(text, at="name") == text
    for name in ("01_A_feature", "caf\u00e9", "日本", "한국", "\U0001f600", "ÅÄÖ ß"):
        assert pattern.match(name)
    for name in ("a\x00", "a\x9f", "cafe\u0301", "\u1100\u1161", "\u212b"):
        assert not pattern.match(name)
        with pytest.raises(NameInvalidError):
            checked_name(name, at="name")


# ------------------------------------------------------------------------------------------------ docs/api.md


def test_the_examples_of_the_documentation_run(up: Up, snapshot: str) -> None:
    """Each shell example of docs/api.md, as it stands and in order, against a system that has the fixture snapshot."""
    text = (CHECKOUT / "docs" / "api.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 7
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\necho\n".join(examples)],
        capture_output=True,
        text=True,
        timeout=EXAMPLES_SECONDS_MAX,
        env=environment(URL=up.url, TOKEN=up.token, SNAPSHOT=snapshot),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in (
        "event: run.succeeded.v1",
        "sha256:9e906a09a1c59",
        "event_time,event_id,value",
        '"status":"ready"',
    ):
        assert expected in done.stdout
