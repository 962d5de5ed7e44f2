"""What is concluded of a task that leaves Slurm's queue: from a Slurm whose answers are written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tercio.engines.base import Observation, TaskRef
from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.commands import Done
from tercio.engines.slurm.engine import SlurmEngine
from tercio.engines.slurm.facts import SlurmJob, SlurmNode, jobs_from_text, nodes_from_text
from tercio.engines.slurm.options import SlurmOptions
from tercio.engines.slurm.spool import LocalSpool, control_dir
from tercio.model.effects import StopTask
from tercio.model.events import TaskExited
from tercio.model.ids import EffectId, JobId, NodeName, SiteName

REF = TaskRef(job_id=JobId("job-00001"), attempt=1, task=0, node=NodeName("n1"))
STARTED_S = 1_000.0
NUMBER = 7
DUPLICATE = "IDLE+DRAIN Reason=Duplicate jobid [root@2026-11-30T22:26:40]"
LONG_S = 400.0
"""Nodes are looked at again in this time, and have cleaned up since the last look."""


class WrittenSlurm:
    """Answers what the test wrote; knows every command that it got.

    Attributes:
        queue: state by number of the Slurm jobs that wait or run.
        tags: who has which number: `OWNER EFFECT`.
        ended: `JobState`, `ExitCode` and `StartTime` of those that `scontrol show job` knows.
        node: the state of the only node.
    """

    where = "a test"

    def __init__(self) -> None:
        self.queue: dict[int, str] = {}
        self.tags: dict[int, str] = {}
        self.ended: dict[int, tuple[str, str, str]] = {}
        self.accounts = ""
        self.node = "IDLE"
        self.asked: list[tuple[str, ...]] = []

    def comment(self, number: int) -> str:
        return f"tercio {self.tags[number]} n1 0"

    async def jobs(self) -> list[SlurmJob]:
        return jobs_from_text(
            "\n".join(
                f"{number}|{state}|ana|gpu|1|1G|gres:gpu:1|1:00:00|n1||None|{self.comment(number)}"
                for number, state in self.queue.items()
            )
        )

    async def nodes(self) -> list[SlurmNode]:
        return nodes_from_text(
            f"NodeName=n1 CPUTot=8 Gres=gpu:h100:8 RealMemory=1000 State={self.node}"
        )

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", account: Account | None = None
    ) -> Done:
        words = tuple(word for word in argv if word != "env" and not word.startswith("SLURM_TIME"))
        self.asked.append(words)
        out = ""
        if words[0] == "sacct":
            out = self.accounts
        elif "job" in words:
            out = "\n".join(
                f"JobId={number} JobName=x JobState={state} ExitCode={code} StartTime={start} "
                f"Comment={self.comment(number)} "
                for number, (state, code, start) in self.ended.items()
            )
        elif "partition" in words:
            out = "PartitionName=gpu Default=YES State=UP Nodes=n1"
        return Done(code=0, out=out.encode(), err="")

    def process(
        self, argv: Sequence[str], account: Account | None
    ) -> tuple[list[str], dict[str, object]]:
        raise AssertionError(argv)

    async def submit(self, words: Sequence[str], script: str, account: Account) -> int:
        raise AssertionError(words)


class World:
    """An engine on it, which has adopted the one task; the test looks, and turns the clock."""

    def __init__(self, path: Path) -> None:
        self.now_s = STARTED_S
        self.slurm = WrittenSlurm()
        self.seen: list[Observation] = []
        self.spool = LocalSpool(str(path))
        self.engine = SlurmEngine(
            site=SiteName("hpc"),
            options=SlurmOptions(poll_s=60.0, containers="off"),
            commands=self.slurm,
            reader=self.slurm,
            submitter=self.slurm,
            spool=self.spool,
            clock=lambda: self.now_s,
            workdir_of=lambda name: path / name,
        )

        owner, _ = self.spool.prepare()
        directory = Path(control_dir(self.spool.root, REF))
        directory.mkdir(parents=True)
        (directory / "number").write_text(str(NUMBER))
        (directory / "claim").write_text(str(NUMBER))
        (directory / "begun").write_text(f'{{"at_s": {STARTED_S}}}')
        self.slurm.tags[NUMBER] = f"{owner} launch:{REF.key}"
        self.slurm.queue[NUMBER] = "RUNNING"

    async def open(self) -> None:
        """The server has heard of the task, which runs: Slurm and its runner say so."""
        await self.engine.open(self.seen.append)
        assert await self.engine.adopt([REF]) == []

    async def look(self, *, after_s: float = 1.0) -> list[TaskExited]:
        self.now_s += after_s
        await self.engine.poll()
        return [seen for seen in self.seen if isinstance(seen, TaskExited)]


def cancelled(start_s: float) -> tuple[str, str, str]:
    return "CANCELLED", "0:9", str(int(start_s))


def test_a_task_that_leaves_no_record_is_told_after_it_was_seen_ending(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(tmp_path)
        await world.open()
        world.slurm.queue[NUMBER] = "COMPLETING"
        assert await world.look() == []
        del world.slurm.queue[NUMBER]
        world.slurm.ended[NUMBER] = cancelled(STARTED_S)
        (end,) = await world.look()
        assert (end.signal, end.is_lost, end.message) == (9, False, "cancelled in Slurm")
        await world.engine.close()

    asyncio.run(play())


@pytest.mark.parametrize("start", [str(int(STARTED_S) + 60), "Unknown"])
def test_a_task_whose_start_the_controller_forgot_is_lost_when_its_node_has_answered(
    tmp_path: Path, start: str
) -> None:
    """Slurm drained the node for it: its word on the job alone would read as a person's cancel."""

    async def play() -> None:
        world = World(tmp_path)
        await world.open()
        world.slurm.node = "UNKNOWN"
        world.slurm.queue[NUMBER] = "PENDING"
        assert await world.look() == []
        del world.slurm.queue[NUMBER]
        world.slurm.ended[NUMBER] = ("CANCELLED", "0:0", start)
        for _ in range(3):
            assert await world.look(after_s=LONG_S) == [], "its node has not answered yet"
        world.slurm.node = "IDLE+DRAIN"
        assert await world.look(after_s=LONG_S) == [], "the node has had no time to end it"
        (end,) = await world.look(after_s=LONG_S)
        assert end.is_lost
        assert "restart" in end.message
        await world.engine.close()

    asyncio.run(play())


