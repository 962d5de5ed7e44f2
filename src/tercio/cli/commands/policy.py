"""`tercio policy`."""

from __future__ import annotations

import sys

import click

from tercio.cli.output import write_body
from tercio.cli.policies import send_policy
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session


@click.group(cls=Noun, default="show")
def command() -> None:
    """Show and replace the policy: the queue tree and the rules."""


@command.command(
    "show",
    examples="""
    tercio policy show > policy.yaml
    tercio policy show --version 3
    """,
)
@click.option("--version", type=click.IntRange(1), metavar="N", help="An earlier version.")
@click.option(
    "-o",
    "--output",
    "form",
    type=Word("format", ("yaml", "json")),
    default="yaml",
    help="The policy file, or the API body.",
)
@pass_session
def show(session: Session, version: int | None, form: str) -> None:
    """Print the policy in force as a policy file."""
    if form == "json":
        write_body(session.fetch("/v1/policy", version=version))
        return
    from tercio.formats.policy import write_policy

    view = session.client.policy(version=version)
    click.echo(f"# version {view.version}")
    click.echo(write_policy(view.policy), nl=False)


@command.command(
    "set",
    examples="""
    tercio policy set policy.yaml --plan
    tercio policy set policy.yaml --if-version 4
    """,
)
@click.argument("file", metavar="FILE|-", type=click.Path())
@click.option("--if-version", type=int, metavar="N", help="Refuse when the policy is not at N.")
@click.option("--plan", "is_plan", is_flag=True, help="Only show the change.")
@pass_session
def set_policy(session: Session, file: str, *, if_version: int | None, is_plan: bool) -> None:
    """Put the policy of a file in force and show what it changed."""
    if file == "-":
        text = sys.stdin.read()
    else:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    view = session.client.policy()
    send_policy(session, view, text, if_version=if_version, is_plan=is_plan)
