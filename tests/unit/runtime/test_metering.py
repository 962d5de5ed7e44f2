"""What telemetry keeps: sums over a restart, one reading of a node, and no more with time."""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
from pathlib import Path

import pytest
from test_telemetry import JOB, Site

from tercio.core.cluster import Cluster
from tercio.model.events import NodeRemoved, NodeReported, ServerStarted
from tercio.model.ids import NodeName
from tercio.model.readings import DeviceTelemetry, KernelLine, NodeReading
from tercio.runtime import telemetry as module
from tercio.runtime.metering import METERS, KeptFile
from tercio.runtime.spotting import LINES_KEPT
from tercio.runtime.telemetry import Telemetry
from tercio.testing import make_node

NODES = 125
DEVICES = 8
BYTES_PER_DEVICE_MAX = 64 * 2**20 // 10_000


def test_the_sums_of_a_running_task_outlive_the_server(tmp_path: Path) -> None:
    site = Site()
    site.run()
    for _ in range(4):
        site.read(utilization_ratio=0.0)
    before = site.telemetry.measured(JOB, 1, 0)
    assert before is not None
    assert before.energy_mj > 0
    asyncio.run(KeptFile(tmp_path / METERS, site.telemetry).save())
    assert (tmp_path / METERS).stat().st_mode & 0o777 == 0o600, "of the server's user alone"
    site.telemetry = Telemetry(
        cluster=lambda: site.cluster, deliver=site.deliver, now=lambda: site.now_s, poll_s=10.0
    )
    KeptFile(tmp_path / METERS, site.telemetry).load()
    assert site.telemetry.measured(JOB, 1, 0) == before
    site.read()
    site.read()
    end = site.end()
    assert end.measured is not None
    assert end.measured.energy_mj > before.energy_mj
    assert end.measured.low == before.low


def test_a_damaged_or_missing_file_is_no_reason_not_to_start(tmp_path: Path) -> None:
    site = Site()
    KeptFile(tmp_path / METERS, site.telemetry).load()
    (tmp_path / METERS).write_bytes(b"\xc1 nonsense")
    KeptFile(tmp_path / METERS, site.telemetry).load()
    assert site.telemetry.measured(JOB, 1, 0) is None


class Odd:
    """Something kept whose image cannot be made, or has nowhere to go."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def image(self) -> bytes:
        if self.failure is not None:
            raise self.failure
        return b"image"

    def load(self, image: bytes) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "failure", "level"),
    [
        ("gone/it", None, logging.WARNING),
        ("it", ValueError("no image"), logging.ERROR),
        ("it", RuntimeError("no image"), logging.ERROR),
    ],
    ids=["no directory", "a value that makes no sense", "a bug"],
)
def test_what_cannot_be_saved_keeps_no_server_from_stopping(
    tmp_path: Path, path: str, failure: Exception | None, level: int,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async def scene() -> None:
        file = KeptFile(tmp_path / path, Odd(failure))
        file.start()
        await asyncio.sleep(0)
        await file.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert [record.levelno for record in caplog.records] == [level]


def test_it_is_saved_a_last_time_at_the_stop(tmp_path: Path) -> None:
    async def scene() -> None:
        file = KeptFile(tmp_path / "it", Odd())
        await file.stop()
        assert not (tmp_path / "it").exists()
        file.start()
        await file.stop()

    asyncio.run(scene())
    assert (tmp_path / "it").read_bytes() == b"image"


class Fleet:
    """Many nodes that report again and again."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.cluster = Cluster()
        self.cluster.apply(ServerStarted(at_s=self.now_s, epoch=1, version="t"))
        self.names = [NodeName(f"n{number}") for number in range(NODES)]
        for name in self.names:
            spec = make_node(name, devices=DEVICES)
            self.cluster.apply(NodeReported(at_s=self.now_s, spec=spec))
        self.telemetry = Telemetry(
            cluster=lambda: self.cluster, deliver=lambda _: None, now=lambda: self.now_s,
            poll_s=10.0, keep_s=100.0,
        )  # fmt: skip

    def poll(self, times: int, names: list[NodeName] | None = None) -> None:
        for _ in range(times):
            self.now_s += 10.0
            for name in names if names is not None else self.names:
                devices = tuple(
                    DeviceTelemetry(
                        index=i, uuid=f"{name}-{i}", serial=f"S{name}{i}",
                        pci=f"00000000:1{i}:00.0", name="NVIDIA H100 80GB HBM3",
                        utilization_ratio=0.9, power_w=self.now_s % 700,
                        energy_mj=int(self.now_s * 300_000), temperature_c=60.0,
                    )
                    for i in range(DEVICES)
                )  # fmt: skip
                reading = NodeReading(at_s=0.0, boot_id="b" * 8, devices=devices)
                self.telemetry.take((name,), reading)


def test_memory_is_bounded_by_the_fleet_and_does_not_grow_with_time() -> None:
    fleet = Fleet()
    fleet.poll(1, fleet.names[:1])  # the fault table is read once
    tracemalloc.start()
    try:
        fleet.poll(11)  # as far back as readings are kept
        gc.collect()
        first, _ = tracemalloc.get_traced_memory()
        fleet.poll(6)
        gc.collect()
        last, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert first < NODES * DEVICES * BYTES_PER_DEVICE_MAX
    assert last < first * 1.02


def test_nodes_that_are_gone_or_silent_are_dropped() -> None:
    fleet = Fleet()
    fleet.poll(1)
    gone, silent = fleet.names[0], fleet.names[1]
    fleet.cluster.apply(NodeRemoved(at_s=fleet.now_s, node=gone))
    rounds = -(-module.FORGET_EVERY_POLLS // (NODES - 2)) + 10
    fleet.poll(rounds, fleet.names[2:])
    assert gone not in fleet.telemetry._latest
    assert silent not in fleet.telemetry._latest
    assert len(fleet.telemetry._latest) == NODES - 2


def test_a_machine_that_floods_its_log_is_kept_within_bounds() -> None:
    fleet = Fleet()
    name = fleet.names[0]
    for first in range(0, 5 * LINES_KEPT, 100):
        fleet.now_s += 10.0
        lines = tuple(
            KernelLine(seq=first + n, text=f"NVRM: something {'x' * 500}") for n in range(100)
        )
        fleet.telemetry.take((name,), NodeReading(at_s=0.0, boot_id="b" * 8, lines=lines))
        assert len(fleet.telemetry._spotters[name]._seq_of_line) <= LINES_KEPT
    latest = fleet.telemetry.latest(name)
    assert latest is not None
    assert latest.lines == ()
