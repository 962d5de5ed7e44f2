"""Readings in: faults out once, nothing stale shown, energy and idle time per task."""

from __future__ import annotations

import msgspec

from tercio.collect.dcgm import families
from tercio.core.cluster import Cluster
from tercio.model.events import (
    AnyEvent,
    FaultCleared,
    FaultFound,
    JobPlaced,
    JobSubmitted,
    NodeReported,
    ServerStarted,
    TaskExited,
)
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.node import MigSlice, MigSpec
from tercio.model.placement import TaskPlacement
from tercio.model.readings import DeviceTelemetry, KernelLine, NodeReading, SliceTelemetry
from tercio.model.resources import DeviceShare
from tercio.runtime.telemetry import Telemetry, jobs_by_uuid
from tercio.runtime.turn import admitted
from tercio.testing import make_job, make_node

N1 = NodeName("n1")
JOB = JobId("job-00001")
XID_79 = "NVRM: Xid (PCI:0000:11:00): 79, pid=1, name=python, GPU has fallen off the bus."
XID_45 = "NVRM: Xid (PCI:0000:11:00): 45, pid=1, name=python, Ch 00000008"


class Site:
    """A cluster of one node, its telemetry, and a clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.cluster = Cluster()
        self.facts: list[AnyEvent] = []
        self.apply(ServerStarted(at_s=self.now_s, epoch=1, version="t"))
        self.apply(NodeReported(at_s=self.now_s, spec=make_node("n1", devices=2)))
        self.telemetry = Telemetry(
            cluster=lambda: self.cluster, deliver=self.deliver, now=lambda: self.now_s, poll_s=10.0
        )

    def apply(self, event: AnyEvent) -> None:
        self.cluster.apply(event)

    def deliver(self, event: AnyEvent) -> None:
        admissible = admitted(self.cluster, event, self.now_s)
        if admissible is not None:
            self.facts.append(admissible)
            self.apply(admissible)

    def read(self, *lines: KernelLine, after_s: float = 10.0, **fields: object) -> None:
        self.now_s += after_s
        devices = tuple(self.device(i, **fields) for i in range(2))
        self.telemetry.take(
            (N1,), NodeReading(at_s=0.0, boot_id="b" * 8, devices=devices, lines=lines)
        )

    def device(self, index: int, **fields: object) -> DeviceTelemetry:
        found = DeviceTelemetry(
            index=index, uuid=f"n1-{index}", serial=f"S{index}", pci=f"00000000:1{index}:00.0",
            utilization_ratio=0.9, energy_mj=int(self.now_s * 300_000), power_w=300.0,
        )  # fmt: skip
        return msgspec.structs.replace(found, **{k: v for k, v in fields.items() if index == 1})

    def run(self, *, milli: int = 1000) -> None:
        task = TaskPlacement(
            task=0, node=N1, cpus_milli=1000, devices=(DeviceShare(index=1, milli=milli),)
        )
        self.place(JOB, task)

    def place(self, job_id: JobId, task: TaskPlacement) -> None:
        self.apply(
            JobSubmitted(
                at_s=self.now_s, job_id=job_id, spec=make_job(), queue=QueuePath("default"),
                user="ana", tenant="default",
            )
        )  # fmt: skip
        self.apply(JobPlaced(at_s=self.now_s, job_id=job_id, attempt=1, tasks=(task,)))

    def end(self) -> TaskExited:
        end = TaskExited(at_s=self.now_s, job_id=JOB, attempt=1, task=0, exit_code=0)
        return self.telemetry.ended(end)


def test_each_slice_of_a_card_names_its_own_job() -> None:
    """Card 1 is cut into three; two are held by two jobs. Whole devices are told as ever."""
    site = Site()
    sizes = ((0, "1g.10gb"), (1, "1g.10gb"), (4, "3g.40gb"))
    slices = tuple(
        MigSlice(profile=name, start=start, size=int(name[0]), uuid=f"MIG-{start}")
        for start, name in sizes
    )
    spec = make_node("n1", devices=2)
    cut = msgspec.structs.replace(spec.devices[1], mig=MigSpec(is_on=True, slices=slices))
    spec = msgspec.structs.replace(spec, devices=(spec.devices[0], cut))
    site.apply(NodeReported(at_s=site.now_s, spec=spec))
    for number, (start, name) in enumerate(sizes[:2], 1):
        share = DeviceShare(index=1, milli=125, mig_profile=name, mig_start=start, mig_size=1)
        shares = (DeviceShare(index=0), share) if number == 1 else (share,)
        site.place(JobId(f"job-0000{number}"), TaskPlacement(task=0, node=N1, devices=shares))
    assert jobs_by_uuid(site.cluster, (N1,)) == {
        "n1-0": ("job-00001",), "n1-1": ("job-00001", "job-00002"),
        "MIG-0": ("job-00001",), "MIG-1": ("job-00002",),
    }  # fmt: skip
    told = tuple(SliceTelemetry(number=7 + start, uuid=f"MIG-{start}", memory_used_bytes=0)
                 for start, _ in sizes)  # fmt: skip
    site.read(slices=told, memory_used_bytes=0)
    by_slice = {
        (sample.labels["gpu"], sample.labels["GPU_I_ID"]): sample.labels["hpc_job"]
        for family in families(site.telemetry.exported())
        if family.name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE")
        for sample in family.samples
    }
    assert by_slice == {
        ("0", ""): "job-00001", ("1", ""): "", ("1", "7"): "job-00001", ("1", "8"): "job-00002",
        ("1", "11"): "",
    }  # fmt: skip


def test_a_burst_is_one_fault_with_the_root_and_the_job() -> None:
    site = Site()
    site.run()
    site.read()
    site.read(KernelLine(seq=7, text=XID_79), KernelLine(seq=8, text=XID_45))
    (found,) = site.facts
    assert isinstance(found, FaultFound)
    fault = found.fault
    assert (fault.code, fault.device, fault.serial, fault.job) == ("79", 1, "n1-1", JOB)
    assert (fault.severity, fault.action) == ("fatal", "reboot_node")
    assert fault.id.endswith("/7")


def test_lines_that_are_told_again_are_no_second_fault() -> None:
    site = Site()
    site.read()
    line = KernelLine(seq=7, text=XID_79)
    site.read(line)
    # The server restarts: its memory of the node is gone, the agent repeats what it is not sure of.
    site.telemetry = Telemetry(
        cluster=lambda: site.cluster, deliver=site.deliver, now=lambda: site.now_s, poll_s=10.0
    )
    site.read(line)
    assert len(site.facts) == 1


def test_a_flag_is_a_fault_while_it_stands() -> None:
    site = Site()
    site.read(is_remap_pending=True)
    site.read(is_remap_pending=True)
    (found,) = site.facts
    assert isinstance(found, FaultFound)
    assert (found.fault.code, found.fault.action) == ("row_remap_pending", "reset_gpu_when_idle")
    site.read(is_remap_pending=False)
    assert site.facts[1:] == [FaultCleared(at_s=site.now_s, node=N1, fault_id=found.fault.id)]


def test_a_lost_device_is_a_fault_unless_the_kernel_said_why() -> None:
    site = Site()
    site.read()
    site.read(fault="GPU is lost", energy_mj=None)
    assert [e.fault.code for e in site.facts if isinstance(e, FaultFound)] == ["gpu_unreachable"]
    other = Site()
    other.read()
    other.read(KernelLine(seq=1, text=XID_79), fault="GPU is lost", energy_mj=None)
    assert [e.fault.code for e in other.facts if isinstance(e, FaultFound)] == ["79"]


def test_one_missed_deadline_is_no_fault_and_three_are() -> None:
    site = Site()
    site.read()
    for _ in range(2):
        site.now_s += 10
        site.telemetry.take((N1,), NodeReading(at_s=0.0, notes={"probe": "no answer within 20s"}))
    assert not site.facts
    site.now_s += 10
    site.telemetry.take((N1,), NodeReading(at_s=0.0, notes={"probe": "no answer within 20s"}))
    assert [e.fault.code for e in site.facts if isinstance(e, FaultFound)] == ["gpu_unreachable"]


def test_a_normal_clock_reason_is_no_fault() -> None:
    site = Site()
    for _ in range(3):
        site.read(throttle_mask=0x4)
    assert not site.facts


def test_stale_is_absent() -> None:
    site = Site()
    site.read()
    assert site.telemetry.latest(N1) is not None
    assert set(site.telemetry.devices(N1)) == {0, 1}
    site.now_s += 31
    assert site.telemetry.latest(N1) is None
    assert site.telemetry.devices(N1) == {}


def test_energy_and_idle_time_of_a_task() -> None:
    site = Site()
    site.read()
    site.now_s += 5
    site.run()
    site.read(after_s=5.0)
    for _ in range(7):
        site.read(utilization_ratio=0.01)
    site.read()
    measured = site.end().measured
    assert measured is not None
    # 85 s at 300 W: half of the first span, and eight whole ones.
    assert (measured.energy_mj, measured.energy_source) == (25_500_000, "counter")
    assert measured.seen == ((1015.0, 1100.0),)
    assert measured.low == ((1020.0, 1090.0),)
    assert site.end().measured is None


def test_a_share_of_a_device_is_an_estimate() -> None:
    site = Site()
    site.run(milli=250)
    site.read()
    site.read()
    measured = site.end().measured
    assert measured is not None
    assert (measured.energy_mj, measured.energy_source) == (750_000, "estimate")
