"""Metrics of one API process, in Prometheus form; their names stand here and nowhere else, and are frozen.

Two kinds: what this process counts as it goes (requests, admissions, watchers), and what the database knows (queue, projections,
runs), measured when somebody asks for `/metrics`. What must stay true: counting never fails a request, and a database that is away
takes the second kind from the page, says so by `finaz_measured 0`, and leaves the first.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from services.read_models import Measures

METRICS_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

METRIC_NAMES: Final = (
    "finaz_http_requests_total",
    "finaz_http_request_seconds",
    "finaz_admissions_total",
    "finaz_appends_total",
    "finaz_watchers",
    "finaz_measured",
    "finaz_log_position",
    "finaz_queue_items",
    "finaz_runs",
    "finaz_streams_unowned",
    "finaz_projection_position",
    "finaz_projection_lag_events",
    "finaz_projection_lag_seconds",
    "finaz_projection_alive",
    "finaz_discrepancies",
    "finaz_dead_letters",
    "finaz_purchases_open",
    "finaz_purchases_oldest_seconds",
    "finaz_purchases_overdue",
)
"""Every metric name, frozen."""

_SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The counters of one process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "finaz_http_requests", "Requests answered.", ("operation", "method", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "finaz_http_request_seconds",
            "Time from a request's head to its whole answer.",
            ("operation",),
            registry=self.registry,
            buckets=_SECONDS_BUCKETS,
        )
        self._admissions = Counter(
            "finaz_admissions", "Admissions by operation and outcome.", ("operation", "outcome"), registry=self.registry
        )
        self._appends = Counter("finaz_appends", "Appends that this process's requests made.", registry=self.registry)
        self._watchers = Gauge("finaz_watchers", "Open watches of runs.", registry=self.registry)
        # Looked up once: labels() takes a lock and builds a tuple of strings every time.
        self._request_children: dict[tuple[str, str, int], Counter] = {}
        self._seconds_children: dict[str, Histogram] = {}
        self._admission_children: dict[tuple[str, str], Counter] = {}

    def request(self, operation: str, method: str, status: int, seconds: float) -> None:
        """Count one request. `operation` and `method` come from our own tables, so their number is bounded."""
        key = (operation, method, status)
        counter = self._request_children.get(key)
        if counter is None:
            counter = self._request_children[key] = self._requests.labels(operation, method, str(status))
            self._seconds_children.setdefault(operation, self._seconds.labels(operation))
        counter.inc()
        self._seconds_children[operation].observe(seconds)

    def admitted(self, operation: str, *, replayed: bool) -> None:
        """Count one admission; a new one made one append."""
        key = (operation, "replayed" if replayed else "new")
        counter = self._admission_children.get(key)
        if counter is None:
            counter = self._admission_children[key] = self._admissions.labels(*key)
        counter.inc()
        if not replayed:
            self.appended()

    def appended(self) -> None:
        """Count one append."""
        self._appends.inc()

    def watchers(self, count: int) -> None:
        """How many watches are open now."""
        self._watchers.set(count)

    def page(self, measured: Measures | None) -> bytes:
        """The page in text format; `measured` is None when the database did not answer."""
        page: bytes = generate_latest(self.registry)
        return page + _render(_families(measured))


def _families(measured: Measures | None) -> Iterable[GaugeMetricFamily]:
    yield _gauge(
        "finaz_measured", "Whether the database answered for the measures below.", (), [((), measured is not None)]
    )
    if measured is None:
        return
    projections = measured.projections
    yield _gauge("finaz_log_position", "Position of the last event.", (), [((), measured.log_position)])
    queue = [((kind, state), count) for kind, state, count in measured.queue]
    yield _gauge("finaz_queue_items", "Items of the outbox.", ("kind", "state"), queue)
    yield _gauge("finaz_runs", "Runs by state.", ("state",), [((state,), count) for state, count in measured.runs])
    unowned = [((), measured.streams_unowned)]
    yield _gauge("finaz_streams_unowned", "STREAM runs under way that nobody works on.", (), unowned)
    found = [((kind, state), count) for kind, state, count in measured.discrepancies]
    yield _gauge(
        "finaz_discrepancies", "What was found and is not settled; ALERTED asks an operator.", ("kind", "state"), found
    )
    letters = [((manager,), count) for manager, count in measured.dead_letters]
    yield _gauge("finaz_dead_letters", "What process managers could not do.", ("manager",), letters)
    yield from _of_purchases(measured)
    name = ("projection",)
    yield _gauge("finaz_projection_position", "Position reached.", name, [((p.name,), p.position) for p in projections])
    yield _gauge(
        "finaz_projection_lag_events", "Events behind.", name, [((p.name,), p.lag_events) for p in projections]
    )
    lag = [((p.name,), p.lag_seconds) for p in projections]
    yield _gauge("finaz_projection_lag_seconds", "Age of the oldest event not applied.", name, lag)
    yield _gauge(
        "finaz_projection_alive", "Whether its runner beats.", name, [((p.name,), p.alive) for p in projections]
    )


def _of_purchases(measured: Measures) -> Iterable[GaugeMetricFamily]:
    """What does not end; COMPENSATION_PENDING that is overdue (over 24 hours) asks an operator."""
    rows = measured.purchases
    state = ("state",)
    yield _gauge("finaz_purchases_open", "Purchases not at an end.", state, [((s,), count) for s, count, _, _ in rows])
    oldest = [((s,), age) for s, _, age, _ in rows]
    yield _gauge("finaz_purchases_oldest_seconds", "Age of the oldest, by the business clock.", state, oldest)
    overdue = {s: count for s, _, _, count in rows}
    known = [((s,), overdue.get(s, 0)) for s in sorted({*overdue, "COMPENSATION_PENDING", "UNKNOWN_EXPIRED"})]
    yield _gauge("finaz_purchases_overdue", "In their state for over 24 hours.", state, known)


def _gauge(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, float(value))
    return family


class _Families:
    """The smallest registry that `generate_latest` accepts."""

    def __init__(self, families: Iterable[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._families


def _render(families: Iterable[GaugeMetricFamily]) -> bytes:
    page: bytes = generate_latest(_Families(families))
    return page
