"""The shipped conformance suite on a real Ray cluster. It has no waivers."""

from __future__ import annotations

import asyncio
import time

import pytest

from tercio.engines.base import Engine
from tercio.engines.bench import ShellPrograms
from tercio.engines.conformance import CHECKS, Check, run_check
from tercio.engines.ray.engine import RayEngine
from tercio.engines.ray.settings import RaySettings
from tercio.model.ids import SiteName

from .lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_ray_keeps_the_contract(check: Check, lab: Lab) -> None:
    settings = RaySettings(
        address=lab.address, namespace="conformance", node_dir=str(lab.home / "nodes")
    )

    def connect() -> Engine:
        return RayEngine(site=SiteName("here"), settings=settings, clock=time.time)

    outcome = asyncio.run(run_check(check, connect, programs=ShellPrograms(), deadline_s=90.0))
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason
