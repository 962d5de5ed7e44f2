"""Runs one task on its node: started by the batch script with the node's own Python (3.6 on).

`runner.py DIR` claims the task, runs setup and command, writes the log and the exit record.
`runner.py --exec DIR NAME -- ARGV` runs a command with the task's environment and writes its exit
code to the file NAME, since `srun` would print its own remark on any but 0. It stands alone: it
imports nothing of Tercio and is copied to the spool as one file. The claim is made by creating a
file that must not exist: of two Slurm jobs for one task only one ever runs it.
"""

import ctypes
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from typing import Any

LINE_BYTES_MAX = 16 * 1024
SEGMENTS = 8
PARTIAL_WAIT_S = 0.2
DEVICE_NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
PASSED = (*DEVICE_NAMES, "SLURM_CONF", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "TMPDIR")
TOLD = ("TERCIO_DEVICES", "TERCIO_SLURM_JOB_ID")
PR_SET_CHILD_SUBREAPER = 36
TAKEN = 75
"""Exit code of a run that found the task taken by an earlier one (EX_TEMPFAIL)."""


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return int(time.time() * 1000)


def read_json(path: str) -> "dict[str, Any]":
    """Return what a file holds, or an empty dict where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def write_json(path: str, record: "dict[str, Any]") -> None:
    """Write a record in one step, durable."""
    part = path + ".new"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)


class Log:
    """The log of the task: numbered files, bounded in all; each line has its time and stream."""

    def __init__(self, directory: str, cap_bytes: int) -> None:
        """Open the first file."""
        self.directory = directory
        self.size_max = max(cap_bytes // SEGMENTS, 8 * LINE_BYTES_MAX)
        self.partial = {b"o": b"", b"e": b""}
        self.number = 0
        self.file: Any = None
        self.size = 0
        self.rotate()

    def rotate(self) -> None:
        """Go on in the next file and drop the oldest."""
        if self.file is not None:
            self.file.close()
        self.number += 1
        self.size = 0
        name = os.path.join(self.directory, f"{self.number:08d}")
        self.file = open(name, "ab", buffering=0)  # noqa: SIM115 - open until the task ends
        old = os.path.join(self.directory, f"{self.number - SEGMENTS:08d}")
        if os.path.exists(old):
            os.unlink(old)

    def write(self, stream: bytes, text: bytes, flag: bytes = b".") -> None:
        """Write one line."""
        line = b"%013d%s%s " % (now_ms(), stream, flag) + text + b"\n"
        if self.size and self.size + len(line) > self.size_max:
            self.rotate()
        self.size += len(line)
        try:
            self.file.write(line)
        except OSError:
            # The disk is full: the task goes on without its log.
            return

    def feed(self, stream: bytes, chunk: bytes) -> None:
        """Take output as it comes."""
        lines = (self.partial[stream] + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            self.write(stream, self.shortened(stream, line))
        self.partial[stream] = self.shortened(stream, rest)

    def shortened(self, stream: bytes, text: bytes) -> bytes:
        """Write what is more than one line may have, and return the rest."""
        while len(text) > LINE_BYTES_MAX:
            self.write(stream, text[:LINE_BYTES_MAX], b"+")
            text = text[LINE_BYTES_MAX:]
        return text

    def flush(self, *, is_end: bool = False) -> None:
        """Write text that waits for its newline."""
        for stream, rest in self.partial.items():
            if rest:
                self.partial[stream] = b""
                self.write(stream, rest, b"." if is_end else b"+")


def descendants() -> "list[int]":
    """Return the processes below this one, the nearest first."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        children = parents.get(todo.pop(0), [])
        found += children
        todo += children
    return found


def send(number: int) -> int:
    """Send a signal to every process of the task; return how many there were."""
    pids = descendants()
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue
    return len(pids)


