"""`docs/cli.md`, written from the commands themselves; a test holds the page to them."""

from collections.abc import Iterator

import click

_HEAD = """# Commands

`finaz` covers what the HTTP API does, through it, and starts the processes. Answers go to standard output, all else to standard
error. With `--json` an answer is one line of JSON, an error one line that is a problem document. Exit status: 0 only if what was
asked holds, 2 for wrong usage, 1 otherwise. Commands about runs find the API by `FINAZ_API_URL` and show it the token in
`FINAZ_TOKEN`. This page is generated from the commands (`pytest tests/unit/deployment/test_cli.py --update-goldens`).
"""


def cli_page(root: click.Group) -> str:
    """The page: every command with its usage, what it does, its options and an example."""
    return _HEAD + "".join(_section(path, command) for path, command in walk(root))


def walk(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group with its path, groups before what is in them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(("finaz", *path))
    help_text = " ".join((command.help or "").split("\n\n")[0].split())
    if isinstance(command, click.Group) and not command.invoke_without_command:
        return f"\n## `{name}`\n\n{help_text}\n"
    arguments = "".join(
        f" {p.make_metavar(click.Context(command))}" for p in command.params if isinstance(p, click.Argument)
    )
    more = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")[1:])
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    example = " ".join((command.epilog or "").removeprefix("Example: ").split())
    level = "##" if len(path) == 1 else "###"
    parts = [f"\n{level} `{name}{arguments}`\n\n{help_text}\n"]
    if more:
        parts.append(f"\n{more}\n")
    parts.append("\n| option | meaning |\n| --- | --- |\n" + "".join(map(_option, options)))
    parts.append(f"\n```\n{example}\n```\n")
    return "".join(parts)


def _option(option: click.Option) -> str:
    context = click.Context(click.Command("any"))
    metavar = "" if option.is_flag else f" {option.make_metavar(context)}"
    default = f" Default: {option.default}." if option.show_default and not option.is_flag else ""
    names = ", ".join(option.opts)
    required = " Required." if option.required else ""
    text = f"`{names}{metavar}` | {option.help}{default}{required}"
    return "| " + text.replace("|", "\\|").replace("` \\| ", "` | ", 1) + " |\n"
