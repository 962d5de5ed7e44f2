"""Job files of other tools really run: the corpus on this machine, presented as sixteen nodes.

Gangs get their nodes, whole ones where a file asks for them, with as many devices as it asks for
(CPU devices), beside each other in a block, on the nodes it names, inside its reservation, after
the job it depends on. Programs only record how they were called, and so does the one that runs
images. Cores and memory are made small, as is shared memory.
"""

from __future__ import annotations

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
    "ray", "mpirun", "apptainer", "nvidia-smi", "docker", "wget", "axolotl", "perl",
)  # fmt: skip
RECORD = """#!/bin/sh
printf '%s' "$(basename "$0")" >> {told}/$TERCIO_JOB_NAME.$TERCIO_TASK
printf ' %s' "$@" >> {told}/$TERCIO_JOB_NAME.$TERCIO_TASK
printf ' @%s%s\\n' "$SLURM_PROCID" "${{IMAGE:+ in $IMAGE}}" >> {told}/$TERCIO_JOB_NAME.$TERCIO_TASK
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
    overrides: dict[str, Any] = {"cpus": "0.01", "memory": "32MiB", "env": {"PATH": path}}
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


TOLD = {
    "sweep.0": ["train.py --lr 1e-2 --seed 0 ", "train.py --lr 3e-4 --seed 11 "],
    "tokenise.0": ["python tokenise.py --workers 4 --out shards"],
    "ranks.0": ["python -u rank.py @0", "python -u rank.py @1"],
    "ranks.1": ["python -u rank.py @2", "python -u rank.py @3"],
    "mapreduce.2": ["python map.py --shard 2 --of 3 --shards 12"],
    "resnet-ddp.1": ["--nnodes=2", "--node_rank=1"],
    "hyper.0": ["--lr 1e-3 --seed 3"],
    "wandb-run.0": ["python train.py --project demo"],
    "etl.0": ["python etl.py --shards 8", "python report.py"],
    "gang.1": ["python rank.py 1 127.0.0.1"],
    "indexed.0": [f"python shard.py {index} " for index in range(6)],
    "deadline.0": ["python train.py"],
}  # fmt: skip
"""What the programs of some tasks were called with."""


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


def test_the_corpus_runs_on_this_machine(room: Room) -> None:
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
    client = room.client()
    workdir = client.upload_workdir(snapshot())
    room.cli("reserve", "add", "maintenance", "--user", "nobody", "--gpus", "CPU:1", "--for", "1h")
    assert room.submit("true") == "job-00001"  # what one file depends on
    path = f"{stubs}{os.pathsep}{os.environ['PATH']}"
    submitted = {}
    for file in corpus():
        for job_id in client.submit(request_of(file, path, workdir)).ids:
            submitted[job_id] = file.name
            if client.job(job_id).state == "held":
                client.release(job_id)
    wrong = []
    for job_id, name in submitted.items():
        view = room.ended(job_id)
        if view.state != ("failed" if name in FAILS else "succeeded"):
            log = [line.text for line in client.logs(job_id, tail=5)]
            wrong.append((name, view.state, view.message, log))
    assert wrong == []
    ran = Counter(name.partition("/")[0] for name in dict.fromkeys(submitted.values()) if name not in FAILS)
    print(ran)
    for task, pieces in TOLD.items():
        text = (told / task).read_text(encoding="utf-8")
        assert [piece for piece in pieces if piece not in text] == [], text
    assert "s3cret" not in "".join(file.read_text(encoding="utf-8") for file in told.iterdir())
