"""The demo: the whole way from a file of real prices to published results, on this machine, judged at the end.

It starts everything through `deployment.up`, imports five tickers' daily prices and the fixture snapshot, submits one EMA run per
ticker and the fixture run in each mode over HTTP, watches them to their end, and fetches results and events back over HTTP. What it
claims at the end is a pure function (`judge`) of what it fetched: it hashes the values itself, and computes each EMA a second
time, naively, from the file.

What must stay true: "golden OK" means that every check held. A crash leaves nothing but a temporary folder.
"""

import asyncio
import csv
import gzip
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deployment.api_client import ApiBlobStore, ApiClient
from deployment.demo_modes import (
    ARRIVALS,
    FAULTS,
    ModeEvidence,
    fetched_modes,
    lost_faults,
    other_verdict,
    parted_modes,
    submitted_modes,
)
from deployment.fixture_files import fixture_path
from deployment.fixture_run import GOLDEN, store_fixture_snapshot
from deployment.importing import imported
from deployment.progress import Progress
from deployment.settings import child_environment
from deployment.up import Machine, Plan, machine
from deployment.waiting import finished_runs
from domain.canonical import address_of, parse
from services.import_options import ImportOptions

PRICES_FILE: Final = "real/stocks.csv.gz"
PRICES_FLOW: Final = "flows/ema_adjusted_close.json"
PRICES: Final = ImportOptions(
    name="stocks",
    attribution="bokeh_sampledata 2026.1 (BSD-3-Clause)",
    instrument="Ticker",
    event_time="Date",
    zone="UTC",
    values={"close": "Close", "adj_close": "Adj Close", "volume": "Volume"},
)
EMA_LENGTH: Final = 50
NODE: Final = "ema"
OUTPUT: Final = "ema"

RELATIVE_DIFFERENCE_MAX: Final = 1e-12
"""How far a value may be from the naive computation: rounding of another order of additions."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """One thing that must hold, and what was found."""

    name: str
    held: bool
    found: str


@dataclass(frozen=True)
class Evidence:
    """All that was fetched: runs as they ended, the values of each by run id, its events, and the prices in the file."""

    fixture_run: str
    tickers: Mapping[str, str]
    """Run id by ticker."""
    runs: Sequence[Mapping[str, Any]]
    values: Mapping[str, Sequence[float | None]]
    events: Mapping[str, Sequence[Mapping[str, Any]]]
    log: Sequence[Mapping[str, Any]]
    """Every event of the log, read back after the runs had ended."""
    prices: Mapping[str, Sequence[tuple[str, float]]]
    """(date, price) by ticker, in the order of the file."""
    modes: ModeEvidence
    """The fixture's runs by mode."""


@dataclass(frozen=True)
class Report:
    """What the demo found."""

    evidence: Evidence
    checks: Sequence[Check]
    seconds: float
    snapshots: Mapping[str, str]
    golden: str = GOLDEN

    @property
    def held(self) -> bool:
        """Whether every check held."""
        return all(check.held for check in self.checks)

    @property
    def values_hash(self) -> str | None:
        """The address of the fixture run's values as they were fetched, or None if there are none."""
        values = self.evidence.values.get(self.evidence.fixture_run)
        return None if values is None else address_of(list(values))


def show(*, say: Say, quiet: bool) -> Report:
    """Do everything, in a temporary folder, and judge it. `say` hears what happens; `quiet` leaves the progress out."""
    return asyncio.run(_show(say, quiet))


async def _show(say: Say, quiet: bool) -> Report:
    began = time.monotonic()

    def tell(what: str, **attributes: Any) -> None:
        if what.endswith(("_died", "_killed", "_not_restarted")):
            say(f"{what.replace('_', ' ')}: {attributes}")

    say("starting PostgreSQL, a broker, the API, the projector and workers in a temporary folder")
    async with machine(Plan(environment=child_environment(), quiet=True), tell) as here:
        say(f"all are ready; the API listens at {here.url}")
        try:
            evidence, snapshots = await asyncio.to_thread(_performed, here, say, quiet)
        except Exception:
            say(here.log_tail())
            raise
    return Report(evidence, judge(evidence), round(time.monotonic() - began, 3), snapshots)


