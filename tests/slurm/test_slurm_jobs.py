"""Jobs by the command line on real Slurm: placed, pinned, adopted, and beside other people's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from slurm_room import H100, SLEEP, add_site, in_slurm, placed_on, succeeded
from slurmd_cluster import NODES, SlurmCluster, until

from e2e.room import ENDED, ROOT, Room, is_running

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def delegated(cluster: SlurmCluster, room: Room) -> Room:
    """The same, with a second site through which Slurm chooses the nodes."""
    add_site(room, cluster, "--mode", "delegated", "--prefix", "w-", name="wild")
    room.kill(signal.SIGTERM)
    room.up()
    return room


def test_the_example_learns_on_slurm_and_is_adopted_after_a_kill(
    room: Room, cluster: SlurmCluster
) -> None:
    pytest.importorskip("torch", reason="the example needs torch")
    example = ROOT / "examples" / "train-ddp"
    (room.work / "train.py").write_text((example / "train.py").read_text())
    text = (example / "job.yaml").read_text().replace("--epochs 8", "--epochs 8 --pause 0.3")
    (room.work / "job.yaml").write_text(text)
    job_id = room.cli("submit", "-q", "job.yaml").strip()
    with room.following("logs", "-f", job_id) as log:
        log.until("epoch 2/")
        there = in_slurm(cluster, job_id)
        # Pinned where the plan put it: Slurm was told the node and took it.
        assert sorted(set(there.values())) == placed_on(room, job_id)
        room.kill()
        room.up()
        assert log.rest() == 0, log.lines
    view = succeeded(room, job_id)
    assert view.attempt == 1
    whole = room.cli("logs", job_id)
    assert "rank 0 of 2" in whole
    assert "rank 1 of 2" in whole
    assert whole.count("epoch 8/8") == 1
    assert not in_slurm(cluster, job_id)


def test_a_foreign_job_is_seen_and_planned_around(room: Room, cluster: SlurmCluster) -> None:
    for node in ("n1", "n2", "n3"):
        cluster.until_running(cluster.sbatch("--gres=gpu:8", "-w", node, "--mem=1G", "--time=30"))
    want = ("plan", "--gpus", "H100:8", "--nodes", "2", "--", "true")
    until(lambda: room.run(*want).returncode == 7, "the foreign jobs to be seen")
    assert room.cli("node", "show", "n1").count("outside work until ") == 8
    job_id = room.submit(SLEEP, per_task={**H100, "devices": "H100:8"})
    room.reached(job_id, ("running",))
    assert placed_on(room, job_id) == ["n4"]
    assert list(in_slurm(cluster, job_id).values()) == ["n4"]
    second = room.submit(SLEEP, per_task=H100)
    told = room.cli("explain", second)
    assert "H100" in told
    assert room.job(second).state == "queued"
    room.cli("cancel", second, job_id)
    room.ended(job_id)


def test_a_gang_gets_what_it_asked_for_and_stops_with_grace(
    room: Room, cluster: SlurmCluster
) -> None:
    run = (
        "trap 'echo saved; exit 0' TERM; echo task $TERCIO_TASK of $TERCIO_TASKS "
        "gpus $CUDA_VISIBLE_DEVICES host $MASTER_ADDR; while :; do sleep 0.1; done"
    )
    job_id = room.submit(run, tasks=3, per_task=H100, checkpoint={"grace": "20s"})
    room.reached(job_id, ("running",))
    with room.following("logs", "-f", job_id) as log:
        for task in range(3):
            log.until(f"task {task} of 3") if task == 0 else None
        assert len(in_slurm(cluster, job_id)) == 3
        seen = room.cli("exec", job_id, "--", "sh", "-c", "echo $TERCIO_TASK $TERCIO_DEVICES")
        assert len(seen.split()[1].split(",")) == 4
        room.cli("cancel", job_id)
        log.rest()
    whole = room.cli("logs", job_id)
    assert room.job(job_id).state == "cancelled"
    assert whole.count("saved") == 3
    other = room.submit(SLEEP, per_task=H100)
    room.reached(other, ("running",))
    cluster.out("scancel", next(iter(in_slurm(cluster, other))))
    assert "cancelled in Slurm" in str(room.ended(other).message)
    assert all(f"task {task} of 3" in whole for task in range(3))
    gpus = [line.partition("gpus ")[2].split()[0] for line in whole.splitlines() if "gpus" in line]
    assert [len(each.split(",")) for each in gpus] == [4, 4, 4]


def test_a_node_drained_in_slurm_takes_no_work_and_is_never_undrained(
    room: Room, cluster: SlurmCluster
) -> None:
    cluster.out("scontrol", "update", "node=n1", "state=drain", "reason=bad fan")
    until(lambda: "bad fan" in room.cli("node", "show", "n1"), "the drain to be seen")
    assert "cordoned" in room.cli("node", "list")
    job_id = room.submit(SLEEP, tasks=3, per_task={**H100, "devices": "H100:8"})
    room.reached(job_id, ("running",))
    assert placed_on(room, job_id) == ["n2", "n3", "n4"]
    room.run("node", "uncordon", "n1")
    assert "bad fan" in cluster.out("scontrol", "show", "node", "n1")
    cluster.out("scontrol", "update", "node=n1", "state=resume")
    until(lambda: "bad fan" not in room.cli("node", "show", "n1"), "the drain to be gone")
    room.cli("cancel", job_id)
    room.ended(job_id)


def test_a_controller_that_is_away_costs_nothing_and_doubles_nothing(
    room: Room, cluster: SlurmCluster
) -> None:
    marks = room.path / "starts"
    run = f"echo $TERCIO_JOB.$TERCIO_ATTEMPT >> {marks}; exec sleep 600"
    running = room.submit(run, per_task=H100)
    room.reached(running, ("running",))
    cluster.stop_controller(signal.SIGTERM)
    late = room.submit(run, per_task=H100)
    until(lambda: "slurm_silent" in room.server_log(), "the outage to be noticed")
    assert room.job(running).state == "running"
    cluster.start_controller()
    room.reached(late, ("running",))
    until(lambda: len(marks.read_text().split()) == 2, "both to have started")
    assert sorted(marks.read_text().split()) == sorted([f"{running}.1", f"{late}.1"])
    assert [room.job(each).attempt for each in (running, late)] == [1, 1]
    room.cli("cancel", running, late)
    room.ended(running)
    room.ended(late)


def settled(room: Room, cluster: SlurmCluster, job_id: str, marks: Path) -> list[str]:
    """Wait until the job runs in Slurm and on its node; return the attempts that began."""

    def is_settled() -> bool:
        job = room.job(job_id)
        assert job.state not in ENDED, f"{job.state}: {job.message}"
        rows = [line.split("|") for line in cluster.out("squeue", "-h", "-o", "%T|%k").splitlines()]
        states = [state for state, tag in rows if f"launch:{job_id}/{job.attempt}/" in tag]
        begun = [line.split() for line in marks.read_text().splitlines()] if marks.exists() else []
        alive = [attempt for attempt, pid in begun if is_running(int(pid))]
        return (job.state, states, alive) == ("running", ["RUNNING"], [str(job.attempt)])

    until(is_settled, "the job to run")
    return [line.split()[0] for line in marks.read_text().splitlines()]


@pytest.mark.parametrize("remembered", ["waiting", "unheard of"])
def test_a_start_that_a_crashed_controller_forgot_is_not_made_twice(
    room: Room, cluster: SlurmCluster, remembered: str
) -> None:
    """Slurm saves its state every few seconds: what it began since, it ends and begins again."""
    marks = room.path / "starts"
    room.kill(signal.SIGTERM)
    room.cli("site", "remove", "hpc")
    add_site(room, cluster, "--start-wait-s", "120")
    room.up()
    if remembered == "waiting":
        cluster.out("scontrol", "update", "partition=gpu", "state=down")
    else:
        before = cluster.remembered()
    job_id = room.submit(
        f"echo $TERCIO_ATTEMPT $$ >> {marks}; exec sleep 600",
        per_task=H100, retry={"on": ["node_failed"], "backoff": "1s"},
    )  # fmt: skip
    if remembered == "waiting":
        until(lambda: len(in_slurm(cluster, job_id)) == 1, "the submission")
        before = cluster.remembered()
        cluster.out("scontrol", "update", "partition=gpu", "state=up")
    until(marks.exists, "the task to start")
    cluster.forget_jobs_since(before)
    # What it saved of partitions may be older, too.
    cluster.out("scontrol", "update", "partition=gpu", "state=up")
    begun = settled(room, cluster, job_id, marks)
    assert begun == ["1", "2"]
    room.cli("cancel", job_id)
    room.ended(job_id)


def test_a_place_taken_between_plan_and_launch_is_planned_anew(
    room: Room, cluster: SlurmCluster
) -> None:
    # Somebody whose job Slurm prefers waits for all four nodes: what Tercio finds free is theirs.
    cluster.out("scontrol", "update", "partition=gpu", "state=down")
    taken = cluster.sbatch("--gres=gpu:8", "-w", "n1", "--mem=1G", "--time=30", "--nice=-1000")
    job_id = room.submit(
        SLEEP,
        per_task={**H100, "devices": "H100:8"},
        nodes={"exclude": NODES[2:]},
        retry={"on": ["node_failed"], "backoff": "1s"},
    )
    cluster.out("scontrol", "update", "partition=gpu", "state=up")
    cluster.until_running(taken)
    room.reached(job_id, ("running",))
    assert list(in_slurm(cluster, job_id).values()) == ["n2"]
    room.cli("cancel", job_id)
    room.ended(job_id)


def test_the_site_check_says_what_works_and_what_is_missing(
    room: Room, cluster: SlurmCluster
) -> None:
    done = room.run("site", "check", "hpc", "--only", "exit-codes", "--user", "root")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 nodes, H100:32" in done.stdout
    assert "cannot   isolates devices: " in done.stdout
    assert "ConstrainDevices=yes" in done.stdout
    assert "passed   the end of a task is told with its exit code" in done.stdout
    assert "in use" in room.cli("site", "list")
    assert room.run("site", "check", "hpx").returncode == 3
    assert in_slurm(cluster, "conformance") == {}


def test_a_job_goes_to_the_first_site_of_its_list_that_has_room(
    room: Room, cluster: SlurmCluster
) -> None:
    room.kill(signal.SIGTERM)
    room.up(TERCIO_LOCAL__ENABLED="true")
    here = {"devices": "CPU:1 | H100:1", "cpus": 0.1, "memory": "256MiB"}
    there = room.submit(SLEEP, per_task={**here, "devices": "H100:1"}, sites=["local", "hpc"])
    room.reached(there, ("running",))
    assert list(in_slurm(cluster, there)) != []
    local = room.submit("exec sleep 600", per_task=here, sites=["local", "hpc"])
    room.reached(local, ("running",))
    assert not in_slurm(cluster, local)
    assert placed_on(room, local)[0] not in NODES
    plan = room.cli("plan", "-o", "json", "--gpus", "H100:1", "--no-workdir", "--", "true")
    assert "n1" in plan
    room.cli("cancel", there, local)
    room.ended(there)
    room.ended(local)


def test_what_is_set_for_nccl_is_shown_with_the_reason(room: Room, cluster: SlurmCluster) -> None:
    room.kill(signal.SIGTERM)
    room.cli("site", "remove", "hpc")
    add_site(room, cluster, "--label", "fabric=infiniband", "--label", "nccl-hca=mlx5_0")
    room.up()
    job_id = room.submit(
        "echo has $NCCL_IB_HCA.$NCCL_P2P_DISABLE.; exec sleep 600",
        tasks=2,
        per_task={**H100, "devices": "H100:8"},
        env={"NCCL_P2P_DISABLE": "1"},
    )
    with room.following("logs", "-f", job_id) as log:
        log.until("has =mlx5_0..")
        shown = room.cli("show", job_id)
        assert "NCCL_IB_HCA==mlx5_0: infiniband, label nccl-hca of all 2 nodes" in shown
        assert "NCCL_P2P_DISABLE left out: for debugging only" in shown
        room.cli("cancel", job_id)
        log.rest()
    room.ended(job_id)


def test_slurm_may_choose_the_node_itself(delegated: Room, cluster: SlurmCluster) -> None:
    for node in ("n1", "n3", "n4"):
        cluster.until_running(cluster.sbatch("--exclusive", "-w", node, "--time=30"))
    job_id = delegated.submit(SLEEP, per_task=H100, sites=["wild"])
    delegated.reached(job_id, ("running",))
    until(lambda: list(in_slurm(cluster, job_id).values()) == ["n2"], "Slurm to start it")
    gang = delegated.submit(SLEEP, tasks=2, per_task={**H100, "devices": "H100:1"}, sites=["wild"])
    assert "must be placed" in str(delegated.ended(gang).message)
    delegated.cli("cancel", job_id)
    delegated.ended(job_id)
    assert in_slurm(cluster, job_id) == {}


@pytest.mark.full
def test_a_step_on_a_failed_node_is_over_before_its_job_runs_again(
    room: Room, cluster: SlurmCluster
) -> None:
    """Slurm gives up the node after SlurmdTimeout; the old step goes on there for a while."""
    marks = room.path / "pids"
    run = f"echo $TERCIO_ATTEMPT $$ >> {marks}; exec sleep 600"
    job_id = room.submit(
        run, per_task=H100, nodes={"exclude": NODES[2:]},
        retry={"on": ["node_failed"], "backoff": "1s"},
    )  # fmt: skip
    room.reached(job_id, ("running",))
    until(marks.exists, "the task to start")
    (node,) = placed_on(room, job_id)
    pid = int(marks.read_text().split()[1])
    cluster.stop_node(node)
    until(lambda: not in_slurm(cluster, job_id), "Slurm to give it up", timeout_s=90.0)
    until(lambda: "down" in room.cli("node", "show", node), "the node to be lost")
    # The old step is alive: nothing of the job is started elsewhere.
    assert is_running(pid)
    view = room.job(job_id)
    assert (view.state, view.attempt) == ("running", 1)
    cluster.start_node(node)
    until(lambda: room.job(job_id).attempt == 2, "the second attempt", timeout_s=90.0)
    assert not is_running(pid)
    room.reached(job_id, ("running",))
    room.cli("cancel", job_id)
    room.ended(job_id)
