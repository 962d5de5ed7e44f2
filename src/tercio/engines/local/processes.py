"""Processes of a task: starting one as its user inside its limits, and finding and ending all.

Every descendant stays findable because the supervisor is a child subreaper (prctl(2)): an
orphan becomes its child. Imports nothing heavy (see the package).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import termios
import time

from tercio.engines.local.records import stat_fields

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_KILL_ROUNDS = 600
_KILL_PAUSE_S = 0.05


class Plan:
    """What the supervisor is to run, as the engine made it.

    Attributes:
        directory: control directory.
        argv, setup_argv: command, and what runs before it (None for nothing).
        env: complete environment.
        cwd: where it starts; None for the task's own directory.
        directories: to make as the user.
        container: commands about the container that it runs in, by name (see `enclosing`);
            empty for none.
        user: (uid, gid, groups) to become, or None to stay.
        cgroups: (directory, ((file, value), ...)) to make and to run in; the first one that has
            a `cgroup.kill` file ends the whole tree at once.
        memory_bytes: limit, for the message about it; 0 for none.
        grace_s: between SIGTERM and SIGKILL when the supervisor itself is told to end.
        log_cap_bytes: most bytes of log kept.
        begun: fields of the `begun` record that the engine decides.
    """

    __slots__ = ("argv", "begun", "cgroups", "container", "cwd", "directories", "directory",
                 "env", "grace_s", "log_cap_bytes", "memory_bytes", "setup_argv",
                 "user")  # fmt: skip

    directory: str
    argv: list[str]
    setup_argv: list[str] | None
    env: dict[str, str]
    cwd: str | None
    directories: list[str]
    container: dict[str, list[str]]
    user: tuple[int, int, list[int]] | None
    cgroups: list[tuple[str, list[tuple[str, str]]]]
    memory_bytes: int
    grace_s: float
    log_cap_bytes: int
    begun: dict[str, str]

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, fields: dict[str, object]) -> Plan:
        """Read what `to_dict` gave."""
        plan = cls()
        for name, value in fields.items():
            setattr(plan, name, value)
        return plan


def name_process(name: str) -> None:
    """Give this process the name that ps and top show; 15 bytes of it count."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def become_subreaper() -> None:
    """Make orphans among our descendants our children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(
    plan: Plan, argv: list[str], stdio: tuple[int, int, int], *, has_terminal: bool = False
) -> int | str:
    """Start a process of the task; return its pid, or one line that says why it did not start.

    Blocks until the program was replaced (execve) or has failed to.
    """
    status, status_child = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        step = ["start"]
        try:
            _become_task(plan, stdio, parent, step, has_terminal=has_terminal)
            step[0] = argv[0]
            env = {"TERM": "xterm-256color", **plan.env} if has_terminal else plan.env
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            reason = getattr(error, "strerror", None) or str(error)
            os.write(status_child, f"{step[0]}: {reason}".encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(status_child)
    failure = b""
    while chunk := os.read(status, 4096):
        failure += chunk
    os.close(status)
    if failure:
        os.waitpid(pid, 0)
        return failure.decode(errors="replace")
    return pid


def _become_task(
    plan: Plan, stdio: tuple[int, int, int], parent: int, step: list[str], *, has_terminal: bool
) -> None:
    """In the child: session, limits, user, directories, streams. `step` names what is done."""
    os.setsid()
    # What the supervisor ignores, its children would ignore: a shell could not even trap it.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    for source, target in zip(stdio, (0, 1, 2), strict=True):
        os.dup2(source, target, inheritable=True)
    if has_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if plan.user:
            os.fchown(0, plan.user[0], plan.user[1])
    for directory, _ in plan.cgroups:
        step[0] = f"enter {directory}"
        _write(f"{directory}/cgroup.procs", "0")
    os.umask(0o022)
    if plan.user:
        uid, gid, groups = plan.user
        step[0] = f"become user {uid}"
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    # Set after the change of user, which clears it: without its supervisor a task ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)
    home = f"{plan.directory}/task"
    step[0] = f"enter {plan.cwd or home}"
    os.chdir(plan.cwd or home)
    for directory in plan.directories:
        step[0] = f"make {directory}"
        os.makedirs(directory, exist_ok=True)


def capture(plan: Plan, argv: list[str], timeout_s: float = 10.0) -> str:
    """Return what a short command of the task's user prints; empty when it fails.

    It stands outside of the task's limits: it must work when these are used up.
    """
    out, out_child = os.pipe2(os.O_CLOEXEC)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    bare = Plan.from_dict({**plan.to_dict(), "cgroups": [], "directories": []})
    pid = spawn(bare, argv, (null, out_child, null))
    os.close(null)
    os.close(out_child)
    text = b""
    if isinstance(pid, int):
        until = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(out, select.POLLIN)
        while poll.poll(max(0, int((until - time.monotonic()) * 1000))):
            chunk = os.read(out, 65536)
            if not chunk:
                break
            text += chunk
        else:
            send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(out)
    return text.decode(errors="replace")


def make_cgroups(plan: Plan) -> None:
    """Make the task's groups and set their limits. Raises OSError."""
    for directory, values in plan.cgroups:
        os.makedirs(directory, exist_ok=True)
        for name, value in values:
            _write(f"{directory}/{name}", value)


def remove_cgroups(plan: Plan) -> None:
    """Remove the task's groups; those still in use stay."""
    for directory, _ in plan.cgroups:
        try:
            os.rmdir(directory)
        except OSError:
            continue


def oom_kills(plan: Plan) -> int:
    """Return how many processes of the task the kernel ended for want of memory."""
    for directory, _ in plan.cgroups:
        # Version 2 counts in memory.events, version 1 in memory.oom_control.
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(f"{directory}/{name}").splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count)
    return 0


def descendants(root: int) -> list[int]:
    """Return all processes below `root`, parents first, without `root` and without zombies."""
    children: dict[int, list[int]] = {}
    zombies = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
            if fields[0] == "Z":
                zombies.append(int(name))
    found: list[int] = []
    front = [root]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        found.extend(front)
    return [pid for pid in found if pid not in zombies]


def signal_all(number: int) -> None:
    """Send a signal to every process below this one."""
    for pid in descendants(os.getpid()):
        send(pid, number)


def send(pid: int, number: int) -> None:
    """Send a signal. A process that has gone is no error, nor one that changed its user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        # A program with the set-user-id bit, such as sudo or ping, is not ours to signal.
        return


def kill_all(plan: Plan, reaped: dict[int, int]) -> bool:
    """End every process below this one, also those being born; False if some would not go.

    Reaps all children and puts their wait statuses into `reaped`.
    """
    for attempt in range(_KILL_ROUNDS):
        for directory, _ in plan.cgroups:
            if os.path.exists(f"{directory}/cgroup.kill"):
                _write(f"{directory}/cgroup.kill", "1")
                break
        signal_all(signal.SIGKILL)
        if reap(reaped):
            return True
        time.sleep(_KILL_PAUSE_S if attempt else 0.002)
    return False


def reap(reaped: dict[int, int]) -> bool:
    """Take the wait statuses of children that ended; True when no child is left."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return False
            reaped[pid] = status
    except ChildProcessError:
        return True


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 65536).decode(errors="replace")
    finally:
        os.close(fd)
