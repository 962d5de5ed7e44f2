"""Slurm's programs on this machine: a script and a person that know nothing of Tercio."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from .room import DEADLINE_S, Room

pytestmark = pytest.mark.e2e

PIPELINE = """#!/bin/bash
set -eu
first=$(sbatch --parsable prepare.sbatch)
second=$(sbatch --parsable --dependency=afterok:$first --wait train.sbatch 5e-4)
squeue --me --noheader --format=%i | grep -q . && exit 1
[ "$(sacct -n -X -P -j $second -o state)" = COMPLETED ]
cat result
"""
PREPARE = "#!/bin/bash\n#SBATCH --job-name=prepare --output=x.out\necho prepared > ready\n"
TRAIN = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
#SBATCH --time=10
read word < ready
srun sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS >> ranks'
[ "$SLURM_NODEID" = 0 ] && echo "$word $1 $DECAY" > result || true
"""
SLEEPER = "#!/bin/bash\n#SBATCH --array=0-2%1\nexec sleep 600\n"


@pytest.fixture
def shell(live: Room):
    """Run a line of shell with the shims on PATH; return code, output and errors."""
    live.cli("shims", str(live.path / "slurm"))
    path = f"{live.path / 'slurm'}{os.pathsep}{live.env['PATH']}"

    def run(line: str, **env: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=live.work, capture_output=True, text=True,
            env={**live.env, "PATH": path, **env}, timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_pipeline_written_for_slurm_runs(live: Room, shell) -> None:
    for name, text in (
        ("pipeline.sh", PIPELINE), ("prepare.sbatch", PREPARE), ("train.sbatch", TRAIN),
    ):  # fmt: skip
        (live.work / name).write_text(text, encoding="utf-8")
    code, out, err = shell("bash pipeline.sh", DECAY="0.1", HF_TOKEN="hunter2")
    assert (code, out) == (0, "prepared 5e-4 0.1\n"), err
    ranks = (live.work / "ranks").read_text(encoding="utf-8").split("\n")
    assert sorted(filter(None, ranks)) == [f"rank {rank} of 4" for rank in range(4)]
    assert "--output x.out: dropped" in err
    shown = live.cli("show", "train", "-o", "json")
    assert json.loads(shown)["spec"]["secrets"] == ["HF_TOKEN"]
    assert "hunter2" not in shown


def test_an_array_is_listed_and_cancelled(live: Room, shell) -> None:
    (live.work / "a.sbatch").write_text(SLEEPER, encoding="utf-8")
    assert shell("sbatch -J sleeper a.sbatch")[1] == "Submitted batch job 1\n"
    live.reached("job-00001.0", ["running"])
    code, out, _ = shell("squeue -h -o '%i %j %t'")
    assert (code, sorted(out.splitlines())) == (0, ["1_0 sleeper R", "1_[1-2] sleeper PD"])
    assert shell("sinfo -h -o '%t %D'")[1] == "mix 1\n"
    # An element that has not started, alone; a second time there is nothing left to stop.
    assert shell("scancel 1_1")[0] == 0
    assert live.job("job-00001.1").state == "cancelled"
    assert sorted(shell("squeue -h -o '%i'")[1].splitlines()) == ["1_0", "1_[2]"]
    assert shell("scancel 1_7")[0] == 1
    assert shell("scancel 1_0")[0] == 0
    assert live.ended("job-00001.0").state == "cancelled"
    live.reached("job-00001.2", ["running"])
    told = shell("sacct -n -P -o JobID,State -j 1")[1].splitlines()
    assert [line for line in told if "." not in line.partition("|")[0]] == [
        "1|RUNNING", "1_0|CANCELLED", "1_1|CANCELLED", "1_2|RUNNING",
    ]  # fmt: skip
    assert shell("scancel -n sleeper -t PD,R")[0] == 0
    assert live.ended("job-00001").state == "cancelled"
    assert shell("squeue -h")[1] == ""
    assert "Invalid job id" in shell("scancel 77")[2]


def test_srun_follows_and_ends_as_the_command_does(live: Room, shell) -> None:
    code, out, err = shell("srun -n2 -l --mpi=none sh -c 'echo rank $SLURM_PROCID'")
    assert (code, sorted(out.splitlines())) == (0, ["[0] rank 0", "[1] rank 1"]), err
    assert shell("srun bash -c 'exit 7'")[0] == 7
    assert shell("sbatch --wait --wrap 'exit 4'")[0] == 4
    code, out, err = shell("sbatch --test-only --wrap true")
    assert (code, out, "would start at" in err) == (0, "", True)
    code, _, err = shell("sbatch -N1 : -N2 x.sh")
    assert (code, "heterogeneous" in err) == (1, True)
