"""Slurm's words read without Slurm: answers of 22.05 as recorded, later ones after their schema."""

from __future__ import annotations

import pytest

from tercio.engines.base import TaskRef
from tercio.engines.containers import ContainerProgram
from tercio.engines.slurm import facts
from tercio.engines.slurm.inventory import Held, Site, foreign_seats, node_views
from tercio.engines.slurm.options import SlurmOptions
from tercio.engines.slurm.order import (
    Refused,
    Seat,
    comment_of,
    gres_of,
    read_comment,
    sbatch_words,
)
from tercio.engines.slurm.site_facts import capabilities_of
from tercio.engines.slurm.tables import (
    JOB_PHASES,
    NODE_WORDS,
    Openness,
    Phase,
    is_passing,
    job_phase,
    node_openness,
)
from tercio.engines.slurm.text import expand_hosts, read_gres, read_memory, read_pairs, read_span
from tercio.model.effects import DeviceOrder, LaunchTask
from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.model.resources import DeviceShare

# `scontrol show node -o -d`, Slurm 22.05.8.
NODE_LINE = (
    "NodeName=n2 Arch=x86_64 CoresPerSocket=32  CPUAlloc=8 CPUEfctv=64 CPUTot=64 CPULoad=0.71 "
    "AvailableFeatures=h100,nvlink ActiveFeatures=h100,nvlink Gres=gpu:h100:8 GresDrain=N/A "
    "GresUsed=gpu:h100:3(IDX:0-2) NodeAddr=10.0.0.2 NodeHostName=vm Port=35385 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=512000 AllocMem=1024 FreeMem=19367 "
    "Sockets=2 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
    "MCS_label=N/A Partitions=gpu,debug  BootTime=2026-11-30T12:49:26 "
    "SlurmdStartTime=2026-11-30T16:04:09 CfgTRES=cpu=64,mem=500G,billing=64,gres/gpu=8 "
    "AllocTRES=cpu=8,mem=1G CapWatts=n/a{reason}"
)
PARTITION = facts.Partition(name="gpu", is_default=True, is_up=True, nodes=("n1", "n2"))
SITE = Site(name=SiteName("hpc"))


@pytest.mark.parametrize(
    ("state", "openness", "word"),
    [
        ("IDLE", Openness.OPEN, ""),
        ("MIXED", Openness.OPEN, ""),
        ("IDLE+DRAIN", Openness.CLOSED, "drain"),
        ("ALLOCATED+DRAIN", Openness.CLOSED, "drain"),
        ("DOWN*", Openness.DOWN, "down"),
        ("IDLE*", Openness.DOWN, "idle"),
        ("DOWN+DRAIN+NOT_RESPONDING", Openness.DOWN, "not_responding"),
        ("MIXED+CLOUD+POWERED_DOWN", Openness.OPEN, ""),
        ("IDLE~", Openness.OPEN, ""),
        ("IDLE+RESERVED", Openness.CLOSED, "reserved"),
        ("ALLOCATED+MAINTENANCE_OF_TOMORROW", Openness.CLOSED, "maintenance_of_tomorrow"),
        ("INVAL", Openness.CLOSED, "inval"),
        ("FUTURE", Openness.ABSENT, "future"),
        ("MIXED-", Openness.OPEN, ""),
    ],
)
def test_every_node_state_opens_or_closes(state: str, openness: Openness, word: str) -> None:
    found, why = node_openness(state)
    assert found is openness
    assert word in why if word else why == ()


def test_no_state_of_a_manual_is_unknown() -> None:
    # scontrol(1), "NODE STATE CODES", and squeue(1), "JOB STATE CODES", 22.05 to 25.05.
    nodes = """ALLOCATED CLOUD COMPLETING DOWN DRAIN DRAINED DRAINING FAIL FAILING FUTURE IDLE
        INVAL MAINT MIXED PERFCTRS PLANNED POWERED_DOWN POWERING_DOWN POWERING_UP RESERVED UNKNOWN
        BLOCKED POWER_DOWN POWER_UP REBOOT_REQUESTED REBOOT_ISSUED NOT_RESPONDING DYNAMIC_NORM"""
    jobs = """BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL
        PENDING OUT_OF_MEMORY PREEMPTED RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED
        RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT
        LAUNCH_FAILED"""
    assert [word for word in nodes.split() if word not in NODE_WORDS] == []
    assert [word for word in jobs.split() if word not in JOB_PHASES] == []
    assert job_phase("CANCELLED by 1000") is Phase.ENDED
    assert job_phase("SOMETHING_NEW") is Phase.RUNNING


