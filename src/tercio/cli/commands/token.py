"""`tercio token`."""

from __future__ import annotations

import click

from tercio.cli import tables
from tercio.cli.output import Output, output_options, show_list, write
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session
from tercio.model.identity import Role
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
    "create", examples="tercio token create --user ana --role user --group nlp --expires 90d"
)
@click.option("--user", required=True, metavar="USER", help="Whom it stands for.")
@click.option(
    "--role",
    type=Word("role", tuple(str(role) for role in Role)),
    default="user",
    help="What it may do.",
)
@click.option("--tenant", default="default", metavar="TENANT", help="Who pays.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="For rules of queues.")
@click.option("--expires", metavar="TIME", help="Ends after this long, such as 90d.")
@pass_session
def create(
    session: Session,
    *,
    user: str,
    role: str,
    tenant: str,
    groups: tuple[str, ...],
    expires: str | None,
) -> None:
    """Create a token and print its secret, once."""
    until_s = None
    if expires is not None:
        until_s = session.now_s() + parse_duration_s(expires, field="--expires")
    view = session.client.create_token(
        user, role=role, tenant=tenant, groups=groups, expires_s=until_s
    )
    write(view.secret or "")
    session.note(
        f"token {view.token_id} of {view.user} ({view.role}); the secret is shown only now.\n"
        "its owner exports it as TERCIO_TOKEN, or names a file of it with --token-file"
    )


@command.command("revoke", examples="tercio token revoke tok-4f1c")
@click.argument("token_ids", metavar="ID...", nargs=-1, required=True)
@pass_session
def revoke(session: Session, token_ids: tuple[str, ...]) -> None:
    """Refuse tokens from now on."""
    for token_id in token_ids:
        session.client.revoke_token(token_id)
        session.note(f"revoked {token_id}")
