"""Logs: one JSON line per thing that happened, on standard error, from our code and from the libraries alike.

What must stay true: a line is one JSON object with `at` (UTC), `level`, `logger` and `event`; context such as run_id, position and
token stands under its own name, bound where it is known (`structlog.contextvars`). Standard output is never written to.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_QUIET: Final = ("httpx", "httpcore", "uvicorn.access", "psycopg.pool", "asyncio", "numba")
"""Loggers of libraries that tell at `info` what our own lines tell already."""


def set_up_logs(level: str, form: str, component: str) -> None:
    """Send structlog's and the standard library's loggers to standard error, with the component's name on each line.

    `form` is `json`, or `console` for people.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer(sort_keys=True, default=str)
    if form == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="at")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _without_colour,
                _component_adder(component),
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[level])
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(LEVELS[level], logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared[:3],
            *shared[4:],
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _without_colour(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """uvicorn says everything twice, once in colour."""
    event.pop("color_message", None)
    return event


def _component_adder(component: str) -> Any:
    def add(_: Any, __: str, event: dict[str, Any]) -> dict[str, Any]:
        event.setdefault("component", component)
        return event

    return add
