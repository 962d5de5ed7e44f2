"""Small programs of real frameworks, as gangs on this machine, from the command line."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from .room import Room

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("many-ports"), pytest.mark.timeout(400)]

PAIR = {
    "tasks": 2,
    "per_task": {"devices": "CPU:1", "cpus": 0.5, "memory": "3GiB"},
    "time": {"limit": "10m"},
}

# Unbuffered, `print` writes a line in parts, and those of two ranks may mix on a busy machine.
WHOLE_LINES = """
import os
def print(*words, flush=True):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""

FSDP = """
import os, signal, sys, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
wanted = False
def save_soon(*_):
    global wanted
    wanted = True
signal.signal(signal.SIGUSR1, save_soon)
dist.init_process_group("gloo")
rank, steps = dist.get_rank(), int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(64, 16, generator=torch.Generator().manual_seed(rank))
y = x.sum(dim=1, keepdim=True)
state = {"model": model.state_dict(), "step": torch.zeros(())}
path = os.environ["TERCIO_CHECKPOINT_DIR"]
if os.path.exists(os.path.join(path, ".metadata")):
    dcp.load(state, checkpoint_id=path)
    model.load_state_dict(state["model"])
    print("rank", rank, "resumes after step", int(state["step"]), flush=True)
for step in range(int(state["step"]) + 1, steps + 1):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    told = torch.tensor([loss.item(), 0.0])
    dist.all_reduce(told)
    if rank == 0:
        print("step", step, "loss", told[0].item(), flush=True)
    # One rank may hear of the signal a step before the other: they agree before they leave.
    flag = torch.tensor([float(wanted)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if flag.item():
        dcp.save({"model": model.state_dict(), "step": torch.tensor(float(step))},
                 checkpoint_id=path)
        print("rank", rank, "saved at step", step, flush=True)
        break
    if os.environ["TERCIO_ATTEMPT"] == "1":
        import time
        time.sleep(0.05)
else:
    print("done", flush=True)
dist.barrier()
# PyTorch's own threads may abort an interpreter that comes to its end; all is done by now.
os._exit(0)
"""

ELASTIC = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0])
dist.all_reduce(total)
print("world", int(total.item()), flush=True)
dist.destroy_process_group()
"""

JAX = """
import jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
import jax.numpy as jnp
seen = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1]))
print("process", jax.process_index(), "of", jax.process_count(), "sum", int(seen.sum()), flush=True)
"""

MPI = """
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
# One write: mpirun mixes the parts of two ranks' lines otherwise.
import os; os.write(1, f"rank {world.rank} of {world.size} sum {total}\\n".encode())
"""

TENSORFLOW = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np, tensorflow as tf, tf_keras
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
history = model.fit(x, x.sum(1, keepdims=True), epochs=3, batch_size=16, verbose=0)
losses = history.history["loss"]
print("replicas", strategy.num_replicas_in_sync, "learns", losses[-1] < losses[0], flush=True)
"""

RAY = """
import ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Learner:
    def __init__(self, data): self.data = data
    def gradient(self, w): return sum(2 * x * (w * x - 3 * x) for x in self.data) / len(self.data)
    def task(self): return ray.get_runtime_context().get_node_id()
learners = [Learner.remote([1.0 + i, 2.0 + i]) for i in range(2)]
w = 0.0
for _ in range(60):
    w -= 0.02 * sum(ray.get([one.gradient.remote(w) for one in learners]))
homes = {ray.get(one.task.remote()) for one in learners}
print("learned", round(w, 3), "on", len(homes), "nodes", flush=True)
"""

