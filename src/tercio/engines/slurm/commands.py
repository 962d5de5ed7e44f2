"""Runs Slurm's commands, here or on a login host; every fault becomes an `EngineError`."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.tables import is_passing
from tercio.errors import EngineError

TIMEOUT_S: Final = 60.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SSH_FAILED: Final = 255


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A command that ended: exit code, output, and errors in one line."""

    code: int
    out: bytes
    err: str


class Commands(Protocol):
    """Where Slurm's commands run. `where` names it for people."""

    where: str

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", account: Account | None = None
    ) -> Done:
        """Run one command to its end. Raises EngineError when it cannot run at all."""
        ...

    def process(
        self, argv: Sequence[str], account: Account | None
    ) -> tuple[list[str], dict[str, Any]]:
        """Return argv and options for a process that talks, such as `srun --pty`."""
        ...


class LocalCommands:
    """Commands of this machine; a root server runs them as the job's user."""

    where = "this machine"

    def __init__(self, *, conf: str) -> None:
        self._conf = conf

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", account: Account | None = None
    ) -> Done:
        """See `Commands.run`."""
        command, options = self.process(argv, account)
        return await _run(command, options, stdin)

    def process(
        self, argv: Sequence[str], account: Account | None
    ) -> tuple[list[str], dict[str, Any]]:
        """See `Commands.process`."""
        env = {"PATH": os.environ.get("PATH", _PATH), "LC_ALL": "C.UTF-8", "HOME": "/"}
        if self._conf or "SLURM_CONF" in os.environ:
            env["SLURM_CONF"] = self._conf or os.environ["SLURM_CONF"]
        options: dict[str, Any] = {"env": env, "cwd": "/"}
        if account is not None:
            env |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
            if not account.is_self:
                options |= {"user": account.uid, "group": account.gid}
                options["extra_groups"] = list(account.groups)
        return list(argv), options


class SshCommands:
    """Commands on a login host, all through one connection that stays open."""

    def __init__(self, *, login: str, conf: str, control_dir: Path) -> None:
        self.where = login
        self._conf = conf
        self._control = control_dir
        # `%C` is a hash of the connection: the path stays short enough for a socket.
        self._ssh = (
            "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ControlMaster=auto",
            "-o", f"ControlPath={control_dir}/%C", "-o", "ControlPersist=300",
            "-o", "ServerAliveInterval=15",
        )  # fmt: skip

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", account: Account | None = None
    ) -> Done:
        """See `Commands.run`; the login's own user runs everything."""
        command, options = self.process(argv, account)
        done = await _run(command, options, stdin)
        if done.code == _SSH_FAILED:
            raise _error("connect", f"{self.where}: {done.err or 'ssh failed'}", retryable=True)
        return done

    def process(
        self, argv: Sequence[str], account: Account | None
    ) -> tuple[list[str], dict[str, Any]]:
        """See `Commands.process`."""
        del account  # Only the login's own user can be had by ssh.
        self._control.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = ["env", "LC_ALL=C.UTF-8"]
        words += [f"SLURM_CONF={self._conf}"] if self._conf else []
        tty = ["-tt"] if "--pty" in argv else []
        return [*self._ssh, *tty, self.where, "--", shlex.join([*words, *argv])], {"cwd": "/"}


async def _run(command: Sequence[str], options: Mapping[str, Any], stdin: bytes) -> Done:
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            **options,
        )
    except FileNotFoundError as failure:
        raise _error("run", f"{failure.filename} is not installed", retryable=False) from failure
    except OSError as failure:
        raise _error("run", f"{command[0]}: {failure.strerror}", retryable=True) from failure
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await child.communicate(stdin)
    except TimeoutError:
        raise _error(command[0], f"no answer in {TIMEOUT_S:.0f}s", retryable=True) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
    return Done(code=child.returncode or 0, out=out, err="; ".join(lines[-3:]))


async def ask(commands: Commands, *argv: str) -> str:
    """Return the output of a command that must succeed. Raises EngineError."""
    done = await commands.run(argv)
    if done.code:
        raise failure_of(argv[0], done)
    return done.out.decode(errors="replace")


def failure_of(operation: str, done: Done) -> EngineError:
    """Return the error of a refused command; its words say whether it may pass."""
    text = done.err.removeprefix(f"{operation}: ").removeprefix("error: ")
    return _error(operation, text or f"exit code {done.code}", retryable=is_passing(done.err))


def _error(operation: str, message: str, *, retryable: bool) -> EngineError:
    return EngineError(message, engine="slurm", operation=operation, retryable=retryable)