def test_a_number_that_slurm_gave_away_again_is_somebody_elses_job(tmp_path: Path) -> None:
    """A crashed controller forgot the job: the next one got its number."""

    async def play() -> None:
        world = World(tmp_path)
        await world.open()
        world.slurm.tags[NUMBER] = "other launch:job-00001/1/0"
        world.slurm.ended[NUMBER] = ("RUNNING", "0:0", str(int(STARTED_S) + 9))
        world.slurm.accounts = f"{NUMBER}|COMPLETED|0:0|{int(STARTED_S) + 9}|theirs"
        assert await world.look() == []
        order = StopTask(
            epoch=1, job_id=REF.job_id, attempt=1, task=0, node=REF.node, signal="SIGTERM",
            effect_id=EffectId("stop:job-00001/1/0"), deadline_s=0.0, grace_s=5.0,
            site=SiteName("hpc"),
        )  # fmt: skip
        await world.engine.stop(order)
        (end,) = await world.look(after_s=LONG_S)
        assert (end.is_lost, end.exit_code) == (True, None)
        assert f"knows no job {NUMBER}" in end.message
        assert [words for words in world.slurm.asked if words[0] == "scancel"] == []
        await world.engine.close()

    asyncio.run(play())


@pytest.mark.parametrize(("node", "is_lost"), [("IDLE", False), (DUPLICATE, True)])
def test_a_task_cancelled_as_its_number_still_ran_on_its_node_is_lost(
    tmp_path: Path, node: str, *, is_lost: bool
) -> None:
    """The number was given before: the node refuses it, and is drained for that."""

    async def play() -> None:
        world = World(tmp_path)
        for name in ("claim", "begun"):
            (Path(control_dir(world.spool.root, REF)) / name).unlink()
        await world.open()
        world.slurm.node = node
        world.slurm.queue.clear()
        world.slurm.ended[NUMBER] = cancelled(STARTED_S)
        await world.look()
        (end,) = await world.look(after_s=LONG_S)
        assert (end.is_lost, "cancelled in Slurm" in end.message) == (is_lost, not is_lost)
        await world.engine.close()

    asyncio.run(play())


def test_what_the_accounts_remember_counts_for_the_same_job_only(tmp_path: Path) -> None:
    async def play() -> None:
        world = World(tmp_path)
        await world.open()
        world.slurm.accounts = f"{NUMBER}|CANCELLED by 0|0:15|{int(STARTED_S)}|tercio-job-00001.1.0"
        world.slurm.queue.clear()
        (end,) = await world.look()
        assert (end.signal, end.is_lost, end.message) == (15, False, "cancelled in Slurm")
        await world.engine.close()

    asyncio.run(play())


def test_a_task_that_slurm_finds_again_is_not_lost(tmp_path: Path) -> None:
    """A second controller took over with an older state, and the first came back."""

    async def play() -> None:
        world = World(tmp_path)
        await world.open()
        world.slurm.queue.clear()
        assert await world.look() == []
        world.slurm.queue[NUMBER] = "RUNNING"
        for _ in range(3):
            assert await world.look(after_s=LONG_S) == []
        await world.engine.close()

    asyncio.run(play())
