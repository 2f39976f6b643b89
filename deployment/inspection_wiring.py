"""Wires looking at the log: the part of the API that inspects, follows and exports it."""

from functools import partial
from typing import TYPE_CHECKING, TypedDict

from services.inspection import Inspection
from services.log_export import ExportSource
from services.store.application import Log
from services.store.log_snapshot import log_snapshot
from services.store.notifications import EVENTS

if TYPE_CHECKING:
    from api.follow import LogFollowers


class InspectionParts(TypedDict):
    """These fields of `api.parts.ApiParts`."""

    inspection: Inspection
    followers: "LogFollowers"
    exports: ExportSource


def inspection_parts(dsn: str, log: Log) -> InspectionParts:
    """What the API looks at the log through: the log's pool for pages, a connection of its own for each export."""
    from api.follow import LogFollowers

    inspection = Inspection(log.pool)
    return {
        "inspection": inspection,
        "followers": LogFollowers(inspection, lambda: log.listener.waker(EVENTS), log.high_water_mark),
        "exports": ExportSource(partial(log_snapshot, dsn)),
    }
