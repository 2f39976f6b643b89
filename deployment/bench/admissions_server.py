"""The API as `finaz api` serves it, with two endpoints beside it that do nothing, in a process of its own.

    python -m deployment.bench.admissions_server    one JSON line of a plan on stdin, one of an answer on stdout; ends with stdin

`PLAIN` is an endpoint as one writes it with the framework; `SHORT` one that takes the short way that admission takes too (no
router, but a request id and metrics). Neither exists anywhere else.
"""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any, Final

from litestar import post

from api.answers import Answer, json_answer
from api.app import create_app
from api.auth import Scope, add_token, mint_token
from api.operations import AnswerSpec, Call, Operation
from api.server import make_server, run
from deployment import wiring
from deployment.fixture_run import store_fixture_snapshot
from deployment.logs import set_up_logs
from deployment.settings import load_settings
from deployment.storage import blob_store

PLAIN: Final = "/bench/plain"
SHORT: Final = "/bench/short"


@post(PLAIN, status_code=202)
async def plain() -> dict[str, str]:
    """Nothing, as the framework's own."""
    return {}


async def short(call: Call) -> Answer:
    """Nothing, on the short way."""
    return json_answer({}, 202)


def short_operation() -> Operation:
    """`short` as an operation."""
    return Operation(
        name="benchShort",
        method="POST",
        path=SHORT,
        summary="",
        answers=(AnswerSpec(status=202, description=""),),
        handler=short,
    )


async def serve(plan: dict[str, Any]) -> None:
    """Serve until stdin ends."""
    folder = Path(plan["folder"])
    tokens_file = folder / "tokens.json"
    token, entry = mint_token("bench", [Scope.RUNS_WRITE])
    add_token(tokens_file, entry)
    environment = {
        "FINAZ_POSTGRES_DSN": plan["dsn"],
        "FINAZ_DATA_DIR": str(folder),
        "FINAZ_TOKENS_FILE": str(tokens_file),
    }
    settings = load_settings(environment)
    snapshot = store_fixture_snapshot(blob_store(settings))

    def ready(port: int) -> None:
        print(json.dumps({"port": port, "token": token, "snapshot": snapshot}), flush=True)

    async with wiring.api_parts(settings) as parts:
        app = create_app(parts, [short_operation()])
        app.register(plain)
        server = make_server(app, on_ready=ready)
        server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign] # its life is that of stdin
        serving = asyncio.create_task(server.serve())
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving


def main() -> None:
    """Read the plan and serve."""
    plan = json.loads(sys.stdin.readline())
    set_up_logs("info", "json", "api")
    run(serve(plan))


if __name__ == "__main__":
    main()
