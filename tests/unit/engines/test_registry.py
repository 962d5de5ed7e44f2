from __future__ import annotations

import asyncio
import time

import pytest

from tercio.engines.base import TaskRef
from tercio.engines.bench import SimPrograms
from tercio.engines.conformance import CHECKS, run_conformance
from tercio.engines.registry import EngineKind, engine_class, kinds, load
from tercio.engines.sim.engine import SimEngine
from tercio.engines.sim.state import SimState
from tercio.errors import UserError
from tercio.model.effects import LaunchTask
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import DeviceSpec, MigSpec, NodeSpec


def test_every_kind_loads_a_class_of_that_kind() -> None:
    assert [engine_class(kind).kind for kind in kinds()] == list(kinds())  # type: ignore[attr-defined]


def test_an_unknown_kind_gets_the_nearest() -> None:
    with pytest.raises(UserError) as error:
        engine_class("lokal")
    assert error.value.hint == "did you mean 'local'?"


def test_a_missing_package_gives_the_install_hint() -> None:
    entry = EngineKind(path="no_such_sdk.engine:Engine", install="pip install 'tercio[x]'")
    with pytest.raises(UserError, match="no_such_sdk") as error:
        load("x", entry)
    assert (error.value.code, error.value.hint) == ("unsupported", "pip install 'tercio[x]'")


CARD = DeviceSpec(type="H100", index=0, card_bytes=80 * 10**9, mig=MigSpec())
NODE = NodeSpec(name=NodeName("n1"), site=SiteName("sim"), devices=(CARD,))


def report_of(engine: type[SimEngine], deadline_s: float) -> dict[str, tuple[str, str]]:
    state = SimState()

    def connect() -> SimEngine:
        return engine(site=NODE.site, nodes=[NODE], clock=time.time, state=state)

    report = asyncio.run(run_conformance(connect, programs=SimPrograms(), deadline_s=deadline_s))
    assert len(report.outcomes) == len(CHECKS)
    assert report.is_passed == all(o.status != "failed" for o in report.outcomes)
    return {outcome.id: (outcome.status, outcome.reason) for outcome in report.outcomes}


def test_the_report_names_what_passed_and_why_the_rest_was_skipped() -> None:
    report = report_of(SimEngine, 10.0)
    for name, needs in (("executes", "executes"), ("reads-marks", "reads_marks")):
        why = f"no {needs}: simulated tasks have no processes"
        assert report.pop(name) == ("skipped", why)
    assert {status for status, _ in report.values()} == {"passed"}


class Forgetful(SimEngine):
    """Starts a task again for every order, fences nothing, and adopts nothing."""

    async def launch(self, order: LaunchTask, secrets: object) -> object:  # type: ignore[override]
        self._state.tasks.clear()
        self._state.epoch = 0
        return await super().launch(order, {})

    async def adopt(self, known: object) -> list[TaskRef]:  # type: ignore[override]
        return []


def test_a_broken_engine_fails_the_checks_it_breaks() -> None:
    report = report_of(Forgetful, 0.5)
    failed = {check for check, (status, _) in report.items() if status == "failed"}
    assert failed >= {
        "launches-once",
        "answers-launch-after-end",
        "fences-older-runs",
        "stop-fences-a-launch",
        "returns-unknown",
        "tells-missing-as-lost",
    }
    assert "kills-after-grace" not in failed
