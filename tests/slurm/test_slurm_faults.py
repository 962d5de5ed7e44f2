"""Answers of slurmrestd that are slow, cut, doubled, old or empty; credentials that run out.

A fault is before the real daemon; what is told of tasks and nodes must not depend on it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_proxy import Answer, FaultProxy, cut, doubled, faulty, gateway, hollow, nothing
from slurm_room import engine_of
from slurmd_cluster import SlurmCluster, until

from tercio.engines.bench import Bench, ShellPrograms
from tercio.engines.slurm.engine import SlurmEngine
from tercio.errors import EngineError
from tercio.model.events import NodeLost, NodeRemoved, NodeReported

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm")]

RARELY_S = 300.0
"""Between regular looks: a test looks by itself."""


@pytest.fixture
def proxy(cluster: SlurmCluster) -> Iterator[FaultProxy]:
    proxy = FaultProxy(cluster.rest_url)
    yield proxy
    proxy.close()


class Eye:
    """A bench on the engine behind the proxy, whose looks at Slurm the test makes."""

    def __init__(self, cluster: SlurmCluster, path: Path, **options: object) -> None:
        self.bench = Bench(
            lambda: engine_of(cluster, path, poll_s=RARELY_S, **options),
            ShellPrograms(),
            user="root",
            deadline_s=60.0,
        )

    @property
    def engine(self) -> SlurmEngine:
        assert isinstance(self.bench.engine, SlurmEngine)
        return self.bench.engine

    async def look(self) -> None:
        await self.engine.poll()

    def lost(self) -> list[object]:
        return [seen for seen in self.bench.seen if isinstance(seen, NodeLost | NodeRemoved)]


@pytest.mark.parametrize("fault", [cut, nothing, hollow, faulty, gateway])
def test_a_bad_answer_is_an_error_and_changes_nothing(
    fault: Answer, cluster: SlurmCluster, tmp_path: Path, proxy: FaultProxy
) -> None:
    async def play() -> None:
        eye = Eye(cluster, tmp_path, rest=proxy.url)
        await eye.bench.open()
        _, ref = await eye.bench.start(eye.bench.programs.runs())
        proxy.answer = fault
        for _ in range(3):
            with pytest.raises(EngineError, match="slurmrestd") as caught:
                await eye.look()
            assert caught.value.retryable
        assert (eye.bench.exits_of(ref), eye.lost()) == ([], [])
        assert ref.key in eye.engine._watch.tasks
        proxy.answer = None
        await eye.look()
        assert (eye.bench.exits_of(ref), eye.lost()) == ([], [])
        await eye.bench.close()
        assert len(eye.bench.exits_of(ref)) == 1

    asyncio.run(play())


def test_answers_that_are_doubled_or_slow_tell_nothing_twice(
    cluster: SlurmCluster, tmp_path: Path, proxy: FaultProxy
) -> None:
    async def play() -> None:
        proxy.answer = doubled
        eye = Eye(cluster, tmp_path, rest=proxy.url)
        await eye.bench.open()
        _, ref = await eye.bench.start(eye.bench.programs.runs())
        proxy.hold()
        look = asyncio.create_task(eye.look())
        await asyncio.to_thread(proxy.until_held)
        # The answer is half here when the task is told to stop: orders do not wait for it.
        stop = eye.bench.stop_order(ref, grace_s=30.0)
        order = asyncio.create_task(eye.engine.stop(stop))
        await asyncio.to_thread(until, lambda: not cluster.out("squeue", "-h", "-t", "R"), "it")
        proxy.release()
        await asyncio.gather(look, order)
        await eye.bench.exit_of(ref)
        for _ in range(2):
            await eye.look()
        assert len(eye.bench.exits_of(ref)) == 1
        assert eye.lost() == []
        await eye.bench.close()

    asyncio.run(play())


def test_an_answer_that_is_older_than_the_last_raises_no_dead_and_ends_no_living(
    cluster: SlurmCluster, tmp_path: Path, proxy: FaultProxy
) -> None:
    async def play() -> None:
        eye = Eye(cluster, tmp_path, rest=proxy.url)
        await eye.bench.open()
        proxy.keep()
        _, ref = await eye.bench.start(eye.bench.programs.runs())
        # A queue from before it was submitted.
        proxy.answer = proxy.old
        await eye.look()
        assert eye.bench.exits_of(ref) == []
        proxy.answer = None
        await eye.look()
        assert eye.bench.exits_of(ref) == []
        proxy.keep()
        await eye.engine.stop(eye.bench.stop_order(ref, grace_s=30.0))
        await eye.bench.exit_of(ref)
        until(lambda: not cluster.out("squeue", "-h"), "the queue to be empty")
        await eye.look()
        # A queue in which it still runs.
        proxy.answer = proxy.old
        await eye.look()
        assert eye.engine._watch.tasks == {}
        assert await eye.engine.adopt([]) == []
        proxy.answer = None
        await eye.look()
        assert len(eye.bench.exits_of(ref)) == 1
        assert eye.lost() == []
        await eye.bench.close()

    asyncio.run(play())


@pytest.mark.parametrize("by", ["commands", "slurmrestd"])
def test_foreign_work_is_seen_in_the_first_look_after_it_starts(
    by: str, cluster: SlurmCluster, tmp_path: Path, proxy: FaultProxy
) -> None:
    async def play() -> None:
        eye = Eye(cluster, tmp_path, rest=proxy.url if by == "slurmrestd" else "")
        await eye.bench.open()
        told = len(eye.bench.seen)
        asked = len(proxy.paths)
        job = cluster.sbatch("--gres=gpu:3", "-w", "n2", "--mem=1G", "--time=30")
        cluster.until_running(job)
        await eye.look()
        (node,) = [seen.spec for seen in eye.bench.seen[told:] if isinstance(seen, NodeReported)]
        assert (node.name, len(node.foreign_devices)) == ("n2", 3)
        if by == "slurmrestd":
            kinds = [path.rpartition("/")[2] for path in proxy.paths[asked:]]
            assert kinds == ["jobs", "nodes"]
        told = len(eye.bench.seen)
        cluster.out("scancel", str(job))
        until(lambda: not cluster.out("squeue", "-h"), "it to leave")
        await eye.look()
        (node,) = [seen.spec for seen in eye.bench.seen[told:] if isinstance(seen, NodeReported)]
        assert (node.name, node.foreign_devices) == ("n2", ())
        await eye.bench.close()

    asyncio.run(play())


def test_a_token_that_ran_out_is_named_and_a_new_one_mends_it(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    def renew(lifespan_s: int) -> None:
        token.write_text(cluster.out("scontrol", "token", f"lifespan={lifespan_s}"))

    async def play() -> None:
        eye = Eye(cluster, tmp_path, rest=cluster.rest_url, token_file=str(token))
        await eye.bench.open()
        _, ref = await eye.bench.start(eye.bench.programs.runs())
        renew(1)
        said = ""
        for _ in range(200):
            try:
                await eye.look()
            except EngineError as failure:
                said = str(failure)
                break
            await asyncio.sleep(0.05)
        assert re.search(r"refused the token in \S*token.*ran out at \d\d\d\d-", said), said
        assert "scontrol token" in said
        # A server that starts now says the same, and not that the daemon is of another version.
        late = Eye(cluster, tmp_path / "late", rest=cluster.rest_url, token_file=str(token))
        with pytest.raises(EngineError, match="ran out at"):
            await late.bench.engine.open(lambda _: None)
        renew(3600)
        await eye.look()
        assert (eye.bench.exits_of(ref), eye.lost()) == ([], [])
        await eye.bench.close()

    token = tmp_path / "token"
    renew(3600)
    asyncio.run(play())


def test_a_daemon_that_is_away_for_a_while_loses_nothing(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    async def play() -> None:
        eye = Eye(cluster, tmp_path, rest=cluster.rest_url)
        await eye.bench.open()
        _, ref = await eye.bench.start(eye.bench.programs.runs())
        cluster.stop_daemon("slurmrestd")
        for _ in range(3):
            with pytest.raises(EngineError, match="slurmrestd"):
                await eye.look()
        assert eye.bench.exits_of(ref) == []
        cluster.start_rest()
        await asyncio.to_thread(until, cluster.answers_rest, "slurmrestd")
        await eye.look()
        assert (eye.bench.exits_of(ref), eye.lost()) == ([], [])
        await eye.bench.close()

    asyncio.run(play())
