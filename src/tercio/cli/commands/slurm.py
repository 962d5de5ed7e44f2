"""`tercio slurm`: what Slurm itself calls: nodes switched on and off to save power."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from typing import Final, Literal

import click

from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Verb, pass_session
from tercio.config import load
from tercio.errors import UserError

Order = Literal["resume", "suspend"]
_NODE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_MESSAGE_MAX: Final = 200


@click.group(cls=Noun, default="--help")
def command() -> None:
    """Switch nodes on and off for Slurm: its ResumeProgram and SuspendProgram."""


@command.command(cls=Verb, examples="tercio slurm resume 'n[1-4]'")
@click.argument("nodes", metavar="HOSTLIST")
@click.option("--command", "hook", metavar="CMD", help="In place of slurm.resume_command.")
@pass_session
def resume(session: Session, nodes: str, *, hook: str | None) -> int:
    """Have nodes switched on: run the site's command with their names, once for all.

    Exit codes: 0 done; 1 the command failed or took too long; 2 no such command is set, or
    HOSTLIST is none. SLURM_RESUME_FILE and the rest of the environment are passed on.
    """
    del session
    return run_hook("resume", nodes, hook)


@command.command(cls=Verb, examples="tercio slurm suspend 'n[1-4],login2'")
@click.argument("nodes", metavar="HOSTLIST")
@click.option("--command", "hook", metavar="CMD", help="In place of slurm.suspend_command.")
@pass_session
def suspend(session: Session, nodes: str, *, hook: str | None) -> int:
    """Have nodes switched off: run the site's command with their names, once for all.

    Exit codes as of 'tercio slurm resume'.
    """
    del session
    return run_hook("suspend", nodes, hook)


def host_names(text: str) -> tuple[str, ...]:
    """Return the names of a host list of Slurm.

    Raises:
        UserError: it is none, or names more nodes than one call may.
    """
    from tercio.engines.slurm.text import HOSTS_MAX, expand_hosts

    names = expand_hosts(text)
    wrong = [name for name in names if not _NODE.fullmatch(name)]
    if not names or wrong or text.count("[") != text.count("]"):
        raise UserError(
            f"'{text[:80]}' is no host list", hint="write names such as n[1-4,7],login2"
        )
    if len(names) >= HOSTS_MAX:
        raise UserError(f"{text[:80]} names {HOSTS_MAX} nodes or more", hint="name fewer at once")
    return tuple(dict.fromkeys(names))


def run_hook(order: Order, text: str, hook: str | None) -> int:
    """Run the command that switches nodes, write one line about it, and return the exit code."""
    _open_streams()
    names = host_names(text)
    settings = load()[0].slurm
    wanted = hook or (settings.resume_command if order == "resume" else settings.suspend_command)
    if not wanted:
        raise UserError(
            f"no command is set that would {order} {', '.join(names[:3])}",
            hint=f"set slurm.{order}_command in the configuration, or give --command",
            field=f"slurm.{order}_command",
        )
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*shlex.split(wanted), *names], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=settings.power_timeout_s, check=False,
            env={**os.environ, "TERCIO_POWER_ORDER": order},
        )  # fmt: skip
        code, told = done.returncode, done.stderr or done.stdout
    except subprocess.TimeoutExpired:
        code, told = 1, f"no end in {settings.power_timeout_s:g}s"
    except OSError as error:
        code, told = 1, f"{error.filename or wanted}: {error.strerror}"
    lines = [line for line in told.splitlines() if line.strip()]
    message = lines[-1].strip()[:_MESSAGE_MAX] if lines else ""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = (
        f"{stamp} tercio slurm {order} nodes={','.join(names)} count={len(names)} exit={code} "
        f"took_s={time.monotonic() - began:.1f}" + (f" said={message!r}" if message else "")
    )
    _note(said, settings.power_log)
    return 1 if code else 0


def _open_streams() -> None:
    """Open what of input, output and errors is closed: slurmctld closes all three.

    The pipes of the command would else become the output of this process.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _note(line: str, path: str) -> None:
    """Write the line to stderr and, in one piece, to the end of the log; no log is no fault."""
    sys.stderr.write(f"{line}\n")
    if not path:
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)
    except OSError as error:
        sys.stderr.write(f"slurm.power_log: {path}: {error.strerror}\n")
