"""The benchmarks by name, each a module imported when it is run.

A benchmark is a module with `run(repeats: int, scale: float, report: Callable[[str], None]) -> dict`: `repeats` at least 3 for
figures worth reading, `scale` multiplies the size of the work (1.0 is what the aims are stated for), `report` takes a sentence
of progress. It starts what it needs and removes it again. What must stay true: one benchmark that fails is an error in the
answer and doesn't keep the others from running.
"""

import importlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from domain.errors import FinazError

BENCHMARKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "appends": "deployment.bench.appends",
        "runs": "deployment.bench.runs",
        "admissions": "deployment.bench.admissions",
        "pickup": "deployment.bench.pickup",
        "growth": "deployment.bench.growth",
        "purchases": "deployment.bench.purchases",
        "ops": "deployment.bench.ops",
        "imports": "deployment.bench.imports",
        "projections": "deployment.bench.projections",
        "replay": "deployment.bench.replay",
        "staging": "deployment.bench.staging",
        "stream": "deployment.bench.stream",
        "stream-memory": "deployment.bench.stream_memory",
        "takeover": "deployment.bench.takeover",
        "audit": "deployment.bench.audit",
        "inspection": "deployment.bench.inspection",
    }
)

Report = Callable[[str], None]


def run_benchmarks(names: Sequence[str], repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """Run the named benchmarks one after the other; the whole answer, ready for JSON."""
    began = datetime.now(UTC)
    answers = {name: run_one(name, repeats, scale, report) for name in names}
    aims = [aim for each in answers.values() for aim in each.get("aims", ())]
    return {
        "measured_at": began.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 1),
        "machine": machine(),
        "repeats": repeats,
        "scale": scale,
        "benchmarks": answers,
        "aims_met": sum(bool(aim["met"]) for aim in aims),
        "aims_missed": sum(not aim["met"] for aim in aims),
        "failed": sorted(name for name, each in answers.items() if "error" in each),
    }


def run_one(name: str, repeats: int, scale: float, report: Report) -> dict[str, Any]:
    """One benchmark's answer; `{"error": …}` if it could not be run to its end."""
    report(f"{name}: starting")
    began = datetime.now(UTC)
    try:
        answer: dict[str, Any] = importlib.import_module(BENCHMARKS[name]).run(repeats, scale, report)
    except FinazError as error:
        report(f"{name}: {error}")
        return {"error": f"{error.code}: {error}"}
    except Exception as error:  # a benchmark's own bug must not lose the other benchmarks' figures
        report(f"{name}: {error!r}")
        return {"error": repr(error)}
    answer["seconds"] = round((datetime.now(UTC) - began).total_seconds(), 1)
    return answer


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