def test_host_lists_of_every_form() -> None:
    assert expand_hosts("r[01-02]n[1,3-4],x") == (
        "r01n1", "r01n3", "r01n4", "r02n1", "r02n3", "r02n4", "x",
    )  # fmt: skip
    assert expand_hosts("(null)") == ()
    assert expand_hosts("") == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:h100:8(S:0-1)", [("gpu", "h100", 8)]),
        ("gpu:a100:4,gpu:v100:2", [("gpu", "a100", 4), ("gpu", "v100", 2)]),
        ("shard:16", [("shard", "", 16)]),
        ("gres/gpu:h100=2", [("gpu", "h100", 2)]),
        ("gres:gpu:3", [("gpu", "", 3)]),
        ("gpu", [("gpu", "", 1)]),
        ("gpu:h100:0(IDX:N/A)", [("gpu", "h100", 0)]),
        ("gpu:nvidia_a100-sxm4-80gb:4(IDX:0-3)", [("gpu", "nvidia_a100-sxm4-80gb", 4)]),
        ("gpu:a100_1g.5gb:7", [("gpu", "a100_1g.5gb", 7)]),
        ("(null)", []),
        ("N/A", []),
    ],
)  # fmt: skip
def test_generic_resources_of_every_form(text: str, found: list[tuple[str, str, int]]) -> None:
    assert [(each.name, each.type, each.count) for each in read_gres(text)] == found


def test_sizes_and_spans() -> None:
    assert read_memory("1.5T") == 3 * 1024**4 // 2
    assert read_memory("4000Mn") == 4000 * 1024**2
    assert read_span("2-00:00:00") == 172_800.0
    assert read_span("30") == 1800.0
    assert read_span("INVALID") is None


def test_a_reason_may_hold_anything() -> None:
    line = NODE_LINE.format(state="IDLE+DRAIN", reason=" Reason=fan=bad Temp=90 C [root@now]")
    (node,) = facts.nodes_from_text(line)
    assert node.why == "drain in Slurm: fan=bad Temp=90 C [root@now]"
    assert node.openness is Openness.CLOSED
    assert read_pairs(line)["OS"] == "Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0"


REST_OLD = {
    "name": "n2", "state": "mixed", "state_flags": ["DRAIN"], "gres": "gpu:h100:8",
    "gres_used": "gpu:h100:3(IDX:0-2)", "cpus": 64, "alloc_cpus": 8, "real_memory": 512000,
    "alloc_memory": 1024, "address": "10.0.0.2", "partitions": ["gpu"], "reason": "fan",
    "active_features": "h100,nvlink", "boot_time": 1, "slurmd_start_time": 2,
}  # fmt: skip
REST_NEW = {
    **REST_OLD, "state": ["MIXED", "DRAIN"], "state_flags": None, "effective_cpus": 64,
    "active_features": ["h100", "nvlink"],
    "boot_time": {"set": True, "infinite": False, "number": 1},
    "slurmd_start_time": {"set": True, "infinite": False, "number": 2},
}  # fmt: skip


def test_text_and_both_generations_of_json_say_the_same() -> None:
    (text,) = facts.nodes_from_text(NODE_LINE.format(state="MIXED+DRAIN", reason=" Reason=fan"))
    (old,) = facts.nodes_from_json({"nodes": [REST_OLD]})
    (new,) = facts.nodes_from_json({"nodes": [REST_NEW]})
    assert old == new
    for name in ("name", "openness", "why", "gres", "gres_used", "cpus", "cpus_used",
                 "memory_bytes", "memory_used_bytes", "address", "features"):  # fmt: skip
        assert getattr(text, name) == getattr(new, name), name