def signal_step(number: int) -> None:
    """Send a signal to the steps of this Slurm job, which are not processes of ours."""
    subprocess.call(
        ["scancel", "--quiet", f"--signal={number}", os.environ.get("SLURM_JOB_ID", "")],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def shared_memory_problem(wanted: Any) -> str:
    """Return why this node cannot give the task its shared memory, or an empty string."""
    if not wanted:
        return ""
    found = os.statvfs("/dev/shm")
    size = found.f_blocks * found.f_frsize
    if size >= wanted:
        return ""
    holds, needs = size >> 20, int(wanted) >> 20
    return f"/dev/shm of this node holds {holds} MiB, and the task needs {needs} MiB"


def write_environment(task: "Task", box: "dict[str, Any]") -> None:
    """Write the task's environment for the step, which has that of Slurm."""
    path = os.path.join(task.env["TERCIO_TASK_DIR"], box["env_file"])
    wanted = {*box["env_names"], *TOLD}
    if not task.plan["device_count"]:
        wanted.add("CUDA_VISIBLE_DEVICES")
    names = [name for name in task.env if name in wanted]
    text = "".join(f"export {name}={shlex.quote(task.env[name])}\n" for name in names)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


class Task:
    """One run of the task."""

    def __init__(self, directory: str, plan: "dict[str, Any]") -> None:
        """Take the plan; start nothing."""
        self.directory = directory
        self.plan = plan
        self.log = Log(os.path.join(directory, "logs"), plan["log_cap_bytes"])
        self.kill_at: Any = None
        self.was_killed = False
        self.is_stopping = False
        self.env = environment(plan)
        self.container = plan.get("container")

    def run(self, name: str, wake: int) -> "tuple[Any, str]":
        """Run one script to its end; return its wait status, None when it could not start."""
        argv, env = [self.plan["shell"], os.path.join(self.directory, name)], self.env
        if self.container is not None:
            argv = self.container["argv"]
            env = dict(os.environ) if self.container["is_step"] else self.env
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, cwd=self.plan["cwd"], env=env,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            return None, f"{error.filename or argv[0]}: {error.strerror}"
        assert child.stdout is not None
        assert child.stderr is not None
        streams = {child.stdout.fileno(): b"o", child.stderr.fileno(): b"e"}
        poll = select.poll()
        for fd in [*streams, wake]:
            os.set_blocking(fd, False)
            poll.register(fd, select.POLLIN)
        status = None
        while True:
            for fd, _ in poll.poll(self.wait_ms()):
                if fd == wake:
                    os.read(wake, 4096)
                elif not self.drain(fd, streams):
                    poll.unregister(fd)
            status = self.reap(child.pid, status)
            if self.is_done(status):
                break
        for fd in streams:
            self.drain(fd, streams)
        self.log.flush()
        return status, ""

    def wait_ms(self) -> int:
        """Return how long to wait for news."""
        if self.kill_at is not None:
            return max(0, min(500, int((self.kill_at - time.time()) * 1000) + 1))
        return int(PARTIAL_WAIT_S * 1000) if any(self.log.partial.values()) else 2000

    def drain(self, fd: int, streams: "dict[int, bytes]") -> bool:
        """Read what is there; return whether the stream is still open."""
        while True:
            try:
                chunk = os.read(fd, 65536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not chunk:
                return False
            self.log.feed(streams[fd], chunk)

    def reap(self, leader: int, status: Any) -> Any:
        """Take the ends of children, and orders to stop."""
        while True:
            try:
                pid, found = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == leader:
                status = found
        if self.is_stopping:
            self.is_stopping = False
            self.stop()
        self.log.flush()
        return status

    def stop(self) -> None:
        """Send the signal of the order, and plan the kill."""
        order = read_json(os.path.join(self.directory, "stop"))
        grace_s = float(order.get("grace_s", self.plan["grace_s"]))
        at = time.time() + grace_s
        self.kill_at = at if self.kill_at is None else min(self.kill_at, at)
        number = int(order.get("signal", signal.SIGTERM))
        if self.container is not None and self.container["is_step"]:
            # `srun` would take some signals for itself, and end the step without grace.
            for each in (signal.SIGCONT, number):
                signal_step(each)
            return
        send(signal.SIGCONT)
        send(number)

    def is_done(self, status: Any) -> bool:
        """Whether nothing of the task is left; kills what is overdue."""
        is_late = self.kill_at is not None and time.time() >= self.kill_at
        if status is None:
            if is_late:
                self.was_killed = True
                send(signal.SIGKILL)
            return False
        if not descendants():
            return True
        if self.kill_at is None or is_late:
            while send(signal.SIGKILL):
                time.sleep(0.01)
                self.reap(0, None)
            return True
        return False


def environment(plan: "dict[str, Any]") -> "dict[str, str]":
    """Return the task's environment: the plan's, and what Slurm says of its devices."""
    env = dict(plan["env"])
    for name in PASSED:
        if name in os.environ and name not in env:
            env[name] = os.environ[name]
    if not plan["device_count"]:
        env["CUDA_VISIBLE_DEVICES"] = ""
    env["TERCIO_SLURM_JOB_ID"] = os.environ.get("SLURM_JOB_ID", "")
    env["TERCIO_DEVICES"] = os.environ.get("SLURM_JOB_GPUS", "") if plan["device_count"] else ""
    return env


def claim(directory: str) -> bool:
    """Take the task, once; return whether it is this Slurm job's."""
    mine = os.environ.get("SLURM_JOB_ID", str(os.getpid()))
    try:
        fd = os.open(os.path.join(directory, "claim"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        sys.stderr.write(f"the task was taken before: {error}\n")
        return False
    os.write(fd, mine.encode())
    os.fsync(fd)
    os.close(fd)
    return True


def outlive_the_first(directory: str) -> int:
    """Return when the run that has the claim is gone, if it was this Slurm job's, on this node.

    A controller that forgot a start after a crash starts the job again: the task must not run
    twice, and must not be told as ended while its first run is alive. A second Slurm job of the
    task, which a killed server had on its way, holds what it was given for nothing, and leaves.
    """
    with open(os.path.join(directory, "claim"), encoding="utf-8") as file:
        if file.read() not in ("", os.environ.get("SLURM_JOB_ID", "")):
            return TAKEN
    begun = read_json(os.path.join(directory, "begun"))
    if begun.get("host") == os.environ.get("SLURMD_NODENAME", ""):
        while start_ticks(int(begun["pid"])) == begun["start_ticks"]:
            time.sleep(0.5)
    return TAKEN


def start_ticks(pid: int) -> int:
    """Return when a process started, in ticks since the boot; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == b"Z" else int(fields[19])


def run_task(directory: str) -> int:
    """Run the task of this directory; return the exit code for Slurm."""
    plan = read_json(os.path.join(directory, "plan.json"))
    if not plan:
        sys.stderr.write(f"{directory}: there is no plan\n")
        return 1
    if not claim(directory):
        return outlive_the_first(directory)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, wake_child = os.pipe()
    os.set_blocking(wake_child, False)
    signal.set_wakeup_fd(wake_child)
    os.makedirs(os.path.join(directory, "logs"), exist_ok=True)
    task = Task(directory, plan)

    def on_stop(*_: object) -> None:
        task.is_stopping = True

    # Handlers, not SIG_IGN: a started program gets the default action back.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, on_stop)
    write_json(
        os.path.join(directory, "begun"),
        {
            "at_s": time.time(),
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "job": os.environ.get("SLURM_JOB_ID", ""),
            "host": os.environ.get("SLURMD_NODENAME", ""),
            "devices": task.env["TERCIO_DEVICES"],
            "env": {name: task.env[name] for name in (*PASSED, *TOLD) if name in task.env},
        },
    )
    # The order to stop may have come before the handler was there.
    task.is_stopping = os.path.exists(os.path.join(directory, "stop"))
    status: Any = 0
    message = ""
    if plan["outputs"]:
        os.makedirs(plan["outputs"], exist_ok=True)
    for path in plan.get("directories", ()):
        os.makedirs(path, exist_ok=True)
    if task.container is not None and task.container["is_step"]:
        write_environment(task, task.container)
    problem = shared_memory_problem(plan.get("shm_bytes"))
    if problem:
        return finish(task, None, problem)
    if plan["has_setup"] and task.container is None:
        status, message = task.run("setup.sh", wake)
        if not status and task.kill_at is not None:
            status, message = signal.SIGTERM, "stopped during setup"
        elif status and not message and task.kill_at is None:
            message = "setup failed"
    if status == 0:
        status, message = task.run("run.sh", wake)
    return finish(task, status, message)


def finish(task: Task, status: Any, message: str) -> int:
    """Write the exit record; return the exit code."""
    number = status & 127 if status is not None else 0
    code = 127 if status is None else status >> 8
    if task.was_killed:
        message = message or "killed at the end of its grace"
    if message:
        task.log.write(b"t", message.encode("utf-8", "replace"))
    task.log.flush(is_end=True)
    record = {
        "at_s": time.time(),
        "exit_code": None if number else code,
        "signal": number or None,
        "message": message,
        # Told to end, and not by the server: Slurm knows why.
        "is_outside": task.kill_at is not None
        and not os.path.exists(os.path.join(task.directory, "stop")),
    }
    write_json(os.path.join(task.directory, "exit"), record)
    return 128 + number if number else code


def run_command(directory: str, name: str, argv: "list[str]") -> int:
    """Run a command with the environment of the task, and write down how it ended."""
    plan = read_json(os.path.join(directory, "plan.json"))
    begun = read_json(os.path.join(directory, "begun"))
    env = dict(plan["env"])
    env.update(begun.get("env", {}))
    for each in ("TERM", "COLUMNS", "LINES"):
        if each in os.environ:
            env[each] = os.environ[each]
    box = plan.get("container")
    if box and box["is_step"]:
        sys.stderr.write("this is the node, beside the task's container\n")
    argv = [*(box["exec"] if box else ()), *argv]
    try:
        code = subprocess.call(argv, env=env, cwd=plan["cwd"])
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        code = 127
    write_json(os.path.join(directory, name), {"code": 128 - code if code < 0 else code})
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--exec":
        sys.exit(run_command(sys.argv[2], sys.argv[3], sys.argv[5:]))
    sys.exit(run_task(sys.argv[1]))
