"""Simulated nodes on a virtual clock: scripts, faults, and a server that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from tercio.engines.base import LogQuery, Observation, TaskRef
from tercio.engines.sim.engine import SimEngine
from tercio.engines.sim.script import Behaviour, NodeFault, NodeFaultKind, Rule, SimScript, Steps
from tercio.engines.sim.state import SimState, open_state
from tercio.engines.sim.timeline import VirtualClock
from tercio.errors import EngineError
from tercio.health.marks import parse_mark
from tercio.model.effects import LaunchTask, SignalTask, StopTask
from tercio.model.events import (
    NodeFenced,
    NodeLost,
    NodeRemoved,
    NodeReported,
    TaskExited,
    TaskLaunchFailed,
    TaskStarted,
)
from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.model.node import NodeSpec

SITE = SiteName("sim")
NODES = [NodeSpec(name=NodeName(name), site=SITE) for name in ("n1", "n2")]
T = TypeVar("T")


class World:
    """An open engine on a virtual clock, and all it told."""

    def __init__(self, *rules: Rule, faults: tuple[NodeFault, ...] = (), **named: object) -> None:
        self.clock = VirtualClock(1000.0)
        self.seen: list[Observation] = []
        script = SimScript(rules=rules, node_faults=faults)
        self.engine = SimEngine(
            site=SITE, nodes=NODES, clock=self.clock, script=script, **named,  # type: ignore[arg-type]
        )  # fmt: skip

    async def __aenter__(self) -> World:
        await self.engine.open(self.seen.append)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    def ends(self) -> list[TaskExited]:
        return [seen for seen in self.seen if isinstance(seen, TaskExited)]


def order(job: str = "job-1", node: str = "n1", **changes: object) -> LaunchTask:
    fields = {"attempt": 1, "task": 0, "epoch": 1, **changes}
    return LaunchTask(
        effect_id=EffectId(f"launch:{job}/1/0"),
        deadline_s=0.0,
        site=SITE,
        node=NodeName(node),
        job_id=JobId(job),
        user="ana",
        command="true",
        **fields,  # type: ignore[arg-type]
    )


def stop(job: str = "job-1", grace_s: float = 10.0) -> StopTask:
    return StopTask(
        effect_id=EffectId("s"), epoch=1, deadline_s=0.0, site=SITE, node=NodeName("n1"),
        job_id=JobId(job), attempt=1, task=0, grace_s=grace_s,
    )  # fmt: skip


def run(test: Coroutine[None, None, T]) -> T:
    return asyncio.run(test)


def rule(**behaviour: object) -> Rule:
    return Rule(behaviour=Behaviour(**behaviour))  # type: ignore[arg-type]


def test_a_task_ends_at_its_own_instant() -> None:
    async def check() -> None:
        async with World() as world:
            answer = await world.engine.launch(order(duration_s=30.0), {})
            assert isinstance(answer, TaskStarted)
            world.engine.advance(1029.9)
            assert world.ends() == []
            world.engine.advance(2000.0)
            assert [(end.at_s, end.exit_code) for end in world.ends()] == [(1030.0, 0)]
            assert world.clock() == 2000.0

    run(check())


def test_rules_choose_by_job_name_attempt_and_node() -> None:
    rules = (
        Rule(job="bad-*", attempt=1, behaviour=Behaviour(exit_code=3)),
        Rule(node="n2", behaviour=Behaviour(exit_code=4)),
    )

    async def check() -> None:
        async with World(*rules) as world:
            name = {"TERCIO_JOB_NAME": "bad-train"}
            await world.engine.launch(order("job-1", env=name, duration_s=1.0), {})
            await world.engine.launch(order("job-1", env=name, attempt=2, duration_s=2.0), {})
            await world.engine.launch(order("job-2", "n2", duration_s=3.0), {})
            world.engine.advance(1010.0)
            assert [end.exit_code for end in world.ends()] == [3, 0, 4]

    run(check())


def test_a_job_may_set_its_own_behaviour() -> None:
    async def check() -> None:
        async with World() as world:
            wish = {"TERCIO_SIM": '{"exit_code": 9, "duration_s": 2}'}
            await world.engine.launch(order(env=wish), {})
            world.engine.advance(1002.0)
            assert world.ends()[0].exit_code == 9
            bad = await world.engine.launch(order("job-2", env={"TERCIO_SIM": '{"x": 1}'}), {})
            assert isinstance(bad, TaskLaunchFailed)
            assert "TERCIO_SIM" in bad.message

    run(check())


def test_a_slow_launch_answers_when_time_has_passed() -> None:
    async def check() -> None:
        async with World(rule(launch_s=20.0)) as world:
            launching = asyncio.create_task(world.engine.launch(order(), {}))
            await asyncio.sleep(0)
            world.engine.advance(1019.0)
            await asyncio.sleep(0)
            assert not launching.done()
            world.engine.advance(1020.0)
            answer = await launching
            assert (type(answer), answer.at_s) == (TaskStarted, 1020.0)

    run(check())


def test_a_stop_during_a_slow_launch_fences_it() -> None:
    async def check() -> None:
        async with World(rule(launch_s=20.0)) as world:
            launching = asyncio.create_task(world.engine.launch(order(), {}))
            await asyncio.sleep(0)
            await world.engine.stop(stop())
            world.engine.advance(1020.0)
            assert isinstance(await launching, TaskLaunchFailed)
            assert world.ends()[0].is_lost

    run(check())


def test_a_launch_that_fails() -> None:
    async def check() -> None:
        async with World(rule(launch_error="no image", is_retryable=False)) as world:
            answer = await world.engine.launch(order(), {})
            assert isinstance(answer, TaskLaunchFailed)
            assert (answer.message, answer.is_retryable) == ("no image", False)

    run(check())


@pytest.mark.parametrize(
    ("behaviour", "ends_s", "signal"),
    [
        ({}, 1000.0, 15),
        ({"stop_s": 4.0}, 1004.0, 15),
        ({"stop_s": 40.0}, 1010.0, 9),
        ({"ignores_stop": True}, 1010.0, 9),
    ],
)
def test_a_stop(behaviour: dict[str, object], ends_s: float, signal: int) -> None:
    async def check() -> None:
        async with World(rule(**behaviour)) as world:
            await world.engine.launch(order(), {})
            await world.engine.stop(stop(grace_s=10.0))
            world.engine.advance(1050.0)
            (end,) = world.ends()
            assert (end.at_s, end.signal, end.exit_code) == (ends_s, signal, None)

    run(check())


def test_suspension_adds_to_the_run_time() -> None:
    def signal(name: str) -> SignalTask:
        return SignalTask(
            effect_id=EffectId("x"), epoch=1, deadline_s=0.0, site=SITE, node=NodeName("n1"),
            job_id=JobId("job-1"), attempt=1, task=0, signal=name,
        )  # fmt: skip

    async def check() -> None:
        async with World() as world:
            await world.engine.launch(order(duration_s=10.0), {})
            world.engine.advance(1004.0)
            await world.engine.signal(signal("SIGSTOP"))
            world.engine.advance(1104.0)
            await world.engine.signal(signal("SIGCONT"))
            world.engine.advance(1200.0)
            assert world.ends()[0].at_s == 1110.0

    run(check())


def fault(kind: NodeFaultKind, after_s: float) -> NodeFault:
    return NodeFault(node="n1", kind=kind, after_s=after_s)


def test_an_end_on_a_lost_node_is_told_when_it_returns() -> None:
    faults = (fault(NodeFaultKind.LOST, 5.0), fault(NodeFaultKind.RETURNED, 50.0))

    async def check() -> None:
        async with World(faults=faults) as world:
            await world.engine.launch(order(duration_s=10.0), {})
            world.engine.advance(1040.0)
            assert isinstance(world.seen[-1], NodeLost)
            refused = await world.engine.launch(order("job-2"), {})
            assert isinstance(refused, TaskLaunchFailed)
            assert refused.is_retryable
            world.engine.advance(1060.0)
            assert isinstance(world.seen[-2], NodeReported)
            assert world.ends()[0].at_s == 1010.0

    run(check())


def test_a_fenced_node_ends_its_tasks() -> None:
    faults = (
        fault(NodeFaultKind.LOST, 5.0),
        fault(NodeFaultKind.FENCED, 6.0),
        fault(NodeFaultKind.RETURNED, 7.0),
    )

    async def check() -> None:
        async with World(faults=faults) as world:
            await world.engine.launch(order(duration_s=100.0), {})
            world.engine.advance(1006.0)
            assert isinstance(world.seen[-1], NodeFenced)
            assert world.ends() == []
            world.engine.advance(1200.0)
            (end,) = world.ends()
            assert (end.at_s, end.is_lost) == (1006.0, True)

    run(check())


def test_a_removed_node_takes_no_more_tasks() -> None:
    async def check() -> None:
        async with World(faults=(fault(NodeFaultKind.REMOVED, 5.0),)) as world:
            await world.engine.launch(order(), {})
            world.engine.advance(1005.0)
            assert isinstance(world.seen[-1], NodeRemoved)
            assert world.ends()[0].is_lost
            assert isinstance(await world.engine.launch(order("job-2"), {}), TaskLaunchFailed)

    run(check())


def test_the_state_file_outlives_the_server(tmp_path: Path) -> None:
    path = tmp_path / "sim.json"

    async def check() -> None:
        async with World(state=open_state(path)) as world:
            await world.engine.launch(order(duration_s=10.0), {})
            await world.engine.launch(order("job-2", duration_s=100.0), {})
        async with World(state=open_state(path)) as world:
            refs = [
                TaskRef(job_id=JobId(job), attempt=1, task=0, node=NodeName("n1"))
                for job in ("job-1", "job-2", "job-3")
            ]
            assert await world.engine.adopt([refs[0], refs[2]]) == [refs[1]]
            assert [(end.job_id, end.is_lost) for end in world.ends()] == [("job-3", True)]
            world.engine.advance(1020.0)
            assert [(end.job_id, end.at_s) for end in world.ends()][1:] == [("job-1", 1010.0)]

    run(check())


def test_logs_follow_the_clock() -> None:
    async def check() -> None:
        async with World(rule(line_every_s=10.0, lines=("hello",), duration_s=25.0)) as world:
            await world.engine.launch(order(), {})
            ref = TaskRef(job_id=JobId("job-1"), attempt=1, task=0, node=NodeName("n1"))
            texts: list[str] = []

            async def follow() -> None:
                async for line in world.engine.logs(ref, LogQuery(is_following=True)):
                    texts.append(line.text.split(" loss")[0])

            following = asyncio.create_task(follow())
            await asyncio.sleep(0)
            assert texts == ["hello", "step 0"]
            for now_s in (1010.0, 1020.0, 1025.0, 1026.0):
                world.engine.advance(now_s)
                for _ in range(3):
                    await asyncio.sleep(0)
            await following
            assert texts == ["hello", "step 0", "step 1", "step 2"]
            tail = [line async for line in world.engine.logs(ref, LogQuery(tail=1))]
            assert [line.at_s for line in tail] == [1020.0]

    run(check())


def test_closing_wakes_whoever_waits() -> None:
    async def check() -> None:
        async with World(rule(launch_s=20.0)) as world:
            launching = asyncio.create_task(world.engine.launch(order(), {}))
            await asyncio.sleep(0)
        with pytest.raises(EngineError, match="closed"):
            await launching

    run(check())


def test_only_a_virtual_clock_can_be_advanced() -> None:
    engine = SimEngine(site=SITE, nodes=NODES, clock=lambda: 0.0, state=SimState())
    with pytest.raises(TypeError, match="virtual"):
        engine.advance(1.0)


def test_marks_go_on_from_the_offset_and_end_with_the_task() -> None:
    async def check() -> None:
        steps = Steps(every_s=2.0, own_s=1.0, slow_task=0, slow_ratio=1.5, slow_from_step=3)
        async with World(rule(steps=steps)) as world:
            await world.engine.launch(order(duration_s=10.0), {})
            ref = TaskRef(job_id=JobId("job-1"), attempt=1, task=0, node=NodeName("n1"))
            world.engine.advance(1005.0)
            ((text, offset),) = await world.engine.marks([(ref, 0)])
            marks = [parse_mark(line) for line in text.splitlines()]
            assert [(m.at_s, m.step, round(m.own_s, 1)) for m in marks if m] == [
                (1002.0, 1, 1.0), (1004.0, 2, 1.0),
            ]  # fmt: skip
            assert await world.engine.marks([(ref, offset)]) == [("", offset)]
            world.engine.advance(1100.0)
            ((text, offset),) = await world.engine.marks([(ref, offset)])
            assert [line.split()[2] for line in text.splitlines()] == ["3", "4", "5"]
            assert all(float(line.split()[4]) > 1.4 for line in text.splitlines())
            assert offset == 5
            stranger = TaskRef(job_id=JobId("job-9"), attempt=1, task=0, node=NodeName("n1"))
            assert await world.engine.marks([(stranger, 0)]) == [("", 0)]

    run(check())
