"""The shipped conformance suite, on every engine that runs here."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tercio.engines.base import Engine
from tercio.engines.bench import Bench, Programs, ShellPrograms, SimPrograms
from tercio.engines.conformance import CHECKS, Check, run_check
from tercio.engines.registry import engine_class
from tercio.engines.sim.engine import SimEngine
from tercio.engines.sim.state import SimState
from tercio.model.effects import LaunchTask
from tercio.model.events import TaskLaunchFailed, TaskStarted
from tercio.model.ids import JobId, NodeName, SiteName
from tercio.model.node import DeviceSpec, MigSpec, NodeSpec

SITE = SiteName("here")
NODE = NodeSpec(
    name=NodeName("n1"), site=SITE, devices=(DeviceSpec(type="CPU", index=0, vendor="cpu"),)
)


def connect_local(tmp_path: Path) -> Engine:
    from tercio.engines.local.settings import LocalSettings

    run_as = "root" if os.geteuid() == 0 else None
    return engine_class("local")(
        site=SITE,
        settings=LocalSettings(tasks_dir=str(tmp_path / "tasks"), run_as=run_as),
        clock=time.time,
        read_node=lambda is_ours: NODE,
    )


def connect_sim(state: SimState) -> Engine:
    card = DeviceSpec(type="H100", index=1, card_bytes=80 * 10**9, mig=MigSpec())
    node = msgspec.structs.replace(NODE, devices=(*NODE.devices, card))
    return engine_class("sim")(site=SITE, nodes=[node], clock=time.time, state=state)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("kind", ["local", "sim"])
def test_engine_keeps_the_contract(kind: str, check: Check, tmp_path: Path) -> None:
    state = SimState()
    programs: Programs = ShellPrograms() if kind == "local" else SimPrograms()

    def connect() -> Engine:
        return connect_local(tmp_path) if kind == "local" else connect_sim(state)

    outcome = asyncio.run(run_check(check, connect, programs=programs))
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason


class Taken(SimEngine):
    """Whose devices somebody else lets go of only after two launches."""

    refused: Final[list[JobId]] = []

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str]
    ) -> TaskStarted | TaskLaunchFailed:
        if len(self.refused) == 2:
            return await super().launch(order, secrets)
        self.refused.append(order.job_id)
        return TaskLaunchFailed(
            at_s=0.0, job_id=order.job_id, attempt=1, task=0, effect_id=order.effect_id,
            message="somebody else holds it", is_retryable=True,
        )  # fmt: skip


def test_a_launch_that_may_be_tried_again_is() -> None:
    """Who had the devices before may not have let go of them yet."""

    def connect() -> Engine:
        return Taken(site=SITE, nodes=[NODE], clock=time.time, state=SimState())

    async def run() -> None:
        bench = Bench(connect, SimPrograms(), user="root", deadline_s=30.0)
        await bench.open()
        order, _ = await bench.start(SimPrograms().runs())
        assert len(Taken.refused) == 2
        assert order.job_id not in Taken.refused
        await bench.close()

    asyncio.run(run())
