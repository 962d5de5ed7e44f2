"""`tercio exec`."""

from __future__ import annotations

import sys

import click

from tercio.cli.completing import Name
from tercio.cli.names import find_job
from tercio.cli.remote import run_remote, terminal_size
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, after_dashes, pass_session
from tercio.errors import UserError


@click.command(
    cls=Verb,
    takes_argv=True,
    examples="""
    tercio exec job-00001 -- bash
    tercio exec job-00001 --task 3 -- nvidia-smi
    tar c data | tercio exec job-00001 -- tar x
    """,
)
@click.argument("job", metavar="JOB", type=Name("job"))
@click.option("--task", type=click.IntRange(0), default=0, metavar="N", help="In this task.")
@click.option("-T", "--no-terminal", is_flag=True, help="No pseudo-terminal.")
@click.pass_context
@pass_session
def command(session: Session, ctx: click.Context, *, job: str, task: int, no_terminal: bool) -> int:
    """Run a command inside a running task: its user, environment, devices and limits.

    On a terminal it gets one of its own. The exit code is that of the command.
    """
    argv = after_dashes(ctx)
    if not argv:
        raise UserError("no command", hint=f"write 'tercio exec {job} -- bash'")
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not no_terminal
    size = terminal_size()
    remote = session.client.execute(
        find_job(session, job),
        argv,
        task=task,
        has_terminal=has_terminal,
        rows=size.lines,
        columns=size.columns,
    )
    return run_remote(remote, has_terminal=has_terminal)
