"""The reference of the command line as Markdown, made from the commands themselves.

`python -m tercio.cli.reference > docs/cli.md`; a test holds the file to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from tercio.cli.errors import MEANINGS
from tercio.cli.main import SECTIONS, cli
from tercio.cli.verbs import GLOBAL_OPTIONS, Verb


def render() -> str:
    """Return the whole reference."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    root = click.Context(cli, info_name="tercio")
    yield "# The command line"
    yield ""
    yield "Made from the commands by `python -m tercio.cli.reference`; do not edit."
    yield ""
    yield "Data goes to stdout; notes, progress and errors to stderr. Errors are at most four"
    yield "lines. `tercio help output` describes the formats of `-o`, `tercio help environment`"
    yield "the variables."
    yield ""
    yield "## Options of every command"
    yield ""
    yield from _options(root, list(GLOBAL_OPTIONS))
    yield ""
    yield "## Exit codes"
    yield ""
    yield "| code | meaning |"
    yield "|---|---|"
    for code, meaning in MEANINGS.items():
        yield f"| {code.value} | {meaning} |"
    for title, table in SECTIONS.items():
        yield ""
        yield f"## {title}"
        for name in table:
            command = cli.get_command(root, name)
            assert command is not None, f"the table names {name}"
            yield from _command(command, click.Context(command, info_name=name, parent=root))


def _command(command: click.Command, ctx: click.Context) -> Iterator[str]:
    yield ""
    yield f"### {ctx.command_path}"
    yield ""
    yield _plain(command.help or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            sub = command.get_command(ctx, name)
            assert sub is not None, f"the group names {name}"
            yield from _command(sub, click.Context(sub, info_name=name, parent=ctx))
        return
    yield ""
    yield "```"
    yield f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}"
    if isinstance(command, Verb) and command.examples:
        yield ""
        yield from command.examples
    yield "```"
    own = [param for param in command.params if isinstance(param, click.Option)]
    rows = list(_options(ctx, own))
    if rows:
        yield ""
        yield from rows


def _options(ctx: click.Context, params: list[click.Option]) -> Iterator[str]:
    records = [record for param in params if (record := param.get_help_record(ctx)) is not None]
    if records:
        yield "| option | meaning |"
        yield "|---|---|"
    for names, text in records:
        cell = names.replace("|", "\\|")
        yield f"| `{cell}` | {text.replace('|', chr(92) + '|')} |"


def _plain(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


if __name__ == "__main__":
    sys.stdout.write(render())
