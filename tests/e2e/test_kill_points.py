"""Real servers are killed at points around writes and effects, with real processes as tasks.

`tests/anomaly` goes through every point in virtual time; here are some of them on this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress

import pytest

from tercio.client import Client, JobRequest
from tercio.core.cluster import Cluster
from tercio.errors import UserError
from tercio.model.views import JobView
from tercio.runtime.recovery import recover
from tercio.store.journal import Journal

from .room import ENDED, Room, is_there, until

pytestmark = pytest.mark.e2e

PARTS = 12
TASK = 'echo "start $TERCIO_ATTEMPT" >> {work}/$TERCIO_JOB.$TERCIO_TASK; '
# Ends by itself; runs until it is cancelled; runs until it is requeued and then ends.
FIRST = {"name": "first", "tasks": 2, "run": TASK + "sleep 0.3"}
SECOND = {"name": "second", "tasks": 2, "run": TASK + "exec sleep 600"}
THIRD = {"name": "third", "run": TASK + "[ $TERCIO_ATTEMPT = 2 ] || exec sleep 600"}
STARTS = {
    "job-00001.0": ["start 1"], "job-00001.1": ["start 1"],
    "job-00002.0": ["start 1"], "job-00002.1": ["start 1"],
    "job-00003.0": ["start 1", "start 2"],
}  # fmt: skip
STATES = {
    "job-00001": ("succeeded", 1), "job-00002": ("cancelled", 1), "job-00003": ("succeeded", 2),
}  # fmt: skip


class Play:
    """Plays the scenario against servers that may die; what was not answered is asked again."""

    def __init__(self, room: Room, mortal: subprocess.Popen[str], kill_at: int | None) -> None:
        self.room = room
        self.mortal = mortal
        self.kill_at = kill_at
        self.points = room.path / "points"
        self.pid = 0
        self.starts = 0
        self.client: Client | None = None

    def start(self) -> None:
        assert self.mortal.stdin is not None
        assert self.mortal.stdout is not None
        order = {
            "env": {**self.room.env, "TERCIO_SERVER__PORT": "0"},
            "log": str(self.room.path / "server.log"),
            "points": str(self.points if self.starts == 0 else self.room.path / "later"),
            "kill_at": self.kill_at if self.starts == 0 else None,
        }
        print(json.dumps(order), file=self.mortal.stdin, flush=True)
        self.pid = int(self.mortal.stdout.readline())
        self.starts += 1
        until(lambda: self._is_up() or not is_there(self.pid), "the server to start")
        if not self._is_up():
            assert self.starts < 3, self.room.server_log()[-3000:]
            self.start()
        self.client = self.room.client()

    def _is_up(self) -> bool:
        told = self.room.told()
        return told is not None and told["pid"] == self.pid

    def ask(self, question: Callable[[Client], JobView | None]) -> JobView | None:
        """Ask until there is an answer, starting the server again when it is dead."""
        while True:
            assert self.client is not None
            try:
                return question(self.client)
            except UserError as error:
                assert error.code in ("unavailable", "conflict"), error
                if error.code == "conflict":
                    return None
                until(lambda: not is_there(self.pid), "the server to be dead")
                self.start()

    def job(self, number: int) -> JobView:
        view = self.ask(lambda client: client.job(f"job-{number:05}"))
        assert view is not None
        return view

    def submit(self, number: int, spec: dict[str, object]) -> None:
        run = str(spec["run"]).format(work=self.room.work)
        small = {"per_task": {"cpus": 0.1, "memory": "10MiB"}, "checkpoint": {"grace": "1s"}}
        request = JobRequest(job={**spec, **small, "run": run})

        def send(client: Client) -> None:
            answer = client.submit(request, key=f"key {number}")
            assert answer.ids == (f"job-{number:05}",)

        self.ask(send)

    def requeue(self, client: Client) -> None:
        view = client.job("job-00003")
        if view.attempt == 1 and view.state == "running":
            client.requeue("job-00003")

    def run(self) -> None:
        self.start()
        for number, spec in enumerate((FIRST, SECOND, THIRD), start=1):
            self.submit(number, spec)
        for number in (2, 3):
            until(lambda number=number: self.job(number).state == "running", "it to run")
        until(lambda: self._began(*STARTS), "the tasks to say that they began")
        self.ask(lambda client: client.cancel("job-00002"))
        self.ask(self.requeue)
        for number in (1, 2, 3):
            until(lambda number=number: self.job(number).state in ENDED, "it to end")

    def _began(self, *names: str) -> bool:
        paths = [self.room.work / name for name in names]
        return all(path.exists() and path.stat().st_size for path in paths)

    def check(self) -> None:
        """Nothing was lost, nothing ran twice, nothing was left."""
        for job_id, (state, attempt) in STATES.items():
            view = self.job(int(job_id[4:]))
            assert (view.id, view.state, view.attempt) == (job_id, state, attempt)
        starts = {
            path.name: path.read_text(encoding="utf-8").splitlines()
            for path in self.room.work.iterdir()
        }
        assert starts == STARTS
        until(lambda: not self.room.task_pids(), "the last supervisors to be gone", timeout_s=5.0)
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not is_there(self.pid), "the server to be dead")
        journal = Journal.open(self.room.journal)
        whole = Cluster()
        for entry in journal.read(limit=100_000):
            whole.apply(entry.event)
        assert recover(journal).cluster.state_hash() == whole.state_hash()
        journal.close()


def killed_once(room: Room, mortal: subprocess.Popen[str], kill_at: int) -> None:
    """Two gangs and a requeued job; the server dies at one of the points around its effects."""
    play = Play(room, mortal, kill_at)
    try:
        play.run()
        assert play.starts == 2, "it was not killed"
        play.check()
    finally:
        with suppress(ProcessLookupError):
            os.kill(play.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def point_count(mortal: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many points a calm run passes."""
    room = Room(tmp_path_factory.mktemp("calm"))
    play = Play(room, mortal, None)
    try:
        play.run()
        play.check()
    finally:
        with suppress(ProcessLookupError):
            os.kill(play.pid, signal.SIGKILL)
        room.close()
    assert play.starts == 1
    return len(play.points.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_a_point(
    room: Room, mortal: subprocess.Popen[str], point_count: int, part: int
) -> None:
    # The first point is the write of the server's own start. Runs differ a little in how many
    # entries share a write, so that the last points are not passed in each.
    play = Play(room, mortal, part * (point_count - 6) // (PARTS - 1))
    play.run()
    assert play.starts == 2, f"not killed at point {play.kill_at} of {point_count}"
    play.check()
