"""Slices of cards under a running server: made before the task, over refusals and crashes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from live_world import World, run
from tercio.engines.sim.script import CutFault, SimScript
from tercio.model.effects import ReconfigureDevice
from tercio.model.events import DeviceReconfigured, TaskStarted
from tercio.model.ids import NodeName
from tercio.model.job import EndCause, JobSpec, JobState, RetrySpec, TimeSpec
from tercio.model.resources import DeviceRequest
from tercio.testing.factories import make_job, make_nodes

LONG = TimeSpec(expected_s=3600.0)


def sliced(profile: str, *, time: TimeSpec = LONG) -> JobSpec:
    retry = RetrySpec(on=(EndCause.NODE_FAILED,), max=1, backoff_s=0.0)
    spec = make_job(time=time, retry=retry)
    group = spec.groups[0]
    request = DeviceRequest(type="H100", count=1, mig_profile=profile)
    ask = msgspec.structs.replace(group.per_task, devices=(request,))
    return msgspec.structs.replace(spec, groups=(msgspec.structs.replace(group, per_task=ask),))


def test_a_card_is_cut_before_the_task_and_whole_again_for_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, nodes=make_nodes(1, devices=1)) as world:
            part = await world.submit(sliced("3g.40gb", time=TimeSpec(expected_s=0.0)))
            await world.ended(part)
            mig = world.running.driver.cluster.nodes[NodeName("n1")].spec.devices[0].mig
            assert mig is not None
            assert [(p.profile, p.start) for p in mig.slices] == [("3g.40gb", 4)]
            whole = await world.submit(make_job(time=TimeSpec(expected_s=0.0)))
            await world.ended(whole)
            told = [e for e in world.events() if isinstance(e, DeviceReconfigured | TaskStarted)]
            assert [type(event) for event in told] == [
                DeviceReconfigured, TaskStarted, DeviceReconfigured, TaskStarted,
            ]  # fmt: skip

    run(test())


def test_a_server_killed_while_a_card_is_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    async def test() -> None:
        slow = SimScript(cut_faults=(CutFault(node="n1", after_s=3600.0),))
        world = World(tmp_path, nodes=make_nodes(1, devices=1), script=slow)
        await world.start()
        job = await world.submit(sliced("1g.10gb"))
        cluster = world.running.driver.cluster
        await world.until(lambda: len(cluster.open_effects) == 1)
        (order,) = cluster.open_effects.values()
        assert isinstance(order, ReconfigureDevice)
        assert len(cluster.held_launches) == 1
        await world.crash()
        world.script = None
        async with world:
            await world.until(lambda: world.job(job).state is JobState.RUNNING)
            (answer,) = world.events(DeviceReconfigured)
            assert isinstance(answer, DeviceReconfigured)
            assert answer.effect_id == order.effect_id
            assert world.job(job).attempt == 1

    run(test())


def test_a_card_that_refuses_is_left_and_its_task_starts_on_another(tmp_path: Path) -> None:
    async def test() -> None:
        refuses = CutFault(node="n1", message="in use by pid 7", is_retryable=False, times=9)
        script = SimScript(cut_faults=(refuses,))
        world = World(tmp_path, nodes=make_nodes(2, devices=1), script=script)
        async with world:
            job = await world.submit(sliced("1g.10gb"))
            await world.until(lambda: world.job(job).state is JobState.RUNNING)
            assert world.job(job).attempt == 2
            assert [t.placement.node for t in world.job(job).live_tasks] == ["n2"]
            fault = world.running.driver.cluster.nodes[NodeName("n1")].slice_fault(0)
            assert fault is not None
            assert fault.reason == "in use by pid 7"

    run(test())
