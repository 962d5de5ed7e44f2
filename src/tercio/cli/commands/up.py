"""`tercio up`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click

from tercio.cli.local_server import running_server, wait_until_ready
from tercio.cli.output import write
from tercio.cli.progress import Progress
from tercio.cli.session import Session
from tercio.cli.signing_in import fresh_link, sign_in_link
from tercio.cli.verbs import Verb, pass_session
from tercio.errors import UserError
from tercio.web import is_built

if TYPE_CHECKING:
    from tercio.api.serve import ApiServer
    from tercio.client.discovery import ServerFile
    from tercio.config import Config


@click.command(
    cls=Verb,
    examples="""
    tercio up                        # in the foreground; Ctrl-C stops it, jobs go on
    tercio up --background
    tercio up --port 0 --state-dir ./state
    tercio up --policy new.yaml --shadow    # what would another policy do?
    """,
)
@click.option("--state-dir", metavar="DIR", help="Where it keeps its state.")
@click.option("--host", metavar="ADDRESS", help="Address to bind; default: loopback.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="0 takes a free one.")
@click.option("--sim", "cluster", metavar="8x8", help="Simulate a cluster: a shape or a file.")
@click.option("--run-as", metavar="USER", help="Runs jobs of users unknown here; for root.")
@click.option("--policy", metavar="FILE", help="With --shadow: the policy to run in shadow.")
@click.option("--shadow", is_flag=True, help="Run --policy beside the policy in force.")
@click.option("--background", is_flag=True, help="Return when it is ready.")
@click.option("--timeout", "timeout_s", type=float, default=30.0, hidden=True)
@pass_session
def command(
    session: Session,
    *,
    state_dir: str | None,
    host: str | None,
    port: int | None,
    cluster: str | None,
    run_as: str | None,
    policy: str | None,
    shadow: bool,
    background: bool,
    timeout_s: float,
) -> None:
    """Start the server on this machine: API, scheduler, journal and the local engine.

    A second one on the same state directory is refused. With --policy and --shadow the server
    goes on deciding by the policy in force, runs the other one in the twin beside it, and
    'tercio policy shadow' says where that would have decided differently.
    """
    from tercio.config import load

    shadow_policy = _shadow_policy(policy, is_shadow=shadow)
    flags: dict[str, object] = {
        "state_dir": None if state_dir is None else os.path.abspath(state_dir),
        "server.host": host,
        "server.port": port,
        "local.run_as": run_as,
        "sim.cluster": cluster,
        "shadow.policy": shadow_policy,
        "local.enabled": False if cluster is not None else None,
    }
    config, _ = load(flags, session.environment)
    found = running_server(config.state_dir)
    if found is not None:
        raise UserError(
            f"a server runs already at {found.url} (process {found.pid})",
            code="conflict",
            hint="use it, or stop it with 'tercio down'",
        )
    if background:
        found = start_in_background(session, config, flags, timeout_s=timeout_s)
        write(found.url)
        session.note(f"the server runs (process {found.pid}); stop it with: tercio down")
        if is_built():
            session.url, session.token_file = found.url, os.path.join(config.state_dir, "token")
            session.note(f"web page: {fresh_link(session)}")
        return
    session.note(f"starting the server of {config.state_dir}; Ctrl-C stops it, jobs go on")
    from tercio.api.serve import run_server
    from tercio.web.pages import page_routes

    def tell(server: ApiServer) -> None:
        link = sign_in_link(
            config.server.public_url or server.file.url, server.context.sessions.new_code("")
        )
        session.note(f"web page: {link}")

    # Where no person reads along, a link that works only once would only lie in a log.
    on_ready = tell if is_built() and sys.stderr.isatty() else None
    run_server(config, pages=page_routes, on_ready=on_ready)


def _shadow_policy(policy: str | None, *, is_shadow: bool) -> str | None:
    """Return the policy file to run in shadow, read once so that a fault is told at once."""
    if policy is None and not is_shadow:
        return None
    if policy is None:
        raise UserError(
            "--shadow needs a policy to run",
            field="shadow",
            hint="tercio up --policy new.yaml --shadow",
        )
    if not is_shadow:
        raise UserError(
            "--policy alone would change the policy in force by a restart",
            field="policy",
            hint=f"try it beside the other with --shadow, or put it in force on the running "
            f"server: tercio policy set {policy}",
        )
    from tercio.cli.policy_shadow import read_policy_file
    from tercio.formats.policy import read_policy

    read_policy(read_policy_file(policy), source=policy)
    return os.path.abspath(policy)


def start_in_background(
    session: Session, config: Config, flags: dict[str, object], *, timeout_s: float
) -> ServerFile:
    """Start a server that outlives this command, and return where it answers.

    Raises:
        UserError: `failed` with the end of its log when it does not come up.
    """
    if not os.path.isdir(config.state_dir):
        os.makedirs(config.state_dir, exist_ok=True)
        # Whatever the umask: tasks of other users pass through.
        os.chmod(config.state_dir, 0o711)
    log_path = os.path.join(config.state_dir, "server.log")
    environment = {**session.environment, **_as_environment(flags)}
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with Progress(session, "starting the server"), os.fdopen(descriptor, "ab") as log:
        start = os.fstat(log.fileno()).st_size
        child = subprocess.Popen(
            [sys.executable, "-m", "tercio", "up"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
        found = wait_until_ready(config.state_dir, pid=child.pid, timeout_s=timeout_s)
    if found is None:
        if child.poll() is None:
            child.terminate()
        with open(log_path, "rb") as log:
            log.seek(start)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        last = (errors or lines or ["it said nothing"])[-1]
        raise UserError(
            f"the server did not come up: {last}",
            code="unavailable",
            hint=f"its log is {log_path}; 'tercio doctor' looks for causes",
        )
    # The child lives on after us; forget it without the warning about a running process.
    child.returncode = 0
    return found


def _as_environment(flags: dict[str, object]) -> dict[str, str]:
    """Return the flags that were given as settings of the child's environment."""
    found = {}
    for key, value in flags.items():
        if value is None:
            continue
        name = "TERCIO_" + ("STATE_DIR" if key == "state_dir" else key.replace(".", "__").upper())
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
