"""The supervisor of one task: starts it, keeps its log, ends it, writes down how it ended.

It is a process of its own session that outlives the server. It reads a `Plan` from the file that
is its standard input, answers one line on its standard output (see `ANSWERS`), and takes orders on the `control`
socket, one packet each, fields separated by NUL:

| order | answer |
|---|---|
| `stop`, signal, grace in seconds | `ok` |
| `signal`, signal | `ok` |
| `exec`, `1` with a terminal, argument... ; three descriptors | `started`, then `exit`, code; or `failed`, reason |

Closing the connection of an `exec` ends its command. Imports nothing heavy (see the package).
"""  # noqa: E501

from __future__ import annotations

import _socket
import array
import marshal
import os
import select
import signal
import time

from tercio.engines.local import processes, records, tasklog
from tercio.engines.local.processes import Plan

ANSWERS = ("begun", "busy", "ended", "failed")
"""First line of the answer: the task runs; another supervisor has it; it was started or stopped
before; it could not be started, for the reason on the second line (and may be tried again, unless
an exit record says no)."""

_CHUNK_BYTES = 64 * 1024
_PACKET_BYTES = 128 * 1024
_PARTIAL_S = 0.5
_TELL_S = 0.2
_DRAIN_CHUNKS = 1024
_CONNECTIONS_MAX = 64


class _Connection:
    """One control connection, with the command that it started, if any."""

    __slots__ = ("exec_pid", "socket")

    def __init__(self, socket: _socket.socket) -> None:
        self.socket = socket
        self.exec_pid = 0


