"""Batch scripts: what counts as an option, what it becomes, what is reported."""

from __future__ import annotations

import os
import subprocess

import pytest

from tercio.errors import UserError
from tercio.formats.files import read_any
from tercio.formats.foreign.draft import Fate, SiteMap
from tercio.formats.foreign.sbatch import _RULES, read_sbatch
from tercio.formats.foreign.sbatch_options import IDLE, KNOWN, UNKEPT
from tercio.formats.foreign.sbatch_shape import SHAPE
from tercio.formats.foreign.sbatch_values import host_list, time_s
from tercio.formats.native import read_job_object


def converted(*options, body="echo hi", **more):
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    return read_sbatch(f"#!/bin/bash\n{lines}\n{body}\n", source="train.sbatch", **more)


def spec_of(*options, **more):
    found = converted(*options, **more)
    return read_job_object(found.jobs[0]).specs[0]


def told(found):
    return {loss.field: loss for loss in found.losses}


def test_every_option_of_sbatch_has_a_rule_or_a_reason():
    assert set(_RULES) | SHAPE | set(IDLE) | set(UNKEPT) == KNOWN


@pytest.mark.parametrize(
    ("options", "tasks", "devices", "cpus", "memory"),
    [
        (["--nodes=4", "--gpus-per-node=8"], 4, (None, 8), None, None),
        (["-N4", "--gres=gpu:h100:8"], 4, ("H100", 8), None, None),
        (["-N 2", "-G 12"], 2, (None, 6), None, None),
        (["-N2 --ntasks-per-node=4", "--gpus-per-task=2"], 2, (None, 8), None, None),
        (["-n 8", "--gpus-per-task=a100:1"], 8, ("A100", 1), None, None),
        (["-n 8 --ntasks-per-node=4 -c 3 --gpus-per-node=4"], 2, (None, 4), 12, None),
        (["-N1 --gpus-per-node=2 --cpus-per-gpu=16 --mem-per-gpu=64G"], 1, (None, 2), 32, 128),
        (["-N1 -n4 -c2 --mem-per-cpu=1024"], 1, (None, 0), 8, 8),
        (["-N2-4 --gres=gpu"], 2, (None, 1), None, None),
        (["--gres=gpu:1", "--gpus-per-node=4"], 1, (None, 4), None, None),
        (["--gpus=4 --gpus-per-task=1 --cpus-per-task=2"], 4, (None, 1), 2, None),
        (["-N2 --gpus=16 --gpus-per-task=2"], 2, (None, 8), None, None),
        (["-n 2", "--tres-per-task=cpu:3,gres/gpu:h100:1"], 2, ("H100", 1), 3, None),
        (["--gres=shard:2"], 1, (None, 1), None, None),
        (["--gres=gpu:a100:2,shard:1"], 1, ("A100", 2), None, None),
    ],
)
def test_the_shape_of_the_gang(options, tasks, devices, cpus, memory):
    group = spec_of(*options).groups[0]
    (request,) = group.per_task.devices
    assert (group.tasks, (request.type, request.count)) == (tasks, devices)
    assert group.per_task.cpus_milli == (None if cpus is None else cpus * 1000)
    assert group.per_task.memory_bytes == (None if memory is None else memory * 1024**3)


def test_lines_count_up_to_the_first_command_only():
    text = "#!/bin/bash\n\n# a remark\n#SBATCH -N2 # two\n##SBATCH -N3\n#SBATCHx\nls\n#SBATCH -N4\n"
    found = read_sbatch(text, source="a.sh")
    assert found.jobs[0]["tasks"] == 2
    (late,) = found.losses
    assert (late.line, late.fate) == (8, Fate.DROPPED)
    # After the first command it may stand in a file that the script writes, so it stays.
    assert str(found.jobs[0]["run"]).endswith("ls\n#SBATCH -N4\n")
    assert "\n#SBATCH -N2" not in str(found.jobs[0]["run"])


@pytest.mark.parametrize(
    ("options", "devices", "field"),
    [
        ("--gres=gpu:1g.10gb:2", "nvidia/1g.10gb:2", None),
        ("--gres=gpu:a100_3g.20gb:1", "A100/3g.20gb:1", None),
        ("--gpus=nosuch:1", "1", "--gpus"),
        ("--gres=shard:4", "1", "--gres"),
        ("--gres=gpu:a100:2,gpu:v100:1", "A100:3", "--gres"),
        ("--gpus=a100:2,v100:1", "A100:2", "--gpus"),
        ("--gpus=4 --gpus-per-node=2", "2", "--gpus"),
        ("--gpus=2 --gpus-per-node=2", "2", None),
        ("--tres-per-task=gres/gpu:1,gres/nic:1", "1", "--tres-per-task"),
    ],
)
def test_devices_in_every_form_and_what_is_lost_of_them(options, devices, field):
    found = converted(options)
    assert found.jobs[0]["per_task"]["devices"] == devices
    assert list(told(found)) == ([field] if field else [])


