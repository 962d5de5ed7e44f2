"""A room of its own for one test: a state directory, servers on it, and the command line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tercio.client import Client
from tercio.model.views import JobView

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
TERCIO = (sys.executable, "-m", "tercio")
ENDED = ("succeeded", "failed", "cancelled")


def until(holds: Callable[[], object], what: str, *, timeout_s: float = DEADLINE_S) -> None:
    """Return as soon as something outside this process holds; fail when it never does."""
    give_up_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < give_up_s, f"waited {timeout_s:.0f}s for {what}"
        select.select([], [], [], 0.01)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def is_there(pid: int) -> bool:
    """Whether anything of a process is left: its first thread may be gone before the others."""
    return Path(f"/proc/{pid}").exists()


class Room:
    """Starts, kills and asks servers. `close` ends every process that came out of it.

    Attributes:
        env: of servers and of the command line.
        server: the process started last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self.journal = self.state / "journal.db"
        self.work = path / "work"
        self.work.mkdir(parents=True)
        (path / "config.toml").write_text("", encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TERCIO_", "PYTEST_"))}
        self.env = {
            **kept,
            "HOME": str(path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(ROOT / "src"),
            "TERCIO_STATE_DIR": str(self.state),
            "TERCIO_CONFIG": str(path / "config.toml"),
            "TERCIO_LOCAL__RUN_AS": "root" if os.geteuid() == 0 else "",
            "TERCIO_LOCAL__CPU_DEVICES": "2",
            "NO_COLOR": "1",
        }
        self.port = "0"
        self.server: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []

    # Servers.

    def up(self, *args: str, wrap: tuple[str, ...] = (), **env: str) -> None:
        """Run `tercio up` and return when it takes requests; again on the port it had before."""
        log = (self.path / "server.log").open("ab")
        with log:
            self.server = subprocess.Popen(
                [*wrap, *TERCIO, "up", "--port", self._port(), *args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env={**self.env, **env}, start_new_session=True,
            )  # fmt: skip
        until(self._is_up, "the server to start")

    def _port(self) -> str:
        told = self.told()
        self.port = str(told["url"]).rpartition(":")[2] if told else self.port
        return self.port

    def _is_up(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, self.server_log()
        told = self.told()
        return told is not None and told["pid"] == self.server.pid

    def told(self) -> dict[str, object] | None:
        """What `server.json` says."""
        try:
            return dict(json.loads((self.state / "server.json").read_bytes()))
        except (OSError, ValueError):
            return None

    def server_log(self) -> str:
        with suppress(FileNotFoundError):
            return (self.path / "server.log").read_text(encoding="utf-8", errors="replace")
        return ""

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send the server a signal and return how it ended."""
        assert self.server is not None
        self.server.send_signal(number)
        return self.server.wait(DEADLINE_S)

    def client(self) -> Client:
        """A client of the server that runs now."""
        told = self.told()
        assert told is not None
        token = (self.state / "token").read_text(encoding="utf-8").strip()
        client = Client(str(told["url"]), token)
        self._clients.append(client)
        return client

    # The command line.

    def cli(self, *args: str, code: int | None = 0, **options: object) -> str:
        """Run `tercio ARGS`, check its exit code and return what it printed."""
        done = self.run(*args, **options)
        if code is not None:
            told = f"tercio {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}"
            assert done.returncode == code, f"{told}\n{self.server_log()[-2000:]}"
        return done.stdout

    def error(self, *args: str, code: int, **options: object) -> str:
        """Run `tercio ARGS`, which must end with `code`, and return its errors."""
        done = self.run(*args, **options)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}{done.stderr}"
        return done.stderr

    def run(self, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TERCIO, *args], env=self.env, cwd=self.work, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=DEADLINE_S, errors="replace", **options,
        )  # type: ignore[call-overload,no-any-return]  # fmt: skip

    @contextmanager
    def following(self, *args: str) -> Iterator[Follower]:
        """Run `tercio ARGS` beside the test and read its lines as they come."""
        program = subprocess.Popen(
            [*TERCIO, *args], env=self.env, cwd=self.work, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        try:
            yield Follower(program)
        finally:
            program.kill()
            program.wait()
            assert program.stdout is not None
            program.stdout.close()

    def submit(self, run: str, *args: str, **fields: object) -> str:
        """Submit a job that runs a script, by the command line; return its id."""
        file = self.work / "job.json"
        spec = {"name": "job", "run": run, **fields}
        file.write_text(json.dumps(spec), encoding="utf-8")
        return self.cli("submit", "-q", *args, str(file)).strip()

    def job(self, job_id: str) -> JobView:
        with self.client() as client:
            return client.job(job_id)

    def ended(self, job_id: str) -> JobView:
        """Wait on the event stream until the job has ended."""
        return self.reached(job_id, ENDED)

    def reached(self, job_id: str, states: Iterable[str]) -> JobView:
        """Wait on the event stream until the job is in one of some states."""
        client = self.client()
        since = client.server().seq
        view = client.job(job_id)
        if view.state in states:
            return view
        for _ in client.follow_events(since=since):
            view = client.job(job_id)
            if view.state in states:
                return view
            assert view.state not in ENDED, f"{job_id} {view.state}: {view.message}"
        raise AssertionError("the stream ended")

    def story(self, job_id: str) -> list[str]:
        return [row.text for row in self.client().story(job_id).rows]

    def told_at_failure(self) -> str:
        """Jobs with their stories, nodes, and the end of the server's log."""
        told = []
        with suppress(Exception), self.client() as client:
            for job in client.jobs(is_all=True, limit=5).rows:
                told.append(f"{job.id} {job.state}, attempt {job.attempt}: {job.message}")
                told += [
                    f"    {row.at_s:.2f} {row.text}" for row in client.story(job.id).rows[-40:]
                ]
            for node in client.nodes().rows:
                closed = [cordon.reason for cordon in node.cordons]
                told.append(f"{node.name} {node.state} {node.reason} {closed or ''}")
        return "\n".join((*told, "log:", self.server_log()[-6000:]))

    # Processes.

    def task_pids(self) -> list[int]:
        """Live processes of tasks of this room, their supervisors included."""
        mark = f"{self.state.resolve()}/tasks/".encode()
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                # A supervisor names its directory, its tasks carry theirs in the environment.
                for name in ("cmdline", "environ") if entry.isdigit() else ():
                    if mark in Path(f"/proc/{entry}/{name}").read_bytes():
                        found.append(int(entry))
        return sorted(pid for pid in dict.fromkeys(found) if is_running(pid))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        told = self.told()
        if self.server is not None and self.server.poll() is None:
            self.kill()
        elif told is not None and is_running(int(str(told["pid"]))):
            os.kill(int(str(told["pid"])), signal.SIGKILL)
        until(self._has_no_task, "the tasks to end")

    def _has_no_task(self) -> bool:
        pids = self.task_pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids


class Follower:
    """The output of a program that runs beside the test."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program
        self.lines: list[str] = []

    def until(self, text: str) -> None:
        """Read until a line has `text` in it."""
        for line in self:
            if text in line:
                return
        raise AssertionError(f"no line with {text!r} in {self.lines[-20:]}")

    def rest(self) -> int:
        """Read to the end and return the exit code."""
        for _ in self:
            continue
        return self.program.wait(DEADLINE_S)

    def __iter__(self) -> Iterator[str]:
        assert self.program.stdout is not None
        for line in self.program.stdout:
            self.lines.append(line.rstrip("\n"))
            yield self.lines[-1]
