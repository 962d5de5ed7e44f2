import json

import pytest
from gangs import NODES, launches

from tercio.errors import InvariantViolation
from tercio.launch.recipes import TaskLaunch, advise, render
from tercio.model.job import CheckpointSpec, Framework, JobSpec, TaskGroup
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceRequest, Request

TWO_NODES = ["n1", "n1", "n2", "n2"]


def column(found, name):
    return [launch.env.get(name) for launch in found]


def test_every_task_knows_itself():
    found = launches(
        TWO_NODES, attempt=3, name="sft", checkpoint=CheckpointSpec(path="/c", grace_s=90)
    )
    assert [launch.task for launch in found] == [0, 1, 2, 3]
    assert column(found, "TERCIO_JOB") == ["job-00001"] * 4
    assert column(found, "TERCIO_ATTEMPT") == ["3"] * 4
    assert column(found, "TERCIO_TASK") == ["0", "1", "2", "3"]
    assert column(found, "TERCIO_TASKS") == ["4"] * 4
    assert column(found, "TERCIO_NODE") == TWO_NODES
    env = found[1].env
    assert env["TERCIO_JOB_NAME"] == "sft"
    assert env["TERCIO_NODES"] == "n1,n2"
    assert env["TERCIO_PORTS"] == "20010,20011,20012,20013"
    assert env["TERCIO_GRACE_S"] == "90"
    assert env["TERCIO_CHECKPOINT_DIR"] == "/c"
    assert "TERCIO_ARRAY_INDEX" not in env
    assert "TERCIO_GROUP" not in env


def test_plain_tasks_get_the_names_of_other_tools():
    found = launches(TWO_NODES, devices=2, name="sft")
    assert found[2].command == "python train.py"
    expected = {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20000",
        "NODE_RANK": "1",
        "SKYPILOT_NODE_RANK": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.1\n10.0.0.2\n10.0.0.2",
        "SKYPILOT_NUM_NODES": "4",
        "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_TASK_ID": "tercio-job-00001-1",
        "DSTACK_NODE_RANK": "2",
        "DSTACK_NODES_NUM": "4",
        "DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.1\n10.0.0.2\n10.0.0.2",
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
        "DSTACK_GPUS_PER_NODE": "2",
        "DSTACK_GPUS_NUM": "8",
        "DSTACK_RUN_NAME": "sft",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NAME": "sft",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "n1,n2",
        "SLURM_GPUS_PER_NODE": "4",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "OMP_NUM_THREADS": "4",
    }
    ours = {name: found[2].env[name] for name in found[2].env if not name.startswith("TERCIO_")}
    assert ours == expected


def test_a_gang_on_one_node_meets_on_loopback():
    env = launches(["n2", "n2"])[1].env
    assert env["MASTER_ADDR"] == "127.0.0.1"
    assert env["SKYPILOT_NODE_IPS"] == "127.0.0.1\n127.0.0.1"


def test_an_element_of_an_array_knows_its_index():
    env = launches(["n1"], job_id="job-0000z.7")[0].env
    assert env["TERCIO_ARRAY_INDEX"] == "7"
    assert (env["SLURM_ARRAY_JOB_ID"], env["SLURM_ARRAY_TASK_ID"]) == ("31", "7")
    other = launches(["n1"], job_id="job-0000z.8")[0].env
    assert len({env["SLURM_JOB_ID"], other["SLURM_JOB_ID"], "31"}) == 3


def test_the_users_environment_wins_over_conveniences_but_not_over_ours():
    env = launches(
        ["n1"],
        framework=Framework.TORCH,
        env={"OMP_NUM_THREADS": "1", "MASTER_PORT": "1", "RANK": "9", "TERCIO_TASK": "9", "A": "b"},
    )[0].env
    assert (env["OMP_NUM_THREADS"], env["MASTER_PORT"], env["RANK"]) == ("1", "1", "9")
    assert env["TERCIO_TASK"] == "0"
    assert env["A"] == "b"