DASK = """
import dask.array as da
from distributed import Client
with Client() as client:
    workers = len(client.scheduler_info()["workers"])
    print("sum", int(da.ones((300, 300), chunks=100).sum().compute()), "on", workers, flush=True)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    room = Room(tmp_path_factory.mktemp("frameworks"))
    try:
        room.up()
        yield room
    finally:
        room.close()


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def run(room: Room, program: str, command: str = "python program.py", **fields: object) -> str:
    """Run a gang of two and return its log; it must succeed."""
    (room.work / "program.py").write_text(WHOLE_LINES + program, encoding="utf-8")
    job = room.submit(command, **{**PAIR, "workdir": str(room.work), **fields})
    view = room.ended(job)
    log = room.cli("logs", job)
    assert view.state == "succeeded", f"{room.cli('story', job)}\n{log}"
    return log


def interrupted(room: Room, interrupt: Callable[[str], None], **fields: object) -> str:
    """Train until `interrupt` has the gang saved and begun again; check the whole of it.

    All ranks save at one step, which they agree on, and the loss goes on from there.
    """
    needs("torch")
    (room.work / "program.py").write_text(WHOLE_LINES + FSDP, encoding="utf-8")
    kept = room.work / "checkpoint"
    shutil.rmtree(kept, ignore_errors=True)
    steps = 200
    job_id = room.submit(
        f"python program.py {steps}", workdir=str(room.work),
        checkpoint={"path": str(kept), "signal": "SIGUSR1", "grace": "120s"},
        **{**PAIR, **fields},
    )  # fmt: skip
    with room.following("logs", "-f", job_id) as log:
        log.until("step 20 ")
        interrupt(job_id)
        log.rest()
    view = room.ended(job_id)
    # The follower saw both attempts.
    told = "\n".join(log.lines)
    story = f"{room.cli('story', job_id)}\n{told}"
    assert (view.state, view.attempt) == ("succeeded", 2), story
    saved = re.findall(r"rank (\d) saved at step (\d+)", told)
    assert sorted(rank for rank, _ in saved) == ["0", "1"], told
    (agreed,) = {int(step) for _, step in saved}
    assert re.findall(r"resumes after step (\d+)", told) == [str(agreed)] * 2
    losses = {int(s): float(v) for s, v in re.findall(r"step (\d+) loss ([0-9.e-]+)", told)}
    assert list(losses) == list(range(1, steps + 1))
    # Plain descent on fixed samples only goes down: a lost or repeated step would show.
    assert all(losses[n + 1] < losses[n] for n in range(1, steps)), losses
    return job_id


PREEMPTING = """\
preemption: {within_queue: lower_priority, min_runtime: 0s, grace: 120s}
queues: {default: {}}
"""


def preempted(room: Room, **fields: object) -> None:
    """Have a gang give way to an urgent job that needs a place of it, and go on after it.

    `fields` are such that the urgent job has no other place.
    """
    (room.work / "policy.yaml").write_text(PREEMPTING, encoding="utf-8")
    room.cli("policy", "set", "policy.yaml")

    def urge(_: str) -> None:
        urgent = room.submit("sleep 1; echo urgent", priority=10, **fields)
        # Nothing but the victims' own end makes its place: the signal, the save, the exit.
        assert room.ended(urgent).state == "succeeded", room.cli("story", urgent)

    job_id = interrupted(
        room, urge, priority=-10, preemptible=True, framework="torch",
        retry={"on": ["preempted"], "backoff": "0s"}, **fields,
    )  # fmt: skip
    assert any("preempt" in line for line in room.story(job_id))


def test_fsdp_saves_on_the_grace_signal_and_goes_on_from_there(shared: Room) -> None:
    def requeue(job_id: str) -> None:
        shared.cli("requeue", job_id)

    interrupted(shared, requeue, framework="torchrun")


@pytest.mark.full
def test_fsdp_is_preempted_and_goes_on_after_the_urgent_job(shared: Room) -> None:
    preempted(shared, per_task={"devices": "CPU:1", "cpus": 0.5, "memory": "3GiB"})


def elastic_pair(room: Room, **fields: object) -> None:
    """Whoever is there joins: torchrun's own rendezvous."""
    needs("torch")
    command = (
        "torchrun --nnodes=1:2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=$TERCIO_JOB "
        "--rdzv-conf=join_timeout=300,last_call_timeout=20 "
        "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT program.py"
    )
    assert run(room, ELASTIC, command, **fields).count("world 2") == 2


def fsdp_pair(room: Room, **fields: object) -> None:
    """Sharded training by torchrun."""
    needs("torch")
    fields = {**fields, "checkpoint": {"path": str(room.work / "none")}}
    log = run(room, FSDP, "python program.py 5", framework="torchrun", **fields)
    assert log.count("done") == 2
    assert "step 5 loss" in log


def jax_pair(room: Room, **fields: object) -> None:
    """JAX's own cluster, without arguments."""
    needs("jax")
    log = run(room, JAX, framework="jax", **fields)
    assert "process 0 of 2 sum 3" in log
    assert "process 1 of 2 sum 3" in log


def mpi_pair(room: Room, **fields: object) -> None:
    """An mpirun of the first task over the hosts of all."""
    needs("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    # Two tasks share this host, so the hosts file has two slots for it.
    command = f"mpirun --allow-run-as-root {sys.executable} program.py"
    log = run(room, MPI, command, framework="mpi", **fields)
    assert "rank 0 of 2 sum 3" in log
    assert "rank 1 of 2 sum 3" in log


def ray_pair(room: Room, **fields: object) -> None:
    """A Ray program on a cluster that is the job's own."""
    needs("ray")
    # Two Ray nodes of one machine: each counts whole cores.
    fields = {"per_task": {**PAIR["per_task"], "cpus": 0.9}, **fields}
    assert "learned 3.0 on 2 nodes" in run(room, RAY, framework="ray", **fields)


def dask_pair(room: Room, **fields: object) -> None:
    """A Dask program on a cluster that is the job's own."""
    needs("distributed")
    assert "sum 90000 on 2" in run(room, DASK, framework="dask", **fields)


def tensorflow_pair(room: Room, **fields: object) -> None:
    """MultiWorkerMirroredStrategy by TF_CONFIG."""
    needs("tensorflow")
    if "topology" in fields:
        # Nodes of a lab share the ports of one machine, and each worker binds its own on all
        # addresses: after another job the first node hands out other numbers than the second.
        before = room.submit("true", **{**fields, "topology": {}}, tasks=1)
        assert room.ended(before).state == "succeeded"
    log = run(room, TENSORFLOW, framework="tensorflow", **fields)
    assert log.count("replicas 2 learns True") == 2


class RunPair(Protocol):
    """Runs a gang of two with one framework, which must find each other."""

    __name__: str

    def __call__(self, room: Room, **fields: object) -> None: ...


PAIRS: tuple[RunPair, ...] = (
    fsdp_pair, elastic_pair, jax_pair, mpi_pair, ray_pair, dask_pair, tensorflow_pair,
)  # fmt: skip
OFTEN = (jax_pair, mpi_pair, ray_pair, dask_pair)


@pytest.mark.parametrize(
    "pair",
    [pair if pair in OFTEN else pytest.param(pair, marks=pytest.mark.full) for pair in PAIRS],
    ids=lambda pair: pair.__name__,
)
def test_the_ranks_of_every_framework_find_each_other(shared: Room, pair: RunPair) -> None:
    pair(shared)