def test_a_script_that_writes_another_keeps_its_lines():
    body = "cat > b.sbatch <<EOF\n#!/bin/bash\n#SBATCH -N9\nEOF\nsbatch b.sbatch"
    assert f"\n{body}\n" in str(converted("-N1", body=body).jobs[0]["run"])


@pytest.mark.parametrize(
    ("text", "at_s"),
    [("16:00", 57600), ("noon", 43200), ("0:30", 86400 + 1800), ("tomorrow", 86400),
     ("today", 3600)],
)  # fmt: skip
def test_a_time_of_day_is_the_next_one(text, at_s):
    found = read_sbatch("#!/bin/sh\nls\n", source="a", options=["--begin", text], now_s=3600.0)
    assert read_job_object(found.jobs[0]).specs[0].time.earliest_s == at_s
    assert told(found)["--begin"].fate is Fate.CHANGED


def test_command_line_beats_environment_beats_file():
    text = "#!/bin/sh\n#SBATCH -N2 -t 10 -p a\nls\n"
    found = read_sbatch(
        text, source="a.sh", options=["--nodes", "8", "-Jbig"],
        environment={"SBATCH_TIMELIMIT": "20", "SBATCH_PARTITION": "b", "HOME": "/x"},
    )  # fmt: skip
    job = found.jobs[0]
    assert (job["tasks"], job["name"], job["time"]) == (8, "big", {"limit": "20m"})
    assert job["labels"] == {"slurm-partition": "b"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("0:30", 30), ("1:00:00", 3600), ("2-0", 172800), ("1-2:03", 93780),
     ("1-2:03:04", 93784), ("UNLIMITED", None)],
)  # fmt: skip
def test_times_are_slurms(text, seconds):
    assert time_s(text) == seconds


def test_a_partition_is_a_type_a_queue_or_a_label():
    sites = SiteMap(partitions={"gpu-a": "A100-80GB"}, queues=frozenset({"batch"}))
    job = converted("-p gpu-a --gres=gpu:8", sites=sites).jobs[0]
    assert job["per_task"] == {"devices": "A100-80GB:8"}
    assert converted("-p batch", sites=sites).jobs[0]["queue"] == "batch"
    found = converted("-p other", sites=sites)
    assert "convert.partitions" in told(found)["--partition"].why


def test_signal_array_dependency_nodes_and_priority():
    spec = spec_of(
        "--signal=B:USR1@90", "--array=1-9:2%2", "--dependency=afterok:1:33,afternotok:job-0000z",
        "--exclude=n[08-10],x1", "-w n1,n2", "--nice=5", "--segment=2", "-N4", "-H",
        "--constraint=ib&!old", "--no-requeue", "--exclusive", "--begin=2027-01-01T08:00",
    )  # fmt: skip
    assert (spec.checkpoint.signal, spec.checkpoint.grace_s) == ("SIGUSR1", 90)
    assert spec.array is not None
    assert (spec.array.size, spec.array.concurrency) == (5, 2)
    assert [(d.job, d.when.value) for d in spec.depends_on] == [
        ("job-00001", "ok"), ("job-00011", "ok"), ("job-0000z", "failed"),
    ]  # fmt: skip
    assert spec.nodes is not None
    assert spec.nodes.exclude == ("n08", "n09", "n10", "x1")
    assert spec.nodes.match == (
        "(name == 'n1' || name == 'n2') && ('ib' in labels && !'old' in labels)"
    )
    assert (spec.priority, spec.retry.on, spec.groups[0].exclusive) == (-5, (), True)
    assert spec.groups[0].topology.slice.tasks == 2
    assert spec.time.earliest_s == 1798790400.0
    assert converted("--hold").is_held


def test_dependencies_name_elements_of_arrays():
    spec = spec_of("--dependency=afterok:33_5:34_*,afterany:33000007")
    assert [d.job for d in spec.depends_on] == ["job-00011.5", "job-00012", "job-00011.7"]


def test_export_sets_what_is_written_and_tells_the_rest():
    found = converted("--export=ALL,A=1,LIST='x,y',HOME_DIR,TERCIO_X=1", "--time=1", "-t 2")
    env = found.jobs[0]["env"]
    assert (env["A"], "TERCIO_X" in env) == ("1", False)
    # The shell-like quotes of a directive are gone before --export is read, as for sbatch.
    assert spec_of("\"--export=LIST='x,y'\"").env["LIST"] == "x,y"
    whys = [loss.why for loss in found.losses if loss.field == "--export"]
    assert "give --env HOME_DIR at submit" in whys
    assert any(why.startswith("'y' is no name") or "give --env y" in why for why in whys)
    assert told(converted("--export=NONE"))["--export"].fate is Fate.CHANGED
    assert "line 3 has it again" in told(converted("-t 1", "-t 2"))["--time"].why


