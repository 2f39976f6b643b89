"""Exports written to files and taken in from them, with progress."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

import msgspec

from deployment.cli.documents import write_lines
from deployment.problems import FileUnavailableError
from deployment.progress import Progress
from deployment.settings import load_client_settings, load_settings
from services.log_export import LINE_BYTES_MAX, ExportSource, Head

_HEAD = msgspec.json.Decoder(Head)


def exported(
    stream: str | None, first: int, last: int | None, output: str | None, *, direct: bool, quiet: bool
) -> dict[str, Any]:
    """Write an export to a file (whole or not at all) or to standard output; its head. `direct`: from the database itself."""
    with ExitStack() as stack:
        lines = _direct(stack, stream, first, last) if direct else _through_api(stack, stream, first, last)
        first_line = next(lines)
        head = _HEAD.decode(first_line)
        progress = stack.enter_context(Progress("events", head.events, quiet=quiet or output is None))
        counted = chain((first_line,), _counted(lines, progress, head))
        if output is None:
            sys.stdout.buffer.writelines(counted)
            sys.stdout.buffer.flush()
        else:
            write_lines(counted, output)
    document: dict[str, Any] = msgspec.to_builtins(head)
    return document


def imported(file: str, *, quiet: bool) -> dict[str, Any]:
    """Take in the log of a file (`-`: standard input); its head. Raises what `import_log` raises, and `FileUnavailableError`."""
    from services.store.log_import import import_log

    dsn = load_settings().required_postgres_dsn()
    with ExitStack() as stack:
        try:
            source = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
        except OSError as error:
            raise FileUnavailableError(f"it cannot be read: {error.strerror}", at=file, expected="an export") from error
        progress = stack.enter_context(Progress("events", quiet=quiet))
        lines = iter(lambda: source.readline(LINE_BYTES_MAX), b"")
        head = import_log(dsn, lines, progress.reached)
    document: dict[str, Any] = msgspec.to_builtins(head)
    return document


def _direct(stack: ExitStack, stream: str | None, first: int, last: int | None) -> Iterator[bytes]:
    from functools import partial

    from services.store.log_snapshot import log_snapshot

    opened = ExportSource(partial(log_snapshot, load_settings().required_postgres_dsn())).open(stream, first, last)
    stack.callback(opened.close)
    return opened.lines


def _through_api(stack: ExitStack, stream: str | None, first: int, last: int | None) -> Iterator[bytes]:
    from deployment.inspection_client import InspectionClient

    settings = load_client_settings()
    client = stack.enter_context(InspectionClient(settings.api_url, settings.token))
    return client.export(stream, first, last)


def _counted(lines: Iterator[bytes], progress: Progress, head: Head) -> Iterator[bytes]:
    """The lines, and an error instead of an end that comes too early."""
    done = 0
    for line in lines:
        yield line
        done += 1
        progress.reached(done)
    if done != head.events:
        raise FileUnavailableError(f"the export broke off after {done} events", at="export", expected=str(head.events))
