"""`tercio help`."""

from __future__ import annotations

import click

from tercio.cli.output import write
from tercio.cli.topics import TOPICS
from tercio.cli.verbs import Root, Verb
from tercio.errors import UserError, did_you_mean


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return the topics and commands that begin so, then the verbs of a noun."""
    root_ctx = ctx.find_root()
    here: click.Command | None = root_ctx.command
    for word in ctx.params.get("words") or ():
        here = here.get_command(root_ctx, word) if isinstance(here, click.Group) else None
    if not isinstance(here, click.Group):
        return []
    topics = [] if ctx.params.get("words") else list(TOPICS)
    return [word for word in [*topics, *here.list_commands(ctx)] if word.startswith(incomplete)]


@click.command(
    cls=Verb, examples="tercio help exit-codes\ntercio help job-file\ntercio help submit"
)
@click.argument("words", metavar="[TOPIC|COMMAND...]", nargs=-1, shell_complete=_complete)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain exit-codes, environment, job-file or output; or show the help of a command."""
    root_ctx = ctx.find_root()
    root = root_ctx.command
    assert isinstance(root, Root)
    if not words:
        write(root.get_help(root_ctx))
        write("\nTopics:\n" + "\n".join(f"  tercio help {topic}" for topic in TOPICS))
        return
    if words[0] in TOPICS:
        write(TOPICS[words[0]]())
        return
    found: click.Command | None = root
    here = root_ctx
    for word in words:
        found = found.get_command(here, word) if isinstance(found, click.Group) else None
        if found is None:
            known = [*TOPICS, *root.list_commands(root_ctx)]
            hint = did_you_mean(word, known) or f"topics: {', '.join(TOPICS)}"
            raise UserError(f"there is no help on '{word}'", hint=hint)
        here = click.Context(found, info_name=word, parent=here)
    write(found.get_help(here) if found is not None else "")
