"""Job files of other tools really run: the corpus on this machine, presented as sixteen nodes.

Gangs get their nodes, whole ones where a file asks for them, with as many devices as it asks for
(CPU devices), beside each other in a block, on the nodes it names, inside its reservation, after
the job it depends on. Programs only record how they were called, and so does the one that runs
images. Cores and memory are made small, as is shared memory.
"""

from __future__ import annotations

import getpass
import io
import os
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tercio.client import JobRequest
from tercio.formats.foreign.detect import read_foreign
from tercio.formats.foreign.draft import Fate

from .room import ROOT, Room

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FILES = ROOT / "tests" / "unit" / "formats" / "foreign" / "files"
KINDS = ("sbatch", "sky", "dstack", "kubernetes")
NODES = "; ".join(
    f"n{1 + at}={8 * at}-{8 * at + 7} block=b{1 + at // 8} disk=ssd" for at in range(16)
)
PROGRAMS = (
    "python", "torchrun", "pip", "git", "deepspeed", "accelerate", "vllm", "jupyter", "streamlit",
    "ray", "mpirun", "apptainer", "nvidia-smi", "docker", "wget", "axolotl", "perl", "conda",
)  # fmt: skip
RECORD = """#!/bin/sh
call="$(basename "$0") $* @$SLURM_PROCID${{IMAGE:+ in $IMAGE}}"
echo "$call" >> {told}/$TERCIO_JOB_NAME.$TERCIO_TASK
"""
APPTAINER = """#!/bin/sh
[ "$1" != --version ] || { echo apptainer version 1.3; exit 0; }
shift
while :; do
  case "$1" in
    --pwd=*) cd "${1#*=}" ;;
    --bind=*:/*) binds="$binds $1" ;;
    --*) ;;
    *) break ;;
  esac
  shift
done
export IMAGE="$1$binds"; shift
exec "$@"
"""
SMALLER = (
    (r"(shm_size: |--shm-size=)\d+GB?", r"\g<1>16MB"),
    (r"sizeLimit: \d+Gi", "sizeLimit: 16Mi"),
    (r"--begin=now\+1hour", "--begin=now"),
)
"""What no option of submit changes: shared memory, and an hour of waiting."""
FAILS = (
    "dstack/13-two-commands.dstack.yml",  # its first command is `false`
    "sky/06-file-mounts.yaml", "sky/16-git-workdir.yaml", "kubernetes/06-volumes.yaml",
)  # fmt: skip
"""Ends badly by itself, or for want of a mount or repository that the report names as dropped."""


class File(NamedTuple):
    """A file of the corpus as it is submitted here."""

    name: str
    text: str
    jobs: list[dict[str, Any]]


def corpus() -> list[File]:
    """All files but those that are refused by name."""
    found = []
    for kind in KINDS:
        for path in sorted((FILES / kind).iterdir()):
            text = path.read_text(encoding="utf-8")
            for pattern, smaller in SMALLER:
                text = re.sub(pattern, smaller, text)
            converted = read_foreign(text, source=path.name, kind=kind, now_s=1.8e9)
            if not any(loss.fate is Fate.REFUSED for loss in converted.losses):
                jobs = [dict(job) for job in converted.jobs]
                found.append(File(f"{kind}/{path.name}", text, jobs))
    return found


def request_of(file: File, path: str, workdir: str) -> JobRequest:
    """Ask for as many CPU devices as the file asks devices, of little cores and memory."""
    overrides: dict[str, Any] = {"cpus": "0.01", "memory": "64MiB", "env": {"PATH": path}}
    asked = {str(job.get("per_task", {}).get("devices", "")) for job in file.jobs} - {""}
    for devices in asked:
        overrides["gpus"] = f"CPU:{devices.split(' | ')[0].rpartition(':')[2]}"
    overrides.setdefault("gpus", "none")
    if any(str(job.get("workdir", "/"))[0] != "/" for job in file.jobs):
        overrides["workdir"] = "."
    if any("sites" in job for job in file.jobs):
        overrides["sites"] = ["local"]
    names = [str(name) for job in file.jobs for name in job.get("secrets") or ()]
    return JobRequest(
        file=file.text, source=file.name.partition("/")[2], overrides=overrides,
        secrets=dict.fromkeys(names, "s3cret"), workdir=workdir,
    )  # fmt: skip