class Supervisor:
    """Watches one task from its first process to its exit record."""

    def __init__(self, plan: Plan, log: tasklog.LogWriter, listener: _socket.socket) -> None:
        self._plan = plan
        self._log = log
        self._listener = listener
        self._streams: dict[int, bytes] = {}
        self._inputs: tuple[int, int, int] = (-1, -1, -1)
        self._connections: dict[int, _Connection] = {}
        self._poll = select.poll()
        self._leader = 0
        self._status: int | None = None
        self._is_setting_up = plan.setup_argv is not None
        self._kill_at: float | None = None
        self._flush_at: float | None = None
        self._was_killed = False
        self._is_interrupted = False
        self._message = ""
        self._is_lost = False
        self._unheard: tuple[int, ...] = ()
        self._tell_at: float | None = None
        self._was_listed = False

    def start(self, wake: int) -> str:
        """Start the first process; return why that failed, or an empty string."""
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        out, out_child = os.pipe2(os.O_CLOEXEC)
        err, err_child = os.pipe2(os.O_CLOEXEC)
        self._inputs = (null, out_child, err_child)
        self._streams = {out: tasklog.OUT, err: tasklog.ERR}
        for fd in (out, err, wake, self._listener.fileno()):
            os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)
        plan = self._plan
        first = processes.spawn(plan, plan.setup_argv or plan.argv, self._inputs)
        if isinstance(first, str):
            return first
        self._leader = first
        if not self._is_setting_up:
            self._close_inputs()
        return ""

    def run(self, wake: int) -> None:
        """Serve until no process of the task is left, then write the exit record."""
        while not self._is_over():
            for fd, _ in self._poll.poll(self._timeout_ms()):
                if fd in self._streams:
                    self._read_output(fd)
                elif fd == wake:
                    os.read(wake, 4096)
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd in self._connections:
                    self._serve(self._connections[fd])
        self._finish()

    def interrupt(self, *_: object) -> None:
        """Remember that the machine or its operator wants this process gone (SIGTERM)."""
        self._is_interrupted = True

    def _timeout_ms(self) -> int | None:
        instants = [at for at in (self._kill_at, self._flush_at, self._tell_at) if at is not None]
        if not instants:
            return None
        return max(0, int((min(instants) - time.monotonic()) * 1000) + 1)

    def _is_over(self) -> bool:
        """Take what ended and what time brought; whether nothing of the task is left."""
        now = time.monotonic()
        if self._is_interrupted:
            self._is_interrupted = False
            self._is_lost = True
            self._message = "its supervisor was told to end (SIGTERM)"
            self._stop(signal.SIGTERM, self._plan.grace_s)
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at = None
            self._log.flush()
        if self._tell_at is not None and now >= self._tell_at:
            self._tell_at = None
            if self._status is None:
                self._tell_again()
        reaped: dict[int, int] = {}
        is_empty = processes.reap(reaped)
        self._note_ends(reaped)
        if self._status is not None:
            if self._is_setting_up and self._status == 0 and self._kill_at is None:
                self._start_command()
                return False
            if is_empty:
                return True
            if self._kill_at is None or now >= self._kill_at:
                self._kill()
                return True
        elif self._kill_at is not None and now >= self._kill_at:
            self._log.note("still running at the end of its grace: SIGKILL")
            self._was_killed = True
            self._kill()
            return True
        return False

    def _note_ends(self, reaped: dict[int, int]) -> None:
        if self._leader in reaped and self._status is None:
            self._status = reaped[self._leader]
            for connection in list(self._connections.values()):
                self._drop(connection)
        for connection in list(self._connections.values()):
            if connection.exec_pid in reaped:
                code = _exit_code(reaped[connection.exec_pid])
                connection.exec_pid = 0
                _answer(connection.socket, "exit", str(code))
                self._drop(connection)

    def _start_command(self) -> None:
        self._is_setting_up = False
        self._status = None
        command = processes.spawn(self._plan, self._plan.argv, self._inputs)
        self._close_inputs()
        if isinstance(command, str):
            self._message = command
            self._status = 127 << 8
        else:
            self._leader = command

    def _close_inputs(self) -> None:
        for fd in self._inputs:
            os.close(fd)

    def _kill(self) -> None:
        self._remove_container()
        reaped: dict[int, int] = {}
        if not processes.kill_all(self._plan, reaped):
            self._message = "some of its processes did not end after SIGKILL"
        self._note_ends(reaped)

    def _read_output(self, fd: int) -> bool:
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(fd)
            del self._streams[fd]
            os.close(fd)
            return False
        self._log.feed(self._streams[fd], chunk)
        if not self._log.has_partial:
            self._flush_at = None
        elif self._flush_at is None:
            self._flush_at = time.monotonic() + _PARTIAL_S
        return True

    def _accept(self) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        socket = _socket.socket(fileno=fd)
        if len(self._connections) >= _CONNECTIONS_MAX:
            socket.close()
            return
        socket.setblocking(False)
        self._connections[fd] = _Connection(socket)
        self._poll.register(fd, select.POLLIN)

    def _serve(self, connection: _Connection) -> None:
        socket = connection.socket
        room = _socket.CMSG_SPACE(3 * array.array("i").itemsize)
        try:
            packet, extra, _, _ = socket.recvmsg(_PACKET_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            packet, extra = b"", []
        descriptors = array.array("i")
        for _, kind, payload in extra:
            if kind == _socket.SCM_RIGHTS:
                descriptors.frombytes(payload)
        try:
            match packet.decode(errors="surrogateescape").split("\0"):
                case ["stop", number, grace_s]:
                    self._stop(int(number), float(grace_s))
                    _answer(socket, "ok")
                case ["note", text]:
                    self._log.note(text)
                    _answer(socket, "ok")
                case ["signal", number]:
                    self._signal(int(number))
                    _answer(socket, "ok")
                case ["exec", has_terminal, *argv] if len(descriptors) == 3 and argv:
                    self._execute(connection, argv, descriptors, has_terminal=has_terminal == "1")
                case _:
                    self._drop(connection)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _execute(
        self, connection: _Connection, argv: list[str], stdio: array.array[int], *,
        has_terminal: bool,
    ) -> None:  # fmt: skip
        if self._status is not None or connection.exec_pid:
            _answer(connection.socket, "failed", "the task is ending")
            return
        inside = self._plan.container.get("exec_terminal" if has_terminal else "exec", [])
        started = processes.spawn(
            self._plan, [*inside, *argv], (stdio[0], stdio[1], stdio[2]), has_terminal=has_terminal
        )
        if isinstance(started, str):
            _answer(connection.socket, "failed", started)
            return
        connection.exec_pid = started
        _answer(connection.socket, "started", str(started))

    def _drop(self, connection: _Connection) -> None:
        fd = connection.socket.fileno()
        if connection.exec_pid:
            # The command leads a session and a process group of its own.
            processes.send(-connection.exec_pid, signal.SIGKILL)
        self._poll.unregister(fd)
        del self._connections[fd]
        connection.socket.close()

    def _stop(self, number: int, grace_s: float) -> None:
        """Signal the task and set when it is killed; a repeated stop can only bring that nearer."""
        kill_at = time.monotonic() + grace_s
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, kill_at)
            return
        self._kill_at = kill_at
        name = signal.Signals(number).name
        self._log.note(f"stopping: {name} now, SIGKILL after {grace_s:g}s")
        # A suspended process handles the signal only once it goes on.
        self._signal(number, signal.SIGCONT)

    def _signal(self, *numbers: int) -> None:
        """Send signals to every process of the task, one after the other.

        In a container they are those that its program lists; while it still fetches the image
        there are none, and the signal is for the program itself.
        """
        pids = self._listed()
        for number in numbers:
            for pid in pids:
                processes.send(pid, number)
            if not pids or number == signal.SIGCONT:
                # The program may have been suspended before its container was there.
                processes.signal_all(number)
        if self._plan.container.get("pids"):
            self._remember((*self._unheard, *numbers), pids)

    def _listed(self) -> list[int]:
        """Return the processes in a container as its program lists them; empty without one."""
        listing = self._plan.container.get("pids")
        found = processes.capture(self._plan, listing).split() if listing else []
        pids = [int(word) for word in found if word.isdigit()]
        self._was_listed = self._was_listed or bool(pids)
        return pids

    def _tell_again(self) -> None:
        """Send what a container that was starting has not heard."""
        pids = self._listed()
        for number in self._unheard if pids else ():
            for pid in pids:
                processes.send(pid, number)
        self._remember(self._unheard, pids)

    def _remember(self, numbers: tuple[int, ...], pids: list[int]) -> None:
        """Keep what is to be sent again, as the command of the container was not there to hear it.

        A first process that is alone has not begun the command: it is the entry script, which the
        kernel spares a signal that it does not handle yet. Only a suspension is sure to reach it.
        """
        if len(pids) > 1:
            numbers = ()
        elif pids:
            numbers = tuple(n for n in numbers if n not in (signal.SIGSTOP, signal.SIGCONT))
        self._unheard = numbers
        self._tell_at = time.monotonic() + _TELL_S if numbers else None

    def _is_container_out_of_memory(self) -> bool:
        asking = self._plan.container.get("oom")
        return bool(asking) and processes.capture(self._plan, asking or []).strip() == "true"

    def _remove_container(self) -> None:
        """End and delete the container; one that is gone is no error."""
        removing = self._plan.container.get("remove")
        if removing:
            processes.capture(self._plan, removing, timeout_s=30.0)

    def _finish(self) -> None:
        for fd in list(self._streams):
            for _ in range(_DRAIN_CHUNKS):
                if not self._read_output(fd):
                    break
        plan = self._plan
        status = self._status if self._status is not None else signal.SIGKILL
        message = self._message
        if self._is_setting_up and status == 0:
            # Stopped before the command began: that is no success.
            status, message = signal.SIGTERM, message or "stopped during setup"
        elif self._unheard and not self._was_listed and status == 0:
            status, message = signal.SIGTERM, message or "stopped before its container ran"
        code, number = divmod(status, 256)
        is_out = self._is_container_out_of_memory() if status or self._was_killed else False
        self._remove_container()
        if (status or self._was_killed) and (is_out or processes.oom_kills(plan)):
            message = f"out of memory (limit {_memory(plan.memory_bytes)})"
        elif self._is_setting_up and status and self._kill_at is None:
            how = f"was ended by signal {number & 127}" if number else f"failed with code {code}"
            message = f"setup {how}"
        elif self._was_killed and not message:
            message = "killed at the end of its grace"
        if message:
            self._log.note(message)
        self._log.close()
        processes.remove_cgroups(plan)
        ended = {
            "at_s": repr(time.time()),
            "exit_code": "" if number & 127 else str(code),
            "signal": str(number & 127) if number & 127 else "",
            "is_lost": "1" if self._is_lost else "",
            "message": message,
        }
        records.write_record(plan.directory, records.EXIT, ended)