def test_jobs_of_both_generations_of_json() -> None:
    old = {
        "job_id": 7, "job_state": "RUNNING", "user_name": "ana", "cpus": 8, "nodes": "n[1-2]",
        "tres_per_node": "gres:gpu:3", "end_time": 1600, "comment": "mine", "memory_per_node": 1024,
    }  # fmt: skip
    new = {
        **old, "job_state": ["RUNNING"], "cpus": {"set": True, "infinite": False, "number": 8},
        "tres_per_node": "gres/gpu:3", "comment": "mine",
        "end_time": {"set": True, "infinite": False, "number": 1600},
        "memory_per_node": {"set": True, "infinite": False, "number": 1024},
    }  # fmt: skip
    ended = {"job_id": 8, "job_state": ["COMPLETED"]}
    body = [facts.jobs_from_json({"jobs": [job, ended]}, 1000.0) for job in (old, new)]
    assert body[0] == body[1]
    (job,) = body[0]
    assert (job.nodes, job.left_s, job.memory_bytes) == (("n1", "n2"), 600.0, 1024**3)
    line = "7|RUNNING|ana|gpu|8|1G|gres:gpu:3|10:00|n[1-2]|(null)|None|mine | with a bar"
    (text,) = facts.jobs_from_text(f"{line}\nnot a job\n")
    assert (text.nodes, text.gres, text.left_s) == (job.nodes, job.gres, 600.0)
    assert text.comment == "mine | with a bar"


def test_topology_of_switches_and_of_blocks() -> None:
    tree = "SwitchName=leaf1 Level=0 Nodes=n[1-2]\nSwitchName=spine Level=1 Nodes=n[1-4]\n"
    assert facts.topology_from_text(tree)["n1"] == {"rack": "leaf1", "block": "spine"}
    assert facts.topology_from_text("BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2") == {
        "n1": {"island": "b1"}, "n2": {"island": "b1"},
    }  # fmt: skip


def views(held: dict[str, Held], **changes: object) -> dict[NodeName, object]:
    (node,) = facts.nodes_from_text(NODE_LINE.format(state="MIXED", reason=""))
    (job,) = facts.jobs_from_text("7|RUNNING|bob|gpu|8|1G|gpu:3|10:00|n2|(null)|None|")
    asked = {
        "nodes": [node], "jobs": [job], "partitions": [PARTITION], "reservations": [],
        "held": held, "now_s": 6000.0, **changes,
    }  # fmt: skip
    return node_views(SITE, **asked)  # type: ignore[arg-type,return-value]


def test_what_others_hold_is_put_on_seats_of_nobody_else() -> None:
    spec = views({})[NodeName("n2")].spec  # type: ignore[attr-defined]
    assert spec.foreign_devices == (5, 6, 7)
    assert spec.foreign_ends_s == (6600.0, 6600.0, 6600.0)
    assert (spec.cpus_milli, spec.memory_bytes) == (56_000, (512_000 - 1024) * 1024**2)
    assert [device.type for device in spec.devices] == ["H100"] * 8
    ours = {"n2": Held(seats=(6, 7), cpus=8, memory_bytes=1024**3)}
    spec = views(ours)[NodeName("n2")].spec  # type: ignore[attr-defined]
    # Two of the three devices in use are ours, and all cores and memory.
    assert spec.foreign_devices == (5,)
    assert (spec.cpus_milli, spec.memory_bytes) == (64_000, 512_000 * 1024**2)


def test_a_node_whose_cores_are_all_taken_is_not_one_of_unknown_size() -> None:
    full = NODE_LINE.replace("CPUAlloc=8", "CPUAlloc=64").replace(
        "AllocMem=1024", "AllocMem=512000"
    )
    nodes = facts.nodes_from_text(full.format(state="MIXED", reason=""))
    spec = views({}, nodes=nodes)[NodeName("n2")].spec  # type: ignore[attr-defined]
    assert (spec.cpus_milli, spec.memory_bytes) == (1, 1)


def test_a_task_that_slurm_has_not_started_loses_its_seat_last() -> None:
    waiting = Held(seats=(0,), waiting_seats=(6, 7))
    assert foreign_seats(8, 2, waiting) == (4, 5)
    assert foreign_seats(8, 6, waiting) == (1, 2, 3, 4, 5, 7)
    assert foreign_seats(8, 0, waiting) == ()


def test_reservations_and_partitions_close_nodes() -> None:
    kept = facts.ReservedNodes(name="r1", nodes=("n2",), holders="user bob")
    assert views({}, reservations=[kept])[NodeName("n2")].spec.closed == (  # type: ignore[attr-defined]
        "reserved in Slurm (r1) for user bob"
    )
    down = facts.Partition(name="gpu", is_default=True, is_up=False, nodes=("n2",))
    assert "gpu is not up" in views({}, partitions=[down])[NodeName("n2")].why  # type: ignore[attr-defined]
    other = facts.Partition(name="cpu", is_default=True, is_up=True, nodes=("c1",))
    assert views({}, partitions=[other]) == {}


