"""`finaz migrate` and `finaz worker --once` on a database of one's own."""

import json
from pathlib import Path

import pytest

from deployment.fixture_run import GOLDEN
from tests.support.command_line import finaz
from tests.support.s3_server import S3Server


@pytest.fixture
def settings(database: str, tmp_path: Path) -> dict[str, str]:
    return {"FINAZ_POSTGRES_DSN": database, "FINAZ_CAS_DIR": str(tmp_path / "cas")}


def in_a_bucket(database: str, server: S3Server) -> dict[str, str]:
    """The same with blobs in a bucket."""
    bucket = server.bucket("cas")
    assert bucket.access_key is not None
    assert bucket.secret_key is not None
    return {
        "FINAZ_POSTGRES_DSN": database,
        "FINAZ_CAS_BUCKET": str(bucket),
        "FINAZ_S3_ENDPOINT": server.endpoint,
        "FINAZ_S3_ACCESS_KEY": bucket.access_key,
        "FINAZ_S3_SECRET_KEY": bucket.secret_key,
    }


def test_once_on_an_empty_queue(settings: dict[str, str]) -> None:
    """An empty queue: `null` on standard output, status 0."""
    done = finaz("worker", "--once", **settings)
    assert (done.returncode, done.stdout) == (0, "null\n"), done.stderr


def test_once_with_the_fixture(settings: dict[str, str]) -> None:
    """The fixture run is admitted and executed; its ResultRef is one JSON document, with the golden; then nothing is left."""
    done = finaz("worker", "--once", "--fixture", **settings)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["values_hash"] == GOLDEN
    assert {"run_id", "output", "artifact", "rows", "schema", "flow", "inputs", "fence_token", "published_at"} <= set(
        result
    )
    assert finaz("worker", "--once", **settings).stdout == "null\n"


def test_once_with_blobs_in_a_bucket(database: str, s3: S3Server) -> None:
    """The same run by settings only: the golden is published, its artifact is an object; the audit reads it from there."""
    settings = in_a_bucket(database, s3)
    done = finaz("worker", "--once", "--fixture", **settings)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["values_hash"] == GOLDEN
    (stored,) = s3.folder.rglob(result["artifact"].removeprefix("sha256:"))
    stored.write_bytes(b"damaged")
    audit = finaz("audit", "replay", "--direct", "--json", **settings)
    assert audit.returncode == 1, audit.stderr
    assert result["artifact"] in audit.stdout


def test_once_without_a_database_is_a_named_setting() -> None:
    """No DSN and no fixture: the setting that is missing is named, with status 1."""
    done = finaz("worker", "--once", "--json")
    assert done.returncode == 1
    assert json.loads(done.stderr.splitlines()[-1])["at"] == "FINAZ_POSTGRES_DSN"


def test_migrate_twice(empty_database: str) -> None:
    """The first `finaz migrate` applies all that was pending, the second finds nothing left."""
    settings = {"FINAZ_POSTGRES_DSN": empty_database}
    pending = json.loads(finaz("migrate", "--pending", "--json", **settings).stdout)["pending"]
    assert pending
    assert json.loads(finaz("migrate", "--json", **settings).stdout)["applied"] == pending
    assert json.loads(finaz("migrate", "--json", **settings).stdout)["applied"] == []


def test_up_on_a_database_without_a_folder_is_refused(database: str) -> None:
    """`finaz up` never keeps a database whose blobs would be removed: the setting that is missing is named."""
    done = finaz("up", "--json", FINAZ_POSTGRES_DSN=database)
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["at"] == "FINAZ_DATA_DIR"
