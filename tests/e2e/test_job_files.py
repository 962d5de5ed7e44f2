"""Job files of other tools really run: the corpus on this machine, with programs that only record.

Files that need an image, whole nodes, a site or a time of their own are left out; devices are
set to none.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tercio.client import JobRequest
from tercio.formats.foreign.detect import read_foreign
from tercio.formats.foreign.draft import Fate

from .room import ROOT, Room

pytestmark = pytest.mark.e2e

FILES = ROOT / "tests" / "unit" / "formats" / "foreign" / "files"
PROGRAMS = (
    "python", "torchrun", "pip", "git", "deepspeed", "accelerate", "vllm", "jupyter", "streamlit",
    "ray", "mpirun", "apptainer", "nvidia-smi", "docker", "wget",
)  # fmt: skip
RECORD = """#!/bin/sh
printf '%s' "$(basename "$0")" >> {told}/$TERCIO_JOB_NAME.$TERCIO_TASK
printf ' %s' "$@" >> {told}/$TERCIO_JOB_NAME.$TERCIO_TASK
printf ' @%s\\n' "$SLURM_PROCID" >> {told}/$TERCIO_JOB_NAME.$TERCIO_TASK
"""
FAILS = (
    "dstack/13-two-commands.dstack.yml",  # its first command is `false`
    "sky/06-file-mounts.yaml", "sky/16-git-workdir.yaml", "kubernetes/06-volumes.yaml",
)  # fmt: skip
"""Ends badly by itself, or for want of a mount or repository that the report names as dropped."""
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


def runnable() -> list[tuple[str, Path, list[dict[str, object]]]]:
    found = []
    for kind in ("sbatch", "sky", "dstack", "kubernetes"):
        for path in sorted((FILES / kind).iterdir()):
            converted = read_foreign(path.read_text(encoding="utf-8"), source=path.name, kind=kind,
                                     now_s=1.8e9)  # fmt: skip
            jobs = [dict(job) for job in converted.jobs]
            needs = ("image", "nodes", "sites", "reservation", "depends_on")
            is_left_out = any(job.get(key) for job in jobs for key in needs) or any(
                "earliest" in str(job.get("time"))
                or job.get("exclusive")
                or "shm" in str(job.get("per_task"))
                for job in jobs
            )
            refused = [loss for loss in converted.losses if loss.fate is Fate.REFUSED]
            if not is_left_out and not refused:
                found.append((kind, path, jobs))
    return found


def snapshot() -> bytes:
    packed = io.BytesIO()
    files = {
        "run.sh": "true", "stencil": "#!/bin/sh\ntrue", "src/it's here/x": "",
        "pytorch-examples/distributed/ddp-tutorial-series/x": "",
    }  # fmt: skip
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


def test_the_corpus_runs_on_this_machine(live: Room) -> None:
    stubs, told = live.path / "stubs", live.path / "told"
    stubs.mkdir()
    told.mkdir()
    for name in PROGRAMS:
        (stubs / name).write_text(RECORD.format(told=told), encoding="utf-8")
        (stubs / name).chmod(0o755)
    client = live.client()
    workdir = client.upload_workdir(snapshot())
    submitted = {}
    for kind, path, jobs in runnable():
        names = [str(name) for job in jobs for name in job.get("secrets") or ()]  # type: ignore[attr-defined]
        overrides = {
            "gpus": "none", "cpus": "0.1", "memory": "16MiB",
            "env": {"PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}"},
        }  # fmt: skip
        if any(str(job.get("workdir", "/"))[0] != "/" for job in jobs):
            overrides["workdir"] = "."
        request = JobRequest(
            file=path.read_text(encoding="utf-8"), source=path.name, overrides=overrides,
            secrets=dict.fromkeys(names, "s3cret"), workdir=workdir,
        )  # fmt: skip
        for job_id in client.submit(request).ids:
            submitted[job_id] = f"{kind}/{path.name}"
            if client.job(job_id).state == "held":
                client.release(job_id)
    assert len(submitted) >= 45
    wrong = []
    for job_id, file in submitted.items():
        view = live.ended(job_id)
        expected = "failed" if file in FAILS else "succeeded"
        if view.state != expected:
            log = [line.text for line in client.logs(job_id, tail=5)]
            wrong.append((file, view.state, view.message, log))
    assert wrong == []
    for task, pieces in TOLD.items():
        text = (told / task).read_text(encoding="utf-8")
        assert [piece for piece in pieces if piece not in text] == [], text
    assert "s3cret" not in "".join(file.read_text(encoding="utf-8") for file in told.iterdir())