def _performed(here: Machine, say: Say, quiet: bool) -> tuple[Evidence, dict[str, str]]:
    with ApiClient(here.url, here.token) as client:
        blobs = ApiBlobStore(client)
        prices = imported(fixture_path(PRICES_FILE), PRICES, blobs, quiet=quiet)["address"]
        say(f"imported {PRICES_FILE} as {prices}")
        fixture = store_fixture_snapshot(blobs)
        say(f"stored the fixture snapshot as {fixture}")
        if here.bootstrap is None:
            say("there is no broker, so there is no STREAM run: install finaz-runtime[embedded]")
        evidence = perform(client, prices, fixture, here.bootstrap, say=say, quiet=quiet)
    return evidence, {"prices": prices, "fixture": fixture}


# ------------------------------------------------------------------------------------------------ gathering


def perform(
    client: ApiClient, prices_snapshot: str, fixture_snapshot: str, bootstrap: str | None, *, say: Say, quiet: bool
) -> Evidence:
    """Submit all runs over HTTP, watch them to their end, and fetch everything back."""
    prices = prices_of_file()
    say(f"submitting a sweep of {len(prices)} runs, and the fixture in each mode")
    sweep = client.submit_sweep(sweep_body(prices_snapshot, list(prices)), "demo-sweep")
    modes = submitted_modes(client, fixture_snapshot, bootstrap)
    run_ids = [*sweep["run_ids"], *modes.values()]
    runs = list(finished_runs(client, run_ids, Progress("runs", len(run_ids), quiet=quiet)))
    done = [run["run_id"] for run in runs if run["results"]]
    say(f"fetching the results of {len(done)} runs and the events of {len(runs)}")
    return Evidence(
        fixture_run=modes["BATCH"],
        tickers=dict(zip(prices, sweep["run_ids"], strict=True)),
        runs=runs,
        values={run_id: values_of(parse(client.result(run_id, OUTPUT, "json"))) for run_id in done},
        events={run["run_id"]: client.history(run["run_id"]) for run in runs},
        log=list(client.log()),
        prices=prices,
        modes=fetched_modes(client, modes, done),
    )