def main(directory: str) -> None:
    """Run the supervisor of the task with this control directory, once, or answer why not."""
    plan = Plan.from_dict(marshal.loads(os.pread(0, os.fstat(0).st_size, 0)))
    processes.name_process(plan.begun.get("name", "tercio-task"))
    lock = records.claim(directory)
    if lock is None:
        _tell("busy")
        return
    if records.read_record(directory, records.BEGUN) or records.read_record(
        directory, records.EXIT
    ):
        _tell("ended")
        return
    os.chdir("/")
    processes.become_subreaper()
    wake, wake_child = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_child, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    begun = {
        "pid": str(os.getpid()),
        "start_ticks": records.start_ticks(os.getpid()) or "",
        "boot_id": records.boot_id(),
        "at_s": repr(time.time()),
        **plan.begun,
    }
    try:
        supervisor = _prepare(plan)
        records.write_record(directory, records.BEGUN, begun)
    except OSError as error:
        # Nothing is written down: it may be tried again.
        processes.remove_cgroups(plan)
        _tell(f"failed\n{error.filename or directory}: {error.strerror}")
        return
    failure = supervisor.start(wake)
    if failure:
        processes.remove_cgroups(plan)
        ended = {"at_s": repr(time.time()), "never_started": "1", "message": failure}
        records.write_record(directory, records.EXIT, ended)
        _tell(f"failed\n{failure}")
        return
    signal.signal(signal.SIGTERM, supervisor.interrupt)
    _tell("begun")
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    supervisor.run(wake)