def order(*devices: DeviceShare, **changes: object) -> LaunchTask:
    fields: dict[str, object] = {
        "effect_id": EffectId("launch:job-00001/2/3"), "epoch": 1, "deadline_s": 0.0,
        "site": SiteName("hpc"), "node": NodeName("n2"), "job_id": JobId("job-00001"),
        "attempt": 2, "task": 3, "user": "ana", "command": "true", "cpus_milli": 7500,
        "memory_bytes": 1024**3, "grace_s": 30.0,
        "devices": tuple(DeviceOrder(share=d, type="H100", vendor="nvidia") for d in devices),
        **changes,
    }  # fmt: skip
    return LaunchTask(**fields)  # type: ignore[arg-type]


SEAT = Seat(
    node="n2", partition="gpu", gres_types=("h100",) * 4 + ("a100",) * 4, memory_bytes=2**40
)


def words(given: LaunchTask, *, is_pinned: bool = True) -> list[str]:
    return sbatch_words(given, SEAT, owner="abcd", directory="/spool/x", is_pinned=is_pinned)


def test_a_task_is_pinned_with_its_devices_and_carries_its_ids() -> None:
    given = order(DeviceShare(index=1), DeviceShare(index=2), DeviceShare(index=5), limit_s=3600.0)
    told = words(given)
    assert "--nodelist=n2" in told
    assert "--gres=gpu:h100:2,gpu:a100:1" in told
    assert "--cpus-per-task=8" in told
    assert "--mem=1024M" in told
    # The limit is Tercio's own; Slurm's is only the last resort behind it.
    assert "--time=66" in told
    assert "--no-requeue" in told
    assert "--nodelist=n2" not in words(given, is_pinned=False)
    tag = read_comment(comment_of(given, "abcd"))
    assert tag is not None
    assert (tag.owner, tag.devices) == ("abcd", (1, 2, 5))
    assert tag.ref == TaskRef(job_id=JobId("job-00001"), attempt=2, task=3, node=NodeName("n2"))


@pytest.mark.parametrize("comment", ["", "tercio", "tercio abcd launch:x n1 -", "their own words"])
def test_other_comments_are_not_ours(comment: str) -> None:
    assert read_comment(comment) is None


def test_shares_of_a_device_are_refused() -> None:
    with pytest.raises(Refused, match="whole devices"):
        gres_of(order(DeviceShare(index=0, milli=500)), SEAT)


@pytest.mark.parametrize(
    ("told", "is_right"),
    [
        ({"poll_s": 0.0}, False),
        ({"local": True, "ssh": "ana@login"}, False),
        ({"rest": "slurmrestd:6820"}, False),
        ({"spool": "here"}, False),
        ({"device_type": ("gpu",)}, False),
        ({"device_type": ("gpu=A100",)}, True),
        ({"rest": "unix:/run/slurmrestd.sock"}, True),
    ],
)
def test_options_are_checked(told: dict[str, object], *, is_right: bool) -> None:
    if is_right:
        SlurmOptions(**told)  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError):
        SlurmOptions(**told)  # type: ignore[arg-type]


def test_what_slurm_enforces_is_read_from_its_configuration() -> None:
    config = "TaskPlugin = task/affinity,task/cgroup\nConstrainDevices = yes\nConstrainCores = no\n"
    pyxis = ContainerProgram(name="pyxis", path="srun", why="")
    found = capabilities_of(config, SlurmOptions(), is_root=True, program=pyxis)
    assert found.runs_images
    assert (found.isolates_devices, found.limits_cpus, found.switches_user) == (True, False, True)
    assert "ConstrainCores=yes" in found.notes["limits_cpus"]
    alone = capabilities_of(
        "", SlurmOptions(ssh="ana@login"), is_root=True, program=ContainerProgram()
    )
    assert "apptainer" in alone.notes["runs_images"]
    assert not alone.switches_user
    assert "ana@login" in alone.notes["switches_user"]


def test_faults_that_pass_are_told_from_refusals() -> None:
    assert is_passing("sbatch: error: Socket timed out on send/recv operation")
    assert not is_passing("Requested node configuration is not available")
