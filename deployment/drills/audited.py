"""After a drill, an audit: whatever was killed, the log is whole, and everything served is what the events make."""

from collections.abc import Callable
from functools import partial

from deployment.audit_wiring import audit_parts
from deployment.settings import load_settings
from deployment.storage import blob_store
from deployment.up import Machine
from services.audit.job import audited
from services.store.log_snapshot import log_snapshot


def audit_findings(here: Machine, say: Callable[[str], None]) -> tuple[str, ...]:
    """What an audit of the machine finds, a line each; nothing if all is well. The machine may go on meanwhile."""
    settings = load_settings({"FINAZ_POSTGRES_DSN": here.dsn, "FINAZ_DATA_DIR": str(here.folder)})
    with audit_parts(settings, blob_store(settings)) as parts:
        report = audited(partial(log_snapshot, here.dsn), parts, lambda done, total: None)
    say(f"audited {report.events} events: {report.differences} differences; {report.vouches}")
    return tuple(f"{found.kind.value} {found.subject}: {found.actual}" for found in report.findings)