def test_requeue_says_what_is_retried():
    assert converted("--no-requeue").jobs[0]["retry"] == {"on": []}
    assert converted("--requeue").jobs[0]["retry"] == {"on": ["node_failed", "preempted"]}
    text = "#!/bin/bash\n#SBATCH --no-requeue\nls\n"
    assert read_any(text, source="a.sh").warnings == ()


@pytest.mark.parametrize("line", ["#SBATCH hetjob", "#SBATCH packjob"])
def test_heterogeneous_jobs_are_refused(line):
    text = f"#!/bin/bash\n#SBATCH -N1\n{line}\n#SBATCH -N2\nls\n"
    with pytest.raises(UserError, match="heterogeneous") as caught:
        read_any(text, source="a.sh")
    assert (caught.value.code, caught.value.message[:7]) == ("unsupported", "a.sh:3:")


def test_host_lists():
    assert host_list("n[1-2]-[a,b]"[:6]) == ["n1", "n2"]
    assert host_list("r[1-2]n[01-02]") == ["r1n01", "r1n02", "r2n01", "r2n02"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--nodez=2", "a.sh:2: --nodez is no option of sbatch"),
        ("--nodes", "a.sh:2: --nodes has no value"),
        ("--hold=yes", "a.sh:2: --hold takes no value"),
        ("--nodes=many", "a.sh:2: --nodes: 'many' is not a count"),
        ("--time=soon", "a.sh:2: --time: 'soon' is not a time limit"),
        ("--mem=lots", "a.sh:2: --mem: 'lots' is not a memory size"),
        ("--gres=:2", "a.sh:2: --gres: ':2' is not a list of resources"),
        ("--dependency=afterok:x", "a.sh:2: --dependency:"),
        ("-Z3", "a.sh:2: -Z is no option of sbatch"),
        ("--comment='open", "a.sh:2: no closing quotation"),
        ("--gpus-per=3", "a.sh:2: --gpus-per could be --gpus-per-node"),
        ("--exclude=n[1-999999]", "a.sh:2: --exclude:"),
    ],
)
def test_a_fault_names_line_option_and_fix(option, words):
    with pytest.raises(UserError) as caught:
        read_sbatch(f"#!/bin/bash\n#SBATCH {option}\nls\n", source="a.sh")
    assert caught.value.message.startswith(words)
    assert caught.value.hint


def test_what_has_no_counterpart_is_told_with_its_line():
    found = converted("--mail-type=END", "--licenses=a:1", "--output=x.%j", "--hint=nomultithread")
    assert [(loss.field, loss.line) for loss in found.losses] == [
        ("--mail-type", 2), ("--licenses", 3), ("--output", 4), ("--hint", 5),
    ]  # fmt: skip
    assert all(loss.fate is Fate.DROPPED and loss.why for loss in found.losses)


def run_task(text, task, **env):
    script = str(read_sbatch(text, source="a.sh").jobs[0]["run"])
    variables = {
        "PATH": os.environ["PATH"], "TERCIO_TASK": str(task), "TERCIO_TASKS": "2",
        "TERCIO_NODE": f"n{task + 1}", "SLURM_JOB_NODELIST": "n1,n2", "SLURM_NNODES": "2",
        "SLURM_LOCALID": "0", **env,
    }  # fmt: skip
    done = subprocess.run(
        ["/bin/bash", "-c", script], env=variables, capture_output=True, text=True, timeout=60
    )
    return done.returncode, sorted(done.stdout.split("\n")[:-1]), done.stderr


RANKS = "bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS/$SLURM_LOCALID'"


def test_srun_starts_the_tasks_of_its_own_node():
    text = f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2\nsrun --mpi=none -l {RANKS}\n"
    assert run_task(text, 0, SLURM_NTASKS_PER_NODE="2")[1] == ["0/4/0", "1/4/1"]
    assert run_task(text, 1, SLURM_NTASKS_PER_NODE="2")[1] == ["2/4/0", "3/4/1"]