def prices_of_file() -> dict[str, list[tuple[str, float]]]:
    """(date, adjusted close) by ticker, straight from the file."""
    prices: dict[str, list[tuple[str, float]]] = {}
    with gzip.open(fixture_path(PRICES_FILE), "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            prices.setdefault(row["Ticker"], []).append((row["Date"], float(row["Adj Close"])))
    return prices


def sweep_body(snapshot: str, tickers: Sequence[str]) -> dict[str, Any]:
    """One EMA run of the adjusted close per ticker."""
    return {
        "mode": "BATCH",
        "flows": [parse(fixture_path(PRICES_FLOW).read_bytes())],
        "instruments": list(tickers),
        "parameters": [{NODE: {"length": EMA_LENGTH}}],
        "snapshot": snapshot,
        "as_of": "2014-01-01T00:00:00Z",
        "tags": ["demo"],
    }


def values_of(document: Any) -> list[float | None]:
    """The bare values of a result fetched as JSON."""
    return [tick["value"] for tick in document["ticks"]]


# ------------------------------------------------------------------------------------------------ judging


def judge(evidence: Evidence) -> list[Check]:
    """Every check over what was fetched; pure, so that each can be seen to fail on altered evidence."""
    return [
        _check("every run SUCCEEDED", _not_succeeded(evidence)),
        _check("one result published per run", _published_wrongly(evidence)),
        _check("values fetched hash to the published values_hash", _hashed_wrongly(evidence)),
        _check("every EMA equals a naive computation from the file", _computed_wrongly(evidence)),
        _check("events are contiguous, in the log and in each stream", _broken_order(evidence)),
        _check("modes give one artifact", parted_modes(evidence.modes, evidence.runs)),
        _check(f"{FAULTS} faults applied in {ARRIVALS} arrivals", lost_faults(evidence.modes)),
        _check(
            "verdict on the stream: equal to the batch, by a second look at its topic", other_verdict(evidence.modes)
        ),
        _golden(evidence),
    ]


def _check(name: str, broken: Iterable[str]) -> Check:
    found = list(broken)
    return Check(name, not found, "; ".join(found[:3]) or "holds")


def _golden(evidence: Evidence) -> Check:
    """In every mode."""
    found = {
        mode: address_of(list(evidence.values[run_id])) if run_id in evidence.values else "no values"
        for mode, run_id in evidence.modes.runs.items()
    }
    wrong = [f"{mode}: {hashed}" for mode, hashed in found.items() if hashed != GOLDEN]
    return Check("the fixture run reaches the golden in every mode", not wrong, "; ".join(wrong) or GOLDEN)


def _not_succeeded(evidence: Evidence) -> Iterable[str]:
    expected = {evidence.fixture_run, *evidence.tickers.values(), *evidence.modes.runs.values()}
    yield from (f"{run_id} is missing" for run_id in sorted(expected - {run["run_id"] for run in evidence.runs}))
    yield from (f"{run['run_id']} is {run['state']}" for run in evidence.runs if run["state"] != "SUCCEEDED")


def _published_wrongly(evidence: Evidence) -> Iterable[str]:
    for run in evidence.runs:
        topics = [event["topic"] for event in evidence.events.get(run["run_id"], ())]
        published = topics.count("run.result_published.v1")
        if published != 1 or topics.count("run.succeeded.v1") != 1 or len(run["results"]) != 1:
            yield f"{run['run_id']} published {published}"


def _hashed_wrongly(evidence: Evidence) -> Iterable[str]:
    for run in evidence.runs:
        for result in run["results"]:
            values = evidence.values.get(run["run_id"])
            if values is None or address_of(list(values)) != result["values_hash"] or len(values) != result["rows"]:
                yield f"{run['run_id']}, output {result['output']}"


def _computed_wrongly(evidence: Evidence) -> Iterable[str]:
    for ticker, run_id in evidence.tickers.items():
        expected = naive_ema([price for _, price in evidence.prices[ticker]], EMA_LENGTH)
        values = evidence.values.get(run_id, ())
        if len(values) != len(expected) or not all(map(_close, values, expected)):
            yield ticker


def _broken_order(evidence: Evidence) -> Iterable[str]:
    positions = [event["position"] for event in evidence.log]
    if positions != list(range(1, len(positions) + 1)):
        yield f"the log: positions {positions[:8]}…"
    versions: dict[str, list[int]] = {}
    for event in evidence.log:
        versions.setdefault(event["stream"], []).append(event["version"])
    for stream, seen in versions.items():
        if seen != list(range(1, len(seen) + 1)):
            yield f"{stream}: versions {seen[:8]}…"
    known = {event["event_id"] for event in evidence.log}
    for run_id, events in evidence.events.items():
        if not events or not {event["event_id"] for event in events} <= known:
            yield f"{run_id}: its history is not in the log"


def naive_ema(prices: Sequence[float], length: int) -> list[float | None]:
    """The EMA by its definition: null until `length` values have been seen, then their mean, then a*x + (1-a)*previous."""
    weight = 2.0 / (length + 1)
    values: list[float | None] = []
    previous = 0.0
    for index, price in enumerate(prices):
        if index + 1 < length:
            values.append(None)
            continue
        previous = sum(prices[:length]) / length if index + 1 == length else weight * price + (1.0 - weight) * previous
        values.append(previous)
    return values


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=RELATIVE_DIFFERENCE_MAX)
