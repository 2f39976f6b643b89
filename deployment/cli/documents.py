"""Documents that commands take as arguments and hand out: flows, parameters, results."""

import os
import sys
import tempfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, Final

import click

from domain.canonical import is_address, parse
from domain.errors import CanonicalError

DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a document read from a file or standard input."""


def flow_argument(text: str) -> Any:
    """A flow or schedule as the API takes it: an address as it stands, or the JSON in the file of that name (`-`: stdin)."""
    return text if is_address(text) else _parsed(_read(text), text)


def document_argument(text: str) -> Any:
    """JSON given as it stands (it begins with a bracket), or in the file of that name (`-`: standard input)."""
    return _parsed(text.encode(), "argument") if text.lstrip()[:1] in ("[", "{") else _parsed(_read(text), text)


def combinations(settings: tuple[str, ...]) -> list[dict[str, dict[str, Any]]]:
    """All combinations of `NODE.PARAM=V,V,…`, as {node: {param: value}}; values are JSON where they can be, else text."""
    axes: list[list[tuple[str, str, Any]]] = []
    for setting in settings:
        place, equals, values = setting.partition("=")
        node, dot, parameter = place.partition(".")
        if not (equals and dot and node and parameter and values):
            raise click.UsageError(f"--set {setting!r}: expected NODE.PARAM=VALUE,VALUE…", click.get_current_context())
        axes.append([(node, parameter, _value(text)) for text in values.split(",")])
    made = []
    for choice in product(*axes):
        one: dict[str, dict[str, Any]] = {}
        for node, parameter, value in choice:
            one.setdefault(node, {})[parameter] = value
        made.append(one)
    return made


def write_out(data: bytes, file: str | None, *, binary: bool) -> None:
    """Write an answer to a file (beside its place, then renamed, so that a crash leaves no half) or to standard output.

    A device or a pipe is written to, never replaced; a link stays, and what it points to is written.
    """
    if file is None:
        if binary and sys.stdout.isatty():
            raise click.UsageError("binary data is not written to a terminal; give --output FILE")
        sys.stdout.buffer.write(data if binary or data.endswith(b"\n") else data + b"\n")
        sys.stdout.buffer.flush()
        return
    path = Path(os.path.realpath(file))
    if path.exists() and not path.is_file():
        path.write_bytes(data)
    else:
        _replace(path, (data,))
    click.echo(f"{len(data)} bytes to {file}", err=True)


def write_lines(lines: Iterable[bytes], file: str) -> None:
    """Write lines to a file as they are made, beside its place, then renamed: a crash leaves no half."""
    path = Path(os.path.realpath(file))
    if path.exists() and not path.is_file():
        with open(path, "wb") as out:
            out.writelines(lines)
    else:
        _replace(path, lines)


def _replace(path: Path, parts: Iterable[bytes]) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(name: str) -> bytes:
    if name == "-":
        data = sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
    else:
        with open(name, "rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CanonicalError("the document is too long", at=name, expected=f"at most {DOCUMENT_BYTES_MAX} bytes")
    return data


def _parsed(data: bytes, name: str) -> Any:
    try:
        return parse(data)
    except CanonicalError as error:
        raise CanonicalError(error.detail, at=f"{name}, {error.at}", expected=error.expected) from None


def _value(text: str) -> Any:
    try:
        return parse(text)
    except CanonicalError:
        return text
