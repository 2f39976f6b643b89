"""The file that starts the real services on one machine; nothing here starts them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from deployment.settings import load_settings
from services.broker import RECORD_BYTES_MAX

FILE = Path(__file__).parents[3] / "deployment" / "compose.yaml"
TEXT = FILE.read_text("utf-8")
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_pinned_private_and_watched(name: str) -> None:
    """An exact version, ports on loopback alone, a volume of its own, a check whether it is ready."""
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z/-]+:v?\d+(\.\d+)+", service["image"]), service["image"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert [volume.partition(":")[0] for volume in service["volumes"]] == [name]
    assert service["healthcheck"]["test"]


def test_the_settings_in_its_head_are_settings_and_meet_its_ports() -> None:
    """What it tells to export is taken as it stands, and leads to ports that it opens."""
    given = dict(re.findall(r"export (FINAZ_\w+)=(\S+)", TEXT))
    load_settings(given)
    ports = {port.split(":")[1] for service in SERVICES.values() for port in service["ports"]}
    assert {re.findall(r"127\.0\.0\.1:(\d+)", value)[0] for value in given.values()} == ports


def test_its_broker_takes_the_largest_record_and_makes_no_topic_by_itself() -> None:
    command = SERVICES["redpanda"]["command"]
    assert "--set=redpanda.auto_create_topics_enabled=false" in command
    (largest,) = [int(word.rpartition("=")[2]) for word in command if "kafka_batch_max_bytes" in word]
    assert largest > RECORD_BYTES_MAX
