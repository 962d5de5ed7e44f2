"""`tercio completion`."""

from __future__ import annotations

import click

from tercio.cli.output import write
from tercio.cli.verbs import Verb, Word


@click.command(
    cls=Verb,
    examples="""
    eval "$(tercio completion bash)"      # in ~/.bashrc
    eval "$(tercio completion zsh)"       # in ~/.zshrc
    tercio completion fish > ~/.config/fish/completions/tercio.fish
    """,
)
@click.argument("shell", metavar="bash|zsh|fish", type=Word("shell", ("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell. Jobs, nodes and queues complete by live names."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three shells"
    root = ctx.find_root().command
    script = kind(root, {}, "tercio", "_TERCIO_COMPLETE")
    # `source` of click would run bash to ask for its version; the template needs no check.
    write((script.source_template % script.source_vars()).strip())
