"""What the API is made of: everything that its operations call, passed in by the composition root. No globals."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from api.auth import Tokens
from api.follow import LogFollowers
from api.metrics import Metrics
from api.tail import LogTail
from services.admission import Admissions
from services.alerts import Alerts
from services.inspection import Inspection
from services.jobs import Jobs
from services.log_export import ExportSource
from services.ports import BlobStore, EventLog
from services.projection_operations import ProjectionOperations
from services.read_models import ReadModels
from services.results import Results
from services.run_listing import RunListing
from services.runs import Runs
from services.shop import Shop
from services.staging import Staging
from services.stream_parity import StreamParity
from services.stream_records import StreamRecords

BODY_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one submission, a sweep's included, unless the settings say otherwise."""

Probe: TypeAlias = Callable[[], Awaitable[str | None]]
"""One thing that readiness depends on: returns if it holds (and a word on it, if any), raises a `FinazError` that says why not."""


class ApiParts(msgspec.Struct, frozen=True, kw_only=True):
    """The services behind the API.

    `probes` are asked, by name, on `/health/ready`. `version` is the program's,
    `body_bytes_max` bounds a submission. Without `stream_parity` no verdict on stream runs is given, without `staging`
    no staged value.
    """

    log: EventLog
    blobs: BlobStore
    admissions: Admissions
    runs: Runs
    results: Results
    listing: RunListing
    alerts: Alerts
    jobs: Jobs
    projection_operations: ProjectionOperations
    stream_records: StreamRecords
    shop: Shop
    read_models: ReadModels
    tokens: Tokens
    tail: LogTail
    inspection: Inspection
    followers: LogFollowers
    exports: ExportSource
    metrics: Metrics
    probes: Mapping[str, Probe]
    version: str
    stream_parity: StreamParity | None = None
    staging: Staging | None = None
    body_bytes_max: int = BODY_BYTES_MAX
