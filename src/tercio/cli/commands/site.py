"""`tercio site`: clusters that the server of this machine drives beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from tercio.cli.errors import ExitCode
from tercio.cli.local_server import running_server, state_dir_of
from tercio.cli.output import Column, Listing, Output, output_options, print_facts, show_rows, write
from tercio.cli.session import Session
from tercio.cli.site_options import flags_of, option_names, shown
from tercio.cli.verbs import Noun, Word, pass_session
from tercio.engines.registry import addable_kinds
from tercio.engines.sites import Site, check_name, find_site, read_options, read_sites, write_sites
from tercio.errors import UserError
from tercio.model.ids import SiteName


class SiteRow(msgspec.Struct, frozen=True, kw_only=True):
    """One site as `tercio site list` shows it."""

    name: str
    kind: str
    options: dict[str, Any]
    state: str


LISTING: Listing[SiteRow] = Listing(
    (
        Column("SITE", "name", lambda row: row.name),
        Column("KIND", "kind", lambda row: row.kind),
        Column("STATE", "state", lambda row: row.state),
        Column("OPTIONS", "options", lambda row: shown(row.options), is_flexible=True),
    ),
    SiteRow,
    lambda row: row.name,
    "no site was added; this machine alone runs jobs. See 'tercio site add --help'",
)


@click.group(cls=Noun)
def command() -> None:
    """Add, list, check and remove clusters. `tercio site` alone lists them."""


@command.command("list", examples="tercio site list\ntercio site list -o json")
@output_options
@pass_session
def list_sites(session: Session, output: Output) -> None:
    """List the added sites and whether the server has them."""
    directory = Path(state_dir_of(session, None))
    connected = _connected(directory)
    rows = [_row(site, connected) for site in read_sites(directory)]
    show_rows(session, output, LISTING, [msgspec.Raw(msgspec.json.encode(row)) for row in rows])


@command.command("show", examples="tercio site show hpc")
@click.argument("name", metavar="SITE")
@pass_session
def show(session: Session, name: str) -> None:
    """Show one site with every option, the defaults too."""
    directory = Path(state_dir_of(session, None))
    site = find_site(read_sites(directory), name)
    options = msgspec.to_builtins(read_options(site.kind, site.options))
    facts = [("name", site.name), ("kind", site.kind)]
    facts.append(("state", _row(site, _connected(directory)).state))
    facts += [(key.replace("_", " "), shown({key: value})) for key, value in options.items()]
    print_facts(session, [(key, value) for key, value in facts if value])


@command.command(
    "add",
    examples="""
    tercio site add slurm hpc --spool /shared/tercio
    tercio site add slurm hpc --ssh ana@login.hpc --spool /home/ana/.tercio
    tercio site add slurm hpc --rest http://slurmrestd:6820 --mode delegated
    tercio site add ray lab --address head:6379
    """,
)
@click.argument("kind", metavar="KIND", type=Word("kind of site", addable_kinds()))
@click.argument("name", metavar="NAME")
@pass_session
def add(session: Session, /, *, kind: str, name: str, **given: Any) -> None:
    """Add a cluster; the server connects to it when it starts.

    KIND says which engine drives it. The options that the help names after a kind are of that
    kind alone.
    """
    directory = Path(state_dir_of(session, None))
    sites = read_sites(directory)
    check_name(name, sites)
    options = {key: value for key, value in given.items() if value not in (None, (), False)}
    for key in options:
        if key not in option_names(kind):
            hint = f"see the options of {kind} in 'tercio site add --help'"
            raise UserError(f"--{key.replace('_', '-')} is no option of a {kind} site", hint=hint)
    read_options(kind, options)
    new = Site(
        name=SiteName(name),
        kind=kind,
        options={k: list(v) if isinstance(v, tuple) else v for k, v in options.items()},
        added_s=session.now_s(),
    )
    write_sites(directory, (*sites, new))
    session.note(f"site {name} is added. Try it: tercio site check {name}")
    _say_restart(session, directory, "connects to it")


add.params.extend(flags_of(addable_kinds()))


@command.command("remove", examples="tercio site remove hpc")
@click.argument("name", metavar="SITE")
@pass_session
def remove(session: Session, name: str) -> None:
    """Forget a site. What runs there goes on; nothing on the site is touched."""
    directory = Path(state_dir_of(session, None))
    sites = read_sites(directory)
    gone = find_site(sites, name)
    write_sites(directory, tuple(site for site in sites if site is not gone))
    session.note(f"site {name} is removed; its jobs, if any, are not stopped")
    _say_restart(session, directory, "lets go of it")


@command.command("check", examples="tercio site check hpc\ntercio site check hpc --only logs")
@click.argument("name", metavar="SITE")
@click.option("--user", metavar="USER", help="Run the tiny jobs as this user; default: you.")
@click.option("--only", metavar="TEXT", help="Only the checks with this in their name.")
@click.option("--timeout", "timeout_s", type=float, default=60.0, metavar="SECONDS",
              help="Longest wait for one answer; raise it on a busy cluster.")  # fmt: skip
@pass_session
def check(
    session: Session, *, name: str, user: str | None, only: str | None, timeout_s: float
) -> int:
    """Try a site with tiny jobs, and say what works and what is missing.

    Runs beside the server and touches nothing of its jobs. Exit code 1 when a promise is broken.
    """
    from tercio.cli.site_check import run_site_check

    directory = Path(state_dir_of(session, None))
    site = find_site(read_sites(directory), name)
    tell: Callable[[str], None] = write
    is_well = run_site_check(
        site, directory, user=user or _own_name(), only=only or "", timeout_s=timeout_s, tell=tell
    )
    return ExitCode.OK if is_well else ExitCode.FAILED


def _own_name() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def _connected(directory: Path) -> tuple[str, ...] | None:
    """Return the sites that the running server has, None without a server."""
    from tercio.client import Client

    found = running_server(str(directory))
    if found is None:
        return None
    try:
        secret = (directory / "token").read_text(encoding="utf-8").strip()
        with Client(found.url, secret) as client:
            return tuple(client.server().sites)
    except (UserError, OSError):
        return None


def _row(site: Site, connected: tuple[str, ...] | None) -> SiteRow:
    if connected is None:
        state = "no server runs"
    else:
        state = "in use" if site.name in connected else "after the next start"
    return SiteRow(name=site.name, kind=site.kind, options=site.options, state=state)


def _say_restart(session: Session, directory: Path, what: str) -> None:
    if running_server(str(directory)) is not None:
        session.note(f"the server {what} at its next start: tercio down; tercio up --background")
