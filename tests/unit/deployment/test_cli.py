"""The command line as a whole: every command is described, answers `--help`, and fails in one way."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from deployment.cli import COMMANDS, main, runs
from deployment.cli.documents import combinations, write_out
from deployment.cli.page import cli_page, walk

ALL = list(walk(main))
IDS = [" ".join(path) for path, _ in ALL]


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
def test_every_command_answers_help(path: tuple[str, ...], command: click.Command) -> None:
    """`--help` of every command and group names it, says what it does, and describes each of its options."""
    context = click.Context(main, info_name="finaz")
    for name, step in zip(path, [c for p, c in ALL if p == path[: len(p)]], strict=True):
        context = click.Context(step, info_name=name, parent=context)
    text = command.get_help(context)
    assert " ".join(("finaz", *path)) in text
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{parameter.opts} says nothing"


@pytest.mark.parametrize(
    ("path", "command"), [(p, c) for p, c in ALL if not isinstance(c, click.Group)], ids=lambda value: str(value)[:40]
)
def test_every_command_has_an_example_and_json(path: tuple[str, ...], command: click.Command) -> None:
    """Every command that does something shows an example of itself, and answers machines."""
    assert command.epilog, "an example belongs in the epilog"
    assert " ".join(("finaz", *path)) in command.epilog
    assert any("--json" in parameter.opts for parameter in command.params)


def test_summaries_are_the_commands_own() -> None:
    """The line that the group shows of a command is how the command's own help begins."""
    for name, place in COMMANDS.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert (command.help or "").replace("\n", " ").startswith(place.summary.rstrip(".")), name


def test_the_page_is_generated(golden: Callable[[str, Any], None]) -> None:
    """`docs/cli.md` is what the commands say."""
    golden("docs/cli.md", cli_page(main))


def test_help_loads_no_command() -> None:
    """`finaz --help` answers without importing a driver, a server, or numerics: it must answer at once."""
    code = (
        "import sys\nfrom deployment.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'httpx', 'litestar', 'uvicorn', 'psycopg', 'numpy', 'numba', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3], stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("arguments", [["nosuch"], ["run", "nosuch"], ["run", "get"], ["run", "list", "--limit", "x"]])
def test_wrong_usage_is_one_sentence_with_status_2(arguments: list[str]) -> None:
    """A misspelt command, a missing argument and a bad value end with status 2 and a sentence that says which."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("finaz: USAGE_INVALID at finaz")
    assert result.stdout == ""


def test_wrong_usage_is_a_problem_document_with_json() -> None:
    """With `--json` the same error is a problem document on standard error."""
    result = CliRunner().invoke(main, ["run", "list", "--json", "--limit", "x"])
    assert result.exit_code == 2
    problem = json.loads(result.stderr)
    assert problem["code"] == "USAGE_INVALID"
    assert problem["at"] == "finaz run list"
    assert "limit" in problem["detail"]


def test_combinations_are_the_product_of_all_settings() -> None:
    """`--set` twice: every combination once, values as JSON where they are."""
    assert combinations(("a.x=1,2", "b.y=on,0.5")) == [
        {"a": {"x": 1}, "b": {"y": "on"}},
        {"a": {"x": 1}, "b": {"y": 0.5}},
        {"a": {"x": 2}, "b": {"y": "on"}},
        {"a": {"x": 2}, "b": {"y": 0.5}},
    ]
    assert combinations(()) == [{}]


def test_an_output_that_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    """A pipe (or a device) is not replaced by a file, a link stays a link, a file is replaced as a whole."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    target.write_bytes(b"before")
    link.symlink_to(target)
    try:
        write_out(b"to the pipe", str(pipe), binary=True)
        assert os.read(reader, 100) == b"to the pipe"
    finally:
        os.close(reader)
    write_out(b"behind the link", str(link), binary=True)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert target.read_bytes() == b"behind the link"
    assert {file.name for file in tmp_path.iterdir()} == {"pipe", "link", "target"}


def test_a_key_needs_an_instant_of_its_own() -> None:
    """With "now" the same command would be another request each time, and the key be refused as used."""
    with pytest.raises(click.UsageError, match="--as-of"):
        runs._key("k", None)
    assert runs._key("k", "2026-01-06T00:00:00Z") == "k"
    assert runs._key(None, None) != runs._key(None, None)
