"""`tercio policy`."""

from __future__ import annotations

from typing import Final

import click

from tercio.cli import human, sharing
from tercio.cli.errors import ExitCode
from tercio.cli.output import Output, output_options, show_list, show_one, write_body
from tercio.cli.policies import capacity_of, diff_policies, send_policy
from tercio.cli.policy_shadow import read_policy_file, shadow_group
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session

_OVERCOMMIT: Final = click.option(
    "--overcommit", is_flag=True, help="Allow guarantees above what the cluster has, and warn."
)


@click.group(cls=Noun, default="show")
def command() -> None:
    """Check, plan, show and replace the policy: the queue tree and the rules."""


@command.command(
    "show",
    examples="""
    tercio policy show > policy.yaml
    tercio policy show --version 3
    """,
)
@click.option("--version", type=click.IntRange(0), metavar="N", help="An earlier version.")
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
    "check",
    examples="""
    tercio policy check policy.yaml                     # against the running server, if any
    tercio policy check policy.yaml --capacity H100:64  # without one
    """,
)
@click.argument("file", metavar="FILE|-", type=click.Path())
@click.option(
    "--capacity",
    metavar="H100:64,...|none",
    help="What guarantees may come to; default: what the running server has.",
)
@_OVERCOMMIT
@pass_session
def check(session: Session, file: str, capacity: str | None, *, overcommit: bool) -> None:
    """Check a policy file; needs no server. Errors name the line and a fix.

    Guarantees are compared with the devices of the running server, when one answers.
    """
    from tercio.formats.policy import read_policy
    from tercio.model.queue import walk_queues
    from tercio.model.shape import exceeds, shape_levels
    from tercio.sched.words import amount_words

    text = read_policy_file(file)
    source = _source(file)
    levels = read_policy(text, source=source).topology
    have = capacity_of(session, capacity, levels)
    amounts, domains = (None, None) if have is None else have
    policy = read_policy(
        text, source=source, capacity=amounts, domains=domains, overcommit=overcommit
    )
    excess = None if amounts is None else exceeds(policy.queues, amounts, domains)
    if excess is not None:
        resource, total, there = excess
        session.warn(
            f"guarantees of {amount_words(resource, total)} are above the "
            f"{amount_words(resource, there)} that the cluster has"
        )
    count = human.quantity(len(walk_queues(policy)), "queue")
    compared = "" if have is not None else "; no capacity to compare guarantees with"
    shapes = [level for level in shape_levels(policy.queues) if level not in (domains or {})]
    if have is not None and shapes:
        compared = f"; whole {shapes[0]}s are compared by 'policy plan' and 'policy set'"
    session.note(f"{source} is a valid policy with {count}{compared}")


@command.command(
    "plan",
    examples="""
    tercio policy plan policy.yaml
    tercio policy plan policy.yaml -o json
    """,
)
@click.argument("file", metavar="FILE|-", type=click.Path())
@_OVERCOMMIT
@output_options
@pass_session
def plan(session: Session, file: str, output: Output, *, overcommit: bool) -> int:
    """Show what a policy would do, without putting it in force.

    The real scheduler decides on the cluster as it is now: which running jobs would be stopped
    and for whom, which waiting ones would start, and every queue's share before and after. Exit
    code 0: it would stop no job; 7: it would; 4: it would strand a job, and 'set' refuses it.
    """
    import msgspec

    from tercio.model.sharing_views import PolicyPlanView

    text = read_policy_file(file)
    request = {"file": text, "source": _source(file), "overcommit": overcommit}
    body = session.post("/v1/policy/plan", msgspec.json.encode(request))
    view = msgspec.json.decode(body, type=PolicyPlanView)
    for warning in view.warnings:
        session.warn(warning)
    if output.is_table and not output.fields:
        diff_policies(session, session.client.policy(), text, is_printed=True)
    show_one(session, output, sharing.POLICY_PLANS, body, lambda v: sharing.policy_plan(session, v))
    return ExitCode.INFEASIBLE if view.evicts else ExitCode.OK


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
@_OVERCOMMIT
@pass_session
def set_policy(
    session: Session, file: str, *, if_version: int | None, is_plan: bool, overcommit: bool
) -> None:
    """Put the policy of a file in force and show what it changed.

    All of it or nothing: an edit of a version that is not in force any more is refused.
    """
    view, text = session.client.policy(), read_policy_file(file)
    send_policy(
        session,
        view,
        text,
        source=_source(file),
        if_version=if_version,
        is_plan=is_plan,
        overcommit=overcommit,
    )


@command.command("history", examples="tercio policy history")
@output_options
@pass_session
def history(session: Session, output: Output) -> None:
    """List the versions of the policy, newest first, with what each changed."""
    pages = session.fetch_pages("/v1/policy/history")
    show_list(session, output, sharing.versions(session), pages)


@command.command("rollback", examples="tercio policy rollback 3")
@click.argument("version", metavar="VERSION", type=click.IntRange(0))
@click.option("--if-version", type=int, metavar="N", help="Refuse when the policy is not at N.")
@click.option("--plan", "is_plan", is_flag=True, help="Only show the change.")
@_OVERCOMMIT
@pass_session
def rollback(
    session: Session, version: int, *, if_version: int | None, is_plan: bool, overcommit: bool
) -> None:
    """Put an earlier version of the policy in force again, as a new version.

    Version 0 is what a fresh server starts with.
    """
    from tercio.formats.policy import write_policy

    client = session.client
    old, view = client.policy(version=version), client.policy()
    send_policy(
        session,
        view,
        write_policy(old.policy),
        source=f"version {version}",
        if_version=if_version,
        is_plan=is_plan,
        overcommit=overcommit,
    )


def _source(file: str) -> str:
    return "stdin" if file == "-" else file


command.add_command(shadow_group)
