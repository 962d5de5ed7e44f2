"""Devices on a real Ray cluster: the planned ones, also against Ray's own choice."""

from __future__ import annotations

import asyncio
import time

import pytest

from tercio.engines.base import LogQuery
from tercio.engines.bench import Bench, ShellPrograms, ref_of
from tercio.engines.ray.engine import RayEngine
from tercio.engines.ray.settings import RaySettings
from tercio.model.effects import DeviceOrder
from tercio.model.events import TaskLaunchFailed
from tercio.model.ids import SiteName
from tercio.model.resources import DeviceShare

from .lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]

OTHERS = """
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Pin
node = next(n['NodeID'] for n in ray.nodes() if n['NodeName'] == '{name}' and n['Alive'])
@ray.remote(num_gpus=6, num_cpus=0)
class Theirs:
    def where(self): return ray.get_gpu_ids()
theirs = Theirs.options(scheduling_strategy=Pin(node, soft=False)).remote()
print('HOLDS', *ray.get(theirs.where.remote()))
"""


def devices(*indexes: int) -> tuple[DeviceOrder, ...]:
    return tuple(
        DeviceOrder(share=DeviceShare(index=index), type="H100", vendor="nvidia")
        for index in indexes
    )


def test_ray_holds_exactly_the_planned_devices(lab: Lab) -> None:
    settings = RaySettings(
        address=lab.address, namespace="devices", node_dir=str(lab.home / "nodes")
    )

    async def run() -> None:
        bench = Bench(
            lambda: RayEngine(site=SiteName("here"), settings=settings, clock=time.time),
            ShellPrograms(),
            user="root",
            deadline_s=90.0,
        )
        await bench.open()
        try:
            # Left to itself Ray would give 0 and 1.
            command = {"command": "echo sees $CUDA_VISIBLE_DEVICES; exec sleep 600"}
            _, ref = await bench.start({**command, "devices": devices(3, 5)})
            await bench.until_printed(ref, "sees 3,5")
            assert "devices/decoy" not in str(lab.state()["groups"])
            name = bench.nodes[0].name.removeprefix("here-")
            with lab.driver(OTHERS.replace("{name}", name)) as told:
                theirs = sorted(map(int, told("HOLDS").split()[1:]))
                assert theirs == [0, 1, 2, 4, 6, 7]
                order = bench.order({**command, "devices": devices(4)})
                answer = await bench.engine.launch(order, {})
                assert isinstance(answer, TaskLaunchFailed)
                assert answer.is_retryable
                assert "no room in Ray" in answer.message
            assert [line.text for line in await bench.lines(ref, LogQuery())] == ["sees 3,5"]
            assert ref_of(order) not in await bench.engine.adopt([ref])
        finally:
            await bench.close()

    asyncio.run(run())
    assert lab.state()["groups"] == []
