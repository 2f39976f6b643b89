"""Audits and seals from the command line: through the API as a job, or directly on a database."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from deployment.cli.documents import write_out
from deployment.inspection_client import InspectionClient
from deployment.problems import FileUnavailableError, NotHeldError
from deployment.progress import Progress
from deployment.settings import Settings, load_client_settings, load_settings
from domain.canonical import canonical, parse
from domain.errors import SettingsError
from services.seals import Seal, SealProblem


class Audited:
    """What came of an audit: its summary and its report, as documents."""

    def __init__(self, summary: dict[str, Any], report: dict[str, Any], job_id: str | None) -> None:
        self._summary = summary
        self._report = report
        self._job_id = job_id

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return bool(self._summary["outcome"] == "clean")

    def document(self) -> dict[str, Any]:
        """Everything: the report, the outcome, and where the report is."""
        return {
            **self._report,
            "outcome": self._summary["outcome"],
            "report": self._summary["report"],
            "job_id": self._job_id,
        }

    def write(self, file: str) -> None:
        """Write the report to a file."""
        write_out(canonical(self._report) + b"\n", file, binary=False)


def through_api(*, quiet: bool) -> Audited:
    """Ask for an audit as a job, wait for its end and fetch its report. Raises `NotHeldError` if it could not check."""
    settings = load_client_settings()
    with InspectionClient(settings.api_url, settings.token) as client, Progress("events", quiet=quiet) as progress:
        job_id = client.request_job("audit", "log", {})["job_id"]
        job: dict[str, Any] = {}
        for job in client.watch_job(job_id):
            progress.reached(job["position"], job["total"] or None)
        if job["state"] != "SUCCEEDED":
            error = job.get("error") or {"code": "JOB_CANCELLED", "message": "it was cancelled"}
            raise NotHeldError(
                error["code"],
                f"the audit ended {job['state']}: {error['message']}",
                at=job_id,
                expected="SUCCEEDED",
            )
        report = parse(client.artifact(job["result"]["report"]))
    return Audited(job["result"], report, job_id)


def directly(*, quiet: bool) -> Audited:
    """An audit of the database in the settings, with the blobs and seals that they name; nothing is written to the database.

    Raises `FileUnavailableError` where the blobs' folder isn't there: a misspelt path is no loss of every blob.
    """
    from deployment.audit_wiring import audit_parts
    from deployment.storage import blob_store, keeps_blobs
    from services.audit.job import audited, stored
    from services.store.log_snapshot import log_snapshot

    settings = load_settings()
    if settings.cas_bucket is None and keeps_blobs(settings) and not settings.required_cas_dir().is_dir():
        raise FileUnavailableError(
            "no folder is there", at=str(settings.required_cas_dir()), expected="the log's blobs"
        )
    blobs = blob_store(settings) if keeps_blobs(settings) else None
    dsn = settings.required_postgres_dsn()
    with Progress("events", quiet=quiet) as progress, audit_parts(settings, blobs) as parts:
        report = audited(partial(log_snapshot, dsn), parts, progress.reached)
    summary = stored(report, blobs)
    return Audited(msgspec.to_builtins(summary), parse(canonical(msgspec.to_builtins(report))), None)


def sealed_now() -> dict[str, Any]:
    """Seal what is new; the seal, or that nothing is new."""
    from deployment.audit_wiring import SEALER_CONNECTIONS, sealer
    from services.store.connections import Pool

    settings = load_settings()
    with ExitStack() as stack:
        pool = Pool(settings.required_postgres_dsn(), SEALER_CONNECTIONS)
        stack.callback(pool.close)
        made = sealer(settings, pool)
        if made is None:
            raise _nowhere()
        seal = made.run_once(now_whatever=True)
    return {"sealed": False} if seal is None else {"sealed": True, "seal": seal.name, **msgspec.to_builtins(seal)}


def verified_seals(folder: str | None, key_file: str | None) -> dict[str, Any]:
    """What the seals in a folder (None: where the settings keep them) say, and what is wrong with them.

    That there are none is a problem: a folder that is misspelt or not mounted verifies nothing.
    """
    from deployment.storage import seal_store
    from services.adapters.ed25519 import verify
    from services.adapters.seal_folder import SealFolder
    from services.seals import verified

    settings = load_settings()
    store = seal_store(settings) if folder is None else SealFolder(Path(folder))
    if store is None:
        raise _nowhere()
    key = _key(settings, key_file)
    last: Seal | None = None
    seals, problems = 0, []
    for found in verified(store, key, verify):
        if isinstance(found, Seal):
            last, seals = found, seals + 1
        else:
            problems.append(msgspec.to_builtins(found))
    if not seals and not problems:
        none = SealProblem(name=folder or "the seals", missing=True, expected="a seal", actual="none")
        problems.append(msgspec.to_builtins(none))
    return {
        "seals": seals,
        "last": last.name if last else None,
        "position": last.position if last else None,
        "chain": last.chain if last else None,
        "problems": problems,
    }


def _nowhere() -> SettingsError:
    return SettingsError(
        "not set (or FINAZ_SEAL_BUCKET or FINAZ_DATA_DIR)", at="FINAZ_SEAL_DIR", expected="where seals are kept"
    )


def known_public_key(key_file: str | None) -> str:
    """The public key of a file with either key, or of the settings. Raises `SettingsError`, `SealKeyInvalidError`."""
    return _key(load_settings(), key_file)


def _key(settings: Settings, key_file: str | None) -> str:
    from deployment.audit_wiring import public_key
    from services.adapters.ed25519 import load_public_key

    key = load_public_key(Path(key_file)) if key_file is not None else public_key(settings)
    if key is None:
        raise SettingsError("not set", at="FINAZ_SEAL_PUBLIC_KEY_FILE", expected="the key that seals are verified with")
    return key