NEMO = "docker://nvcr.io/nvidia/nemo:24.07 --bind=/tmp:/scratch"
TOLD = {
    "sweep.0": ["train.py --lr 1e-2 --seed 0 ", "train.py --lr 3e-4 --seed 11 "],
    "tokenise.0": ["python tokenise.py --workers 4 --out shards"],
    "ranks.0": ["python -u rank.py @0", "python -u rank.py @1"],
    "ranks.1": ["python -u rank.py @2", "python -u rank.py @3"],
    "nemotron-4.15": [f"pretrain.py @{rank} in {NEMO}" for rank in range(120, 128)],
    "llama-8b-pretrain.3": ["torchrun --nnodes=4 --nproc_per_node=8 "],
    "evaluate.0": ["python evaluate.py --all"],
    "zero3.0": ["deepspeed --hostfile "],
    "mapreduce.2": ["python map.py --shard 2 --of 3 --shards 12"],
    "resnet-ddp.1": ["--nnodes=2", "--node_rank=1"],
    "hyper.0": ["--lr 1e-3 --seed 3"],
    "wandb-run.0": ["python train.py --project demo"],
    "vicuna-finetune.0": ["--nproc_per_node=8 ", "train.py --size 7b ", "_batch_size 2 "],
    "nemo-ddp.1": ["--node-rank 1 --nproc-per-node 8 ", "in docker://nvcr.io/nvidia/nemo:24.05"],
    "bert-qa.0": ["python run_qa.py --config config.json --seed 7"],
    "embed.3": ["python embed.py --from 3000 --to 4000"],
    "etl.0": ["python etl.py --shards 8", "python report.py"],
    "gang.1": ["python rank.py 1 127.0.0.1"],
    "nccl-tests.0": ["mpirun --hostfile /", "-n 2 ./all_reduce_perf"],
    "torchrun-2x8.1": ["--nproc-per-node=8 --nnodes=2 --node-rank=1 "],
    "vllm-bench.0": ["--tensor-parallel-size 8 ", "in docker://rocm/vllm:latest"],
    "indexed.0": [f"python shard.py {index} " for index in range(6)],
    "render.0": [f"python render.py --frame {index} --of 8 " for index in range(8)],
    "finetune-lora.0": ["tune.py --model mistral 7b --note cost: $(5) a run"],
    "deadline.0": ["python train.py"],
}  # fmt: skip
"""What the programs of some tasks were called with."""
PLACED = {
    "sbatch/01-llm-torchrun.sbatch": [8] * 4, "sbatch/02-nemo-pyxis.sbatch": [8] * 16,
    "sbatch/09-gpus-total.sbatch": [8] * 2, "sbatch/18-ray-cluster.sbatch": [4] * 3,
    "sky/04-ordered.yaml": [1], "sky/17-deepspeed.yaml": [8] * 2,
    "dstack/24-nodes-h100.dstack.yml": [8] * 2, "kubernetes/21-torchrun-shm.yaml": [4],
}  # fmt: skip
"""How many devices the tasks of some gangs held."""
ON = {
    "sbatch/02-nemo-pyxis.sbatch": {f"n{at}" for at in range(1, 17)},
    "sbatch/13-nodelist.sbatch": {"n1", "n2"}, "kubernetes/16-node.yaml": {"n1"},
}  # fmt: skip
"""Nodes that files ask for by name, or all of them."""


def snapshot() -> bytes:
    packed = io.BytesIO()
    files = {
        "run.sh": "true", "stencil": "#!/bin/sh\ntrue", "src/it's here/x": "",
        "all_reduce_perf": "#!/bin/sh\ntrue",
        "pytorch-examples/distributed/ddp-tutorial-series/x": "",
    }  # fmt: skip
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def told(room: Room) -> Path:
    """A server of sixteen nodes; the directory in which programs record their calls."""
    stubs, told, images = room.path / "stubs", room.path / "told", room.path / "images"
    for each in (stubs, told, images):
        each.mkdir()
    for name in PROGRAMS:
        program(stubs / name, RECORD.format(told=told))
    program(images / "apptainer", APPTAINER)
    room.up(
        PATH=f"{images}{os.pathsep}{room.env['PATH']}", TERCIO_LOCAL__CONTAINERS="apptainer",
        TERCIO_LOCAL__CPU_DEVICES="128", TERCIO_LOCAL__NODES=NODES,
    )  # fmt: skip
    room.cli("reserve", "add", "maintenance", "--user", getpass.getuser(), "--gpus", "CPU:16",
             "--for", "1h")  # fmt: skip
    assert room.submit("true") == "job-00001"  # what one file depends on
    return told


def submit_all(room: Room, stubs: Path) -> dict[str, str]:
    """Submit every file; return its name by job, in the order of the files."""
    client = room.client()
    workdir = client.upload_workdir(snapshot())
    path = f"{stubs}{os.pathsep}{os.environ['PATH']}"
    submitted = {}
    for file in corpus():
        for job_id in client.submit(request_of(file, path, workdir)).ids:
            submitted[job_id] = file.name
            if client.job(job_id).state == "held":
                client.release(job_id)
    return submitted


def test_the_corpus_runs_on_this_machine(room: Room, told: Path) -> None:
    submitted = submit_all(room, told.with_name("stubs"))
    wrong, ended = [], {}
    for job_id, name in submitted.items():
        ended[name] = view = room.ended(job_id)
        if view.state != ("failed" if name in FAILS else "succeeded"):
            log = [line.text for line in room.client().logs(job_id, tail=5)]
            wrong.append((name, view.state, view.message, log))
    assert wrong == []
    ran = Counter(name.partition("/")[0] for name in ended if name not in FAILS)
    assert {kind: ran[kind] for kind in KINDS if ran[kind] < 20} == {}
    for task, pieces in TOLD.items():
        text = (told / task).read_text(encoding="utf-8")
        assert [piece for piece in pieces if piece not in text] == [], text
    for name, counts in PLACED.items():
        assert [len(task.devices) for task in ended[name].tasks] == counts, name
    for name, nodes in ON.items():
        assert {task.node for task in ended[name].tasks} == nodes, name
    assert "s3cret" not in "".join(file.read_text(encoding="utf-8") for file in told.iterdir())