@pytest.mark.parametrize(
    ("framework", "devices", "cpus_milli", "threads"),
    [
        (Framework.PLAIN, 4, 8000, "8"),
        (Framework.TORCHRUN, 4, 8000, "2"),
        (Framework.TORCHRUN, 8, 4000, "1"),
        (Framework.TORCHRUN, 0, 8000, "8"),
        (Framework.PLAIN, 1, 500, "1"),
        (Framework.PLAIN, 1, 0, None),
    ],
)
def test_threads_follow_the_cores(framework, devices, cpus_milli, threads):
    found = launches(["n1"], framework=framework, devices=devices, cpus_milli=cpus_milli)
    assert column(found, "OMP_NUM_THREADS") == [threads]


def test_torch_has_one_rank_per_task():
    found = launches(["n1", "n2", "n1"], framework=Framework.TORCH)
    assert column(found, "RANK") == ["0", "1", "2"]
    assert column(found, "WORLD_SIZE") == ["3"] * 3
    assert column(found, "LOCAL_RANK") == ["0", "0", "1"]
    assert column(found, "LOCAL_WORLD_SIZE") == ["2", "1", "2"]
    assert column(found, "NODE_RANK") == ["0", "1", "0"]
    assert found[0].command == "python train.py"


def test_plain_sets_no_ranks():
    assert column(launches(["n1"]), "RANK") == [None]


def test_torchrun_wraps_the_command():
    found = launches(
        TWO_NODES, devices=2, framework=Framework.TORCHRUN, run="python a.py --x 'y z'"
    )
    for task, launch in enumerate(found):
        assert launch.files == {"tercio-run.sh": "python a.py --x 'y z'"}
        words = launch.command.split()
        for word in (
            "--nnodes=4", "--nproc-per-node=2", f"--node-rank={task}", "--master-addr=10.0.0.1",
            "--master-port=20000", "--no-python", "--rdzv-id=job-00001-1",
        ):  # fmt: skip
            assert word in words
    assert column(found, "RANK") == [None] * 4


def test_torchrun_without_devices_starts_one_rank():
    [launch] = launches(["n1"], devices=0, framework=Framework.TORCHRUN)
    assert "--nproc-per-node=1" in launch.command


@pytest.mark.parametrize(
    ("grace_s", "timeout"), [(120.0, "115"), (30.0, "25"), (4.0, "2"), (0.0, "1")]
)
def test_torchrun_leaves_before_the_grace_ends(grace_s, timeout):
    [launch] = launches(
        ["n1"], framework=Framework.TORCHRUN, checkpoint=CheckpointSpec(grace_s=grace_s)
    )
    assert launch.env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == timeout


def test_shells_live_through_the_checkpoint_signal():
    checkpoint = CheckpointSpec(signal="SIGUSR1")
    [plain] = launches(["n1"], checkpoint=checkpoint, run="./go")
    assert plain.command == "trap : USR1\n./go"
    [wrapped] = launches(["n1"], checkpoint=checkpoint, run="./go", framework=Framework.TORCHRUN)
    assert wrapped.command.startswith("trap '' USR1\n")
    assert wrapped.files["tercio-run.sh"] == "trap : USR1\n./go"
    [other] = launches(["n1"], checkpoint=CheckpointSpec(signal="SIGTERM"), run="./go")
    assert other.command == "./go"


def test_tensorflow_gets_one_cluster_and_each_its_task():
    found = launches(TWO_NODES, framework=Framework.TENSORFLOW)
    configs = [json.loads(launch.env["TF_CONFIG"]) for launch in found]
    workers = ["10.0.0.1:20001", "10.0.0.1:20011", "10.0.0.2:20021", "10.0.0.2:20031"]
    assert all(config["cluster"] == {"worker": workers} for config in configs)
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": index} for index in range(4)
    ]


def test_tensorflow_roles_are_group_names():
    groups = tuple(TaskGroup(name=name) for name in ("chief", "ps", "trainer", "evaluator"))
    rendered = launches(
        ["n1", "n2", "n2", "n3", "n3"],
        framework=Framework.TENSORFLOW,
        groups=groups,
        group_of=[0, 1, 2, 2, 3],
    )
    configs = [json.loads(launch.env["TF_CONFIG"]) for launch in rendered]
    assert configs[0]["cluster"] == {
        "chief": ["10.0.0.1:20001"],
        "ps": ["10.0.0.2:20011"],
        "worker": ["10.0.0.2:20021", "10.0.0.3:20031"],
    }
    assert [config["task"] for config in configs] == [
        {"type": "chief", "index": 0},
        {"type": "ps", "index": 0},
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
        {"type": "evaluator", "index": 0},
    ]
    assert [launch.env["TERCIO_GROUP"] for launch in rendered][2:4] == ["trainer", "trainer"]


