"""Makes the runner of one process manager: the projection runner on its instances, with the dispatcher attended to."""

from projections.postgres import PostgresSession
from projections.reading import Query
from projections.runner import POLL_SECONDS, Report, Runner, unheard
from services import faultpoints
from services.adapters.manager_store import InstanceRows, PostgresCommandQueue
from services.process_managers.contract import ProcessManager, clock_of
from services.process_managers.instances import instances_of
from services.process_managers.runtime import Dispatcher


def manager_runner(
    dsn: str,
    query: Query,
    manager: ProcessManager,
    owner: str,
    *,
    poll_seconds: float = POLL_SECONDS,
    report: Report = unheard,
) -> Runner:
    """The supervised loop of the manager. `owner` names this process; `query` runs the dispatcher's statements."""
    model = instances_of(manager)
    rows = InstanceRows(manager.name)
    dispatcher = Dispatcher(manager, PostgresCommandQueue(query, manager.name, clock_of(manager)), report)
    return Runner(
        model,
        lambda: PostgresSession(dsn, model, rows, owner),
        poll_seconds=poll_seconds,
        report=report,
        point=faultpoints.point,
        attend=dispatcher.run_once,
    )
