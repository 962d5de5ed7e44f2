"""The shipped conformance suite, on every engine that runs here."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec
import pytest

from tercio.engines.base import Engine
from tercio.engines.bench import Programs, ShellPrograms, SimPrograms
from tercio.engines.conformance import CHECKS, Check, run_check
from tercio.engines.registry import engine_class
from tercio.engines.sim.state import SimState
from tercio.model.ids import NodeName, SiteName
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
