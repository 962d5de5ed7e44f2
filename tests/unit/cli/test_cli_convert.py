"""`tercio convert`: files in and out, the report, exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tercio.cli.commands.convert import command
from tercio.formats.foreign.sbatch import read_sbatch
from tercio.formats.native import read_job, read_job_object

SCRIPT = """#!/bin/bash
#SBATCH --job-name=train -N2 --gpus-per-node=h100:8 --time=1-0 --signal=USR1@60 --array=0-3%2
#SBATCH --partition=p --qos=high --exclude=n1
srun python train.py
"""


@pytest.fixture
def convert(tmp_path):
    def run(text, *words, name="job.yaml"):
        file = tmp_path / name
        file.write_text(text)
        return CliRunner().invoke(command, [str(file), *words], standalone_mode=False)

    return run


def test_a_script_becomes_a_native_file_that_means_the_same(convert):
    answer = convert(SCRIPT, name="train.sbatch")
    assert answer.return_value == 0
    (spec,) = read_job(answer.stdout, source="x").specs
    (direct,) = read_job_object(read_sbatch(SCRIPT, source="train.sbatch").jobs[0]).specs
    assert spec == direct
    assert "line 3: --qos high: changed: kept as the label slurm-qos" in answer.stderr


def test_a_native_file_becomes_a_script_and_back(convert):
    text = (
        "name: train\ntasks: 2\nper_task: {devices: 'H100:8', cpus: 16, memory: 64GiB}\n"
        "time: {limit: 26h}\ncheckpoint: {signal: SIGUSR1, grace: 60s}\narray: '0-8:2%2'\n"
        "nodes: {exclude: [n1]}\nenv: {A: it's}\nframework: torchrun\nqueue: q\n"
        "labels: {slurm-partition: p}\nrun: python train.py\n"
    )
    answer = convert(text, "--to", "sbatch")
    assert answer.return_value == 0
    assert "job.yaml: queue q: dropped: queues are Tercio's" in answer.stderr
    (spec,) = read_job_object(read_sbatch(answer.stdout, source="t").jobs[0]).specs
    (before,) = read_job(text, source="x").specs
    group, old = spec.groups[0], before.groups[0]
    assert (group.tasks, group.per_task) == (old.tasks, old.per_task)
    assert (spec.time, spec.array, spec.nodes) == (before.time, before.array, before.nodes)
    assert (spec.checkpoint, spec.labels) == (before.checkpoint, before.labels)
    assert "torchrun --nnodes=2 --nproc-per-node=8" in answer.stdout
    assert """export A='it'"'"'s'""" in answer.stdout


def test_a_native_file_becomes_a_sky_task_and_back(convert):
    text = (
        "name: t\ntasks: 2\nper_task: {devices: 'H100:8 | A100:8', cpus: 4, memory: 8GiB}\n"
        "env: {A: b}\nsecrets: [T]\nsetup: s\nrun: r\ntime: {limit: 1h}\npriority: 3\n"
    )
    answer = convert(text, "--to", "sky", "-o", "json")
    body = json.loads(answer.stdout)
    assert [(loss["field"], loss["fate"]) for loss in body["losses"]] == [("time.limit", "dropped")]
    back = convert(body["file"])
    (spec,) = read_job(back.stdout, source="x").specs
    (before,) = read_job(text, source="x").specs
    assert (spec.groups, spec.env, spec.secrets, spec.setup, spec.run, spec.priority) == (
        before.groups, before.env, before.secrets, before.setup, before.run, before.priority,
    )  # fmt: skip


def test_what_must_not_be_left_out_exits_8(convert):
    answer = convert("type: service\ncommands: [x]\nport: 80\n")
    assert answer.return_value == 8
    assert "type service: refused: services" in answer.stderr


def test_partitions_may_be_named(convert):
    text = "#!/bin/bash\n#SBATCH -p a --gres=gpu:8\nls\n"
    answer = convert(text, "--partition", "a=A100-80GB")
    (spec,) = read_job(answer.stdout, source="x").specs
    assert spec.groups[0].per_task.devices[0].type == "A100"
    assert "names no type" in str(convert(text, "--partition", "a").exception)
