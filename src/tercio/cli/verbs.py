"""The classes every command is made of: lazy groups, global options, examples first in the help."""

# ruff: noqa: ARG002 - click fixes the parameters of the methods that are replaced here.

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

import click

from tercio.cli.errors import ReaderGone
from tercio.cli.session import Session
from tercio.errors import UserError, did_you_mean

pass_session = click.make_pass_decorator(Session)


class Word(click.ParamType):  # type: ignore[type-arg] # no generic before click 8.2
    """One of a few words; a wrong one is answered by the nearest right ones."""

    name = "word"

    def __init__(self, kind: str, words: Sequence[str]) -> None:
        self.kind = kind
        self.words = tuple(words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word, or raise `UserError`."""
        if value in self.words:
            return str(value)
        hint = did_you_mean(str(value), self.words) or f"one of {', '.join(self.words)}"
        where = (
            f"{max(param.opts, key=len)}: " if param is not None and param.param_type_name else ""
        )
        raise UserError(f"{where}'{value}' is not a {self.kind}", hint=hint)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Show the words themselves in the help."""
        return "|".join(self.words)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Complete with the words."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


def _set(attribute: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that keeps a given global option in the session."""

    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        source = ctx.get_parameter_source(param.name or "")
        if source is not None and source.name == "COMMANDLINE":
            setattr(ctx.ensure_object(Session), attribute, value)

    return keep


GLOBAL_OPTIONS: Final[tuple[click.Option, ...]] = (
    click.Option(
        ["--url"],
        metavar="URL",
        expose_value=False,
        callback=_set("url"),
        help="The server; default: TERCIO_URL, the config file, the server on this machine.",
    ),
    click.Option(
        ["--token-file"],
        metavar="FILE",
        expose_value=False,
        callback=_set("token_file"),
        help="File that holds the token; default: TERCIO_TOKEN, the config file, the state dir.",
    ),
    click.Option(
        ["--color"],
        type=Word("colour mode", ("auto", "always", "never")),
        expose_value=False,
        callback=_set("color"),
        help="When to use colour; NO_COLOR and CLICOLOR_FORCE count too.",
    ),
    click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=_set("is_quiet"),
        help="Nothing but data: no notes, no progress.",
    ),
    click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=_set("is_debug"),
        help="Show tracebacks of errors.",
    ),
)


class Verb(click.Command):
    """A command: takes the global options, shows its examples first, may take `-- ARGV`.

    Args:
        examples: command lines for the help, one a line, `# remark` allowed.
        takes_argv: keeps what follows the first `--` as `argv` for `after_dashes`.
    """

    def __init__(
        self, *args: Any, examples: str = "", takes_argv: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(line.strip() for line in examples.strip().splitlines())
        self.takes_argv = takes_argv

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Add the global options to those of the command."""
        own = super().get_params(ctx)
        names = {option for param in own for option in param.opts}
        extra = [option for option in GLOBAL_OPTIONS if not names.intersection(option.opts)]
        return [*own, *extra]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set apart what follows `--` when the command takes it."""
        if self.takes_argv and "--" in args:
            position = args.index("--")
            ctx.meta["tercio.argv"] = tuple(args[position + 1 :])
            args = args[:position]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show `-- COMMAND` in the usage line where it is taken."""
        pieces = super().collect_usage_pieces(ctx)
        return [*pieces, "[-- COMMAND...]"] if self.takes_argv else pieces

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write summary, examples, options, global options."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the command, and that there are global ones."""
        rows = [
            record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            and param not in GLOBAL_OPTIONS
            and (record := param.get_help_record(ctx)) is not None
        ]
        with formatter.section("Options"):
            formatter.write_dl(rows)
        names = ", ".join(option.opts[0] for option in GLOBAL_OPTIONS)
        formatter.write_paragraph()
        formatter.write_text(f"Also everywhere: {names}; see 'tercio --help'.")


def after_dashes(ctx: click.Context) -> tuple[str, ...]:
    """Return what stood after `--`, empty when nothing did."""
    return cast("tuple[str, ...]", ctx.meta.get("tercio.argv", ()))


def unknown_command(
    ctx: click.Context, word: str, known: Sequence[str], meant: str | None = None
) -> NoReturn:
    """Raise the error for a command that does not exist; `meant` says what does that here."""
    path = ctx.command_path
    hint = meant or did_you_mean(word, known) or f"see '{path} --help'"
    raise UserError(f"'{path} {word}' is not a command", hint=hint)


class Noun(click.Group):
    """`tercio node ...`: a group whose name alone means `list`."""

    command_class = Verb

    def __init__(self, *args: Any, default: str = "list", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default verb when none is given."""
        if not ctx.resilient_parsing and (
            not args or (args[0].startswith("-") and args[0] != "--help")
        ):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their whole first sentence."""
        rows = [(name, verb.get_short_help_str(200)) for name, verb in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or answer with the nearest one."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            unknown_command(ctx, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


class Root(click.Group):
    """The top group: knows its commands by name and one line, imports one only to run it.

    Args:
        sections: name and line of each command, by section.
        package: where their modules are.
        other_words: what people of other tools type, and the hint that they get.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, str]],
        package: str,
        other_words: Mapping[str, str],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.package = package
        self.other_words = other_words
        self.summaries = {name: text for table in sections.values() for name, text in table.items()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help when nothing was asked for."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in self.summaries:
            return None
        module = importlib.import_module(f"{self.package}.{cmd_name.replace('-', '_')}")
        return cast("click.Command", module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or answer with the nearest one."""
        known = args[0] in self.summaries or args[0].startswith("-")
        if not known and not ctx.resilient_parsing:
            unknown_command(ctx, args[0], list(self.summaries), self.other_words.get(args[0]))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, without importing them, then the options."""
        width = max(len(name) for name in self.summaries)
        for title, table in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in table.items()])
        click.Command.format_options(self, ctx, formatter)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Complete command names without importing the commands."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, text in self.summaries.items()
            if name.startswith(incomplete)
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Run; a reader that closed our output is no error."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        return answer
