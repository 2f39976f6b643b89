"""The runbooks say what there is: every command, option, metric and kind of alert in them exists, and none is left out."""

import re
import shlex
from pathlib import Path

import click

from api.metrics import METRIC_NAMES
from deployment.cli import main
from domain.discrepancies.messages import DiscrepancyKind
from services.process_managers import orphan_recovery, reconciler

PAGE = (Path(__file__).parents[3] / "docs" / "runbooks.md").read_text("utf-8")


def commands() -> list[list[str]]:
    """Each `finaz …` of the shell examples, as arguments; settings before it are left out."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line.partition("finaz ")[2], comments=True) for line in lines if "finaz " in line]


def test_every_command_and_option_exists() -> None:
    """Each example is a command with the arguments and options that it takes."""
    assert len(commands()) > 30
    for arguments in commands():
        command: click.Command = main
        rest = list(arguments)
        while isinstance(command, click.Group):
            found = command.get_command(click.Context(command), rest[0])
            assert found is not None, arguments
            command, rest = found, rest[1:]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known, arguments
        if "…" not in rest and "--limit" not in rest:  # left to the reader, and POSITION_MINUS_1
            command.make_parser(click.Context(command)).parse_args(list(rest))


def test_metrics_and_kinds_and_commands_of_managers_are_all_there() -> None:
    """What can page somebody has a section or a line of its own."""
    assert set(re.findall(r"finaz_\w+", PAGE)) <= set(METRIC_NAMES)
    headings = "".join(line for line in PAGE.splitlines() if line.startswith("#"))
    assert [kind.value for kind in DiscrepancyKind if kind.value not in headings] == []
    names = (orphan_recovery.RECOVER, orphan_recovery.EXPIRE, reconciler.VERIFY, reconciler.SWEEP, "react")
    assert [name for name in names if f"| `{name}` |" not in PAGE] == []
