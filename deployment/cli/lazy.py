"""A command group whose commands are imported when they are used.

`finaz --help` must answer at once, and a command that talks to the API must not load a database driver. So a group holds, per
command, where it stands and the one line that its help shows; a test checks that line against the command itself.
"""

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class Place(NamedTuple):
    """Where a command stands: `module:attribute`, and the first line of its help."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group that resolves its commands from `places` on use; the order of `places` is the order of the help."""

    def __init__(self, *args: Any, places: Mapping[str, Place], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places = dict(places)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of `places`."""
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, imported now, or None."""
        place = self.places.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from `places`, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in self.places.items()])