def _prepare(plan: Plan) -> Supervisor:
    """Make log, socket, groups and room for the exit record. Raises OSError."""
    logs = f"{plan.directory}/{records.LOGS}"
    os.makedirs(logs, exist_ok=True)
    log = tasklog.LogWriter(logs, cap_bytes=plan.log_cap_bytes)
    path = control_path(plan.directory)
    if os.path.lexists(path):
        # Left by a supervisor that had not begun; we hold the lock, so nobody listens on it.
        os.unlink(path)
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    os.set_inheritable(listener.fileno(), False)
    listener.bind(path)
    listener.listen(_CONNECTIONS_MAX)
    processes.make_cgroups(plan)
    records.reserve(plan.directory, records.EXIT)
    return Supervisor(plan, log, listener)


def control_path(directory: str) -> str:
    """Return a name for the control socket that fits the 108 bytes of a socket address.

    Opens the directory and leaves it open: the name goes through its descriptor.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{fd}/{records.CONTROL}"


def _ignore(*_: object) -> None:
    """Handle SIGCHLD by waking the poll, nothing else."""


def _tell(answer: str) -> None:
    try:
        os.write(1, answer.encode(errors="replace"))
    except OSError:
        # The server has died meanwhile; the next one reads the records.
        return


def _answer(socket: _socket.socket, *fields: str) -> None:
    try:
        socket.send("\0".join(fields).encode(errors="replace"))
    except OSError:
        # The asker has gone.
        return


def _exit_code(status: int) -> int:
    return 128 + (status & 127) if status & 127 else status >> 8


def _memory(size_bytes: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << power:
            return f"{size_bytes / (1 << power):.4g}{unit}"
    return f"{size_bytes}B"