def test_srun_takes_its_options():
    one = f"#!/bin/bash\n#SBATCH -N2\nsrun -N1 -n1 {RANKS}\n"
    assert run_task(one, 0)[1] == ["0/1/0"]
    assert run_task(one, 1)[1] == []
    all_of = f"#!/bin/bash\n#SBATCH -N2\nsrun -n 4 {RANKS}\n"
    assert run_task(all_of, 0)[1] == ["0/4/0", "1/4/1"]
    assert run_task(all_of, 1)[1] == ["2/4/0", "3/4/1"]
    there = f"#!/bin/bash\n#SBATCH -N2\nsrun -w n2 --container-image x {RANKS}\n"
    assert run_task(there, 0)[1] == []
    assert run_task(there, 1)[1] == ["1/2/0"]


def test_two_nodes_of_a_script_that_share_one_are_two_to_it():
    shared = {"TERCIO_NODE": "n1", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}
    told = "$SLURM_NNODES/$SLURM_JOB_NUM_NODES/$SLURM_NODEID"
    text = f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2\necho {told}\nsrun {RANKS}\n"
    assert run_task(text, 1, **shared)[1] == ["2/2/1", "2/4/0", "3/4/1"]
    there = f"#!/bin/bash\n#SBATCH -N2\nsrun -N1 -n1 -w n1 {RANKS}\n"
    assert run_task(there, 0, **{**shared, "SLURM_LOCALID": "0"})[1] == ["0/1/0"]
    assert run_task(there, 1, **shared)[1] == []
    alone = f"#!/bin/bash\n#SBATCH -n2\necho {told}\n"
    assert run_task(alone, 1, **{**shared, "SLURM_JOB_NUM_NODES": "1"})[1] == ["1/1/0"]


def test_a_failed_task_fails_the_script_and_scontrol_lists_hosts():
    assert run_task("#!/bin/bash -e\nsrun false\necho no\n", 0)[:2] == (1, [])
    names = "#!/bin/bash\nscontrol show hostnames $SLURM_JOB_NODELIST\n"
    assert run_task(names, 0)[1] == ["n1", "n2"]
    assert run_task("#!/bin/bash\nscontrol show job 1\n", 0)[0] == 1


def test_another_interpreter_gets_the_script_as_a_file(tmp_path):
    text = "#!/usr/bin/env python3\n#SBATCH -N1\nimport sys\nprint('it\\'s', sys.argv[1:])\n"
    found = read_sbatch(text, source="a.py", arguments=("a b",))
    done = subprocess.run(
        ["/bin/bash", "-c", str(found.jobs[0]["run"])], capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "TERCIO_TASK_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == "it's ['a b']\n", done.stderr


def test_the_image_of_srun_is_the_jobs():
    body = "srun --container-image=nvcr.io#nvidia/pytorch:24.07 python a.py"
    assert converted("-N1", body=body).jobs[0]["image"] == "nvcr.io/nvidia/pytorch:24.07"
    two = converted("-N1", body=f"{body}\nsrun --container-image=other b")
    assert "image" not in two.jobs[0]
    assert [loss.value for loss in two.losses] == ["nvcr.io/nvidia/pytorch:24.07", "other"]


def test_the_image_of_srun_may_stand_in_a_variable():
    body = (
        'export CONT=nvcr.io#nvidia/nemo:24.07\nMOUNTS="/data:/data,$HOME:/h"\n'
        "# srun --container-image=old\n"
        'srun --container-image="${CONT}" --container-mounts=$MOUNTS a'
    )
    found = converted("-N1", body=body)
    assert found.jobs[0]["image"] == "nvcr.io/nvidia/nemo:24.07"
    assert found.jobs[0]["mounts"] == ["/data:/data"]
    assert told(found)["srun --container-mounts"].value == "$HOME:/h"
    (loss,) = converted("-N1", body="srun --container-image=$1 a").losses
    assert (loss.field, loss.value) == ("srun --container-image", "$1")
    twice = "A=x\nA=y\nsrun --container-image=$A a"
    assert "image" not in converted("-N1", body=twice).jobs[0]


def test_a_wrapped_command_and_times_from_now():
    found = read_sbatch(
        "", source="x", options=["--wrap", "python a.py", "-b", "now+1hour"], now_s=0
    )
    assert "python a.py" in str(found.jobs[0]["run"])
    assert read_job_object(found.jobs[0]).specs[0].time.earliest_s == 3600.0


def test_a_script_is_seen_and_read_as_any_job_file():
    file = read_any("#!/bin/bash\n#SBATCH -N2 --mem=0\nls\n", source="a.sbatch")
    assert file.specs[0].groups[0].tasks == 2
    assert file.warnings == (
        "line 2: --mem 0: changed: all memory of a node is taken by exclusive: true",
    )
    with pytest.raises(UserError, match="heterogeneous") as caught:
        read_any("#!/bin/bash\n#SBATCH -N1\n#SBATCH hetjob\nls\n", source="a.sbatch")
    assert caught.value.code == "unsupported"
