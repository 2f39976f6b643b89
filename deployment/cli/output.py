"""What every command shares: how it answers people and machines, and how it fails.

Answers go to standard output, everything else (progress, errors) to standard error. With `--json` an answer is one line of
canonical JSON, and an error one line that is a problem document (RFC 9457). What must stay true: the exit status is 0 only if
what was asked holds; an error names its code, its place and what was expected, in one sentence.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from deployment.problems import UsageInvalidError, problem_document, problem_of, sentence
from domain.canonical import canonical

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

WIDTH_UNBOUND: Final = 400
"""Columns assumed where the output is no terminal, so that nothing is folded in a file or a pipe."""

_HINTS: Final = {
    "UNAUTHENTICATED": "The token is that of FINAZ_TOKEN: `finaz up` prints one, `finaz token create` makes one.",
    "IMPORT_INVALID": "Options such as --instrument, --event-time, --zone and --value say how the file is read: --help has all.",
    "FINAZ_POSTGRES_DSN": "This command works on the database itself; a running `finaz up` prints the setting.",
    "FINAZ_KAFKA_BOOTSTRAP": "Some commands take --bootstrap instead; a running `finaz up` prints the setting.",
    "FINAZ_CAS_DIR": "This command works on the blobs themselves; a running `finaz up` prints FINAZ_DATA_DIR.",
    "FINAZ_TOKENS_FILE": "Of a running `finaz up` it is tokens.json in its folder; --file names it, too.",
    "FINAZ_SEAL_PUBLIC_KEY_FILE": "--public-key names a file with it; `finaz seal public` prints it, where the private one is.",
}
"""What to do about an error at the command line, by its code or place, where the error itself cannot say so."""

_JSON: Final = "finaz.json"
_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(command: _F) -> _F:
    """Decorator: the option `--json`; ask `wants_json()` for it."""
    return click.option(
        "--json",
        _JSON.replace(".", "_"),
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Answer in JSON, one document a line; errors as problem documents.",
    )(command)


def wants_json() -> bool:
    """Whether the command that runs now was given `--json`."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(_JSON))


def answer(value: Any, human: Callable[[], None]) -> None:
    """Answer with `value` as a JSON line, or for people through `human`."""
    if wants_json():
        json_line(value)
    else:
        human()


def json_line(value: Any) -> None:
    """Write one JSON document as a line, at once."""
    sys.stdout.buffer.write(canonical(value) + b"\n")
    sys.stdout.buffer.flush()


def console(*, error: bool = False) -> "Console":
    """The terminal: standard output, or standard error for progress."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    return Console(
        file=stream, highlight=False, soft_wrap=False, emoji=False, width=None if stream.isatty() else WIDTH_UNBOUND
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table for people; None shows as a dash. Cells are plain text: nothing in them is markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(*columns, title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in made.columns:
        column.overflow = "fold"
    for row in rows:
        made.add_row(*(Text("–" if cell is None else plain(cell)) for cell in row))
    _print(made)


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values in two columns for people; a value of None is left out."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2))
    for name, value in pairs:
        if value is not None:
            made.add_row(Text(name, style="bold"), Text(plain(value), overflow="fold"))
    _print(made)


def plain(value: Any) -> str:
    """A value as a person reads it: lists and members beside each other, what is nested deeper as JSON."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_inner(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_inner(item)}" for name, item in value.items()) or "-"
    return str(value)


def _inner(value: Any) -> str:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "-" if value in (None, "") else plain(value)


def first(found: Iterable[Any], limit: int) -> list[Any]:
    """The first `limit` of what was asked for with a limit of one more; people are told if that is not all."""
    taken = list(found)
    if len(taken) > limit:
        note(f"these are the first {limit}; --limit shows more")
    return taken[:limit]


def _print(made: Any) -> None:
    """Print something of rich's without the blanks that fill its lines up."""
    here = console()
    with here.capture() as captured:
        here.print(made)
    click.echo("\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines()))


def note(text: str) -> None:
    """Say something on the side, to people only."""
    if not wants_json():
        click.echo(text, err=True)


# ------------------------------------------------------------------------------------------------ failing


def fail(error: BaseException, *, as_json: bool) -> NoReturn:
    """End the process with the error's status and its sentence, or its problem document, on standard error."""
    tell_error(error, as_json=as_json)
    sys.exit(EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED)


def tell_error(error: BaseException, *, as_json: bool) -> None:
    """Write the error's sentence, or its problem document, on standard error."""
    problem = _usage_problem(error) if isinstance(error, click.ClickException) else problem_of(error)
    if as_json:
        line = json.dumps(problem, ensure_ascii=False, sort_keys=True)  # may quote what has no canonical form
        sys.stderr.buffer.write(line.encode("utf-8", "replace") + b"\n")
    else:
        click.echo(f"finaz: {sentence(problem)}", err=True)
        hint = _HINTS.get(str(problem.get("code"))) or _HINTS.get(str(problem.get("at")))
        if hint is not None:
            click.echo(hint, err=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"Try '{error.ctx.command_path} --help'.", err=True)


def _usage_problem(error: click.ClickException) -> dict[str, Any]:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return problem_document(
        UsageInvalidError.code, error.format_message(), at=context.command_path if context else None
    )


def _remember(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_JSON] = True
