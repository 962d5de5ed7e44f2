"""`tercio token`."""

from __future__ import annotations

import click

from tercio.cli import human, tables
from tercio.cli.completing import Name
from tercio.cli.output import Output, output_options, print_table, show_list, write
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session
from tercio.errors import UserError, did_you_mean
from tercio.model.identity import AGENT_PREFIX, Role
from tercio.model.units import parse_duration_s


@click.group(cls=Noun)
def command() -> None:
    """List, create and revoke tokens. `tercio token` alone lists them."""


@command.command("list", examples="tercio token list")
@output_options
@pass_session
def list_tokens(session: Session, output: Output) -> None:
    """List tokens; their secrets are kept by nobody."""
    show_list(session, output, tables.tokens(session), [session.fetch("/v1/tokens")])


@command.command(
    "create",
    examples="""
    tercio token create --user ana --role user --group nlp --expires 90d
    tercio token create --agent n7 > /etc/tercio/agent       # rotate: again, then revoke the old
    """,
)
@click.option("--user", metavar="USER", help="Whom it stands for.")
@click.option("--agent", metavar="NODE", help="For the agent of this node; may do nothing else.")
@click.option(
    "--role",
    type=Word("role", tuple(str(role) for role in Role)),
    default="user",
    help="What it may do.",
)
@click.option("--tenant", default="default", metavar="TENANT", help="Who pays.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="For rules of queues.")
@click.option("--expires", metavar="TIME", help="Ends after this long, such as 90d.")
@click.option("--plan", "is_plan", is_flag=True, help="Only show what it would be.")
@pass_session
def create(
    session: Session,
    *,
    user: str | None,
    agent: str | None,
    role: str,
    tenant: str,
    groups: tuple[str, ...],
    expires: str | None,
    is_plan: bool,
) -> None:
    """Create a token and print its secret, once."""
    if (user is None) == (agent is None):
        raise UserError("a token is for a user or for an agent", hint="give --user or --agent")
    if agent is not None:
        user, role = f"{AGENT_PREFIX}{agent}", Role.VIEWER.value
    assert user is not None
    until_s = None
    if expires is not None:
        until_s = session.now_s() + parse_duration_s(expires, field="--expires")
    if is_plan:
        until = "never ends" if until_s is None else f"ends {human.local_time(until_s)}"
        of = f" in {', '.join(groups)}" if groups else ""
        write(f"would be created: a token of {user}{of} ({role}) of tenant {tenant}; it {until}")
        return
    view = session.client.create_token(
        user, role=role, tenant=tenant, groups=groups, expires_s=until_s
    )
    write(view.secret or "")
    session.note(
        f"token {view.token_id} of {view.user} ({view.role}); the secret is shown only now.\n"
        "its owner exports it as TERCIO_TOKEN, or names a file of it with --token-file"
    )


@command.command("revoke", examples="tercio token revoke tok-4f1c")
@click.argument("token_ids", metavar="ID...", nargs=-1, required=True, type=Name("token"))
@click.option("--plan", "is_plan", is_flag=True, help="Only show which tokens it would be.")
@pass_session
def revoke(session: Session, token_ids: tuple[str, ...], *, is_plan: bool) -> None:
    """Refuse tokens from now on."""
    known = {token.token_id: token for token in session.client.tokens().rows}
    for token_id in token_ids:
        if token_id not in known:
            hint = did_you_mean(token_id, known) or "see 'tercio token list'"
            raise UserError(f"no token is called '{token_id}'", code="not_found", hint=hint)
    if is_plan:
        session.note("would be revoked:")
        rows = [known[token_id] for token_id in token_ids]
        print_table(session, tables.tokens(session).columns, rows)
        return
    for token_id in token_ids:
        session.client.revoke_token(token_id)
        session.note(f"revoked {token_id}")