def test_jax_has_one_coordinator_beside_the_master_port():
    found = launches(["n2", "n1"], framework=Framework.JAX)
    assert column(found, "JAX_COORDINATOR_ADDRESS") == ["10.0.0.2:20001"] * 2
    assert column(found, "JAX_NUM_PROCESSES") == ["2", "2"]
    assert column(found, "JAX_PROCESS_ID") == ["0", "1"]


def test_jax_finds_its_processes_by_the_names_it_knows():
    for rank, launch in enumerate(launches(["n1", "n1"], framework=Framework.JAX, devices=2)):
        slurm = {name: value for name, value in launch.env.items() if name.startswith("SLURM_")}
        assert slurm == {
            "SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "2",
            "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
        }  # fmt: skip
        assert launch.env["JAX_LOCAL_DEVICE_IDS"] == "0,1"


def test_mpi_that_would_look_for_srun_sees_no_slurm():
    for launch in launches(TWO_NODES, framework=Framework.MPI):
        assert not [name for name in launch.env if name.startswith("SLURM_")]


def test_setup_and_order_are_kept():
    found = launches(["n1", "n1"], setup="pip install x", framework=Framework.TORCHRUN)
    assert [launch.setup for launch in found] == ["pip install x"] * 2
    assert isinstance(found[0], TaskLaunch)


@pytest.mark.parametrize("framework", list(Framework))
def test_every_framework_renders_every_task(framework):
    found = launches(TWO_NODES, framework=framework, devices=2)
    assert [launch.task for launch in found] == [0, 1, 2, 3]
    for launch in found:
        assert launch.command.strip()
        assert all("\0" not in value for value in launch.env.values())


def test_tasks_without_ports_are_a_bug():
    spec = JobSpec(name="x", run="a")
    with pytest.raises(InvariantViolation, match="ports"):
        render(
            spec, job_id="job-1", attempt=1, tasks=(TaskPlacement(task=0, node="n1"),),
            nodes=NODES, ports={0: ()},
        )  # fmt: skip


def test_advice():
    two = TaskGroup(per_task=Request(devices=(DeviceRequest(type="H100", count=2),)))
    assert "torchrun" in advise(JobSpec(name="x", framework=Framework.TORCH, groups=(two,)))[0]
    assert advise(JobSpec(name="x", framework=Framework.TORCHRUN, groups=(two,))) == ()
    assert advise(JobSpec(name="x", framework=Framework.TORCH)) == ()
    nested = TaskGroup(name="g", subgroups=(two, two))
    assert advise(JobSpec(name="x", framework=Framework.TORCH, groups=(nested,)))
    several = TaskGroup(tasks=2)
    assert "task 0" in advise(JobSpec(name="x", framework=Framework.MPI, groups=(several,)))[0]


def test_a_ray_cluster_has_a_head_and_workers_with_their_own_share():
    found = launches(["n1", "n2"], framework=Framework.RAY, devices=8, cpus_milli=16_000)
    plans = [json.loads(each.files["tercio-cluster.json"]) for each in found]
    assert [plan["address"] for plan in plans] == ["10.0.0.1", "10.0.0.2"]
    assert {(plan["host"], plan["port"], plan["last_port"]) for plan in plans} == {
        ("10.0.0.1", 20000, 20003)
    }
    assert plans[1]["ray"][:2] == ["--num-cpus=16", "--num-gpus=8"]
    assert found[0].env["RAY_ADDRESS"] == "10.0.0.1:20000"
    assert [each.command.split()[-1] for each in found] == ["tercio-run.sh", "follow"]
    assert found[0].files["tercio-run.sh"] == "python train.py"


def test_a_dask_worker_names_its_task_and_its_devices():
    found = launches(["n1", "n1"], framework=Framework.DASK, devices=2, cpus_milli=4000)
    plan = json.loads(found[1].files["tercio-cluster.json"])
    assert plan["dask"] == ["--nthreads", "4", "--name", "task-1", "--resources", "GPU=2"]
    assert found[1].env["DASK_SCHEDULER_ADDRESS"] == "tcp://127.0.0.1:20000"
