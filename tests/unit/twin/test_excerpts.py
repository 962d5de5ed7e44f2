"""An excerpt of every kind of log, written out here, through the live scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.log_forms import sums_of, write_all

from tercio.cli.main import run as main
from tercio.formats.cluster import read_cluster
from tercio.model.events import TaskExited
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.store.journal import Journal
from tercio.twin.fuzz import Game
from tercio.twin.policies import built_in
from tercio.twin.replay import run
from tercio.twin.trace import Trace, TraceJob

SACCT = (
    "JobID|User|Account|Partition|Submit|Start|End|ElapsedRaw|State|Timelimit|NNodes|AllocTRES\n"
    "1|ana|nlp|gpu|2026-03-01T00:00:00|2026-03-01T00:01:00|2026-03-01T00:11:00|600|COMPLETED|"
    "01:00:00|1|cpu=8,gres/gpu:h100=8,mem=64G,node=1\n"
    "2|bob|nlp|gpu|2026-03-01T00:00:30|2026-03-01T00:11:00|2026-03-01T00:13:00|120|FAILED|"
    "01:00:00|1|cpu=8,gres/gpu:h100=4,mem=64G,node=1\n"
    "3|bob|nlp|gpu|2026-03-01T00:00:40|2026-03-01T00:11:00|2026-03-01T00:12:00|60|CANCELLED by 7|"
    "01:00:00|2|cpu=8,gres/gpu:h100=16,mem=64G,node=2\n"
)
SWF = "".join(
    f"{n} {60 * n} 5 600 {size} -1 -1 {size} 900 -1 {state} 3 1 -1 2 -1 -1 -1\n"
    for n, size, state in ((1, 8, 1), (2, 4, 0), (3, 16, 5))
)
PHILLY = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-02 00:00:01,500,1,500,a\n"
    "2017-10-02 00:00:02,60,8,480,a\n2017-10-02 00:00:03,60,16,960,a\n"
)
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
    "p1,8000,1024,2,1000,,LS,Succeeded,10,100,40\np2,1000,512,1,460,,BE,Failed,11,100,50\n"
    "p3,1000,512,1,460,,BE,Succeeded,12,120,50\n"
)
ITP = "job_id,submission_time,duration,num_gpu\nx,5,60,16\ny,6,60,1\nz,7,60,4\n"


@pytest.mark.parametrize(
    ("text", "format", "failed", "cancelled"),
    [
        (SACCT, "sacct", 1, 1),
        (SWF, "swf", 1, 1),
        (PHILLY, "philly", 0, 0),
        (OPENB, "openb", 1, 0),
        (ITP, "itp", 0, 0),
    ],
    ids=["sacct", "swf", "philly", "openb", "itp"],
)
@pytest.mark.parametrize("policy", ["fifo", "easy", "multifactor"])
def test_every_job_of_an_excerpt_is_done(
    tmp_path, capfdbinary, text, format, failed, cancelled, policy
):
    path = tmp_path / "log"
    path.write_text(text)
    words = ["twin", "replay", str(path), "--cluster", "4x8", "--policy", policy, "-o", "json"]
    assert main([*words, "--ignore-types"]) == 0
    body = json.loads(capfdbinary.readouterr().out)
    assert (body["jobs"], body["unfinished"], body["never_fit"]) == (3, 0, 0)
    assert (body["failed"], body["cancelled"]) == (failed, cancelled)
    assert body["mean_wait_s"] < 1000


SIA = "name,time,application,num_replicas,batch_size\na,5,toy,2,64\nb,6,toy,1,64\nc,7,toy,16,64\n"
POLLUX = "time,name,application,num_replicas,batch_size,num_nodes\n5,a,toy,2,64,1\n6,b,toy,1,64,1\n"
GAVEL = "".join(f"A3C\tpython3 x.py\t--steps\t1\t{400 * n}\t{n}.5\t{n}\n" for n in (1, 2, 4))
RUN = "progress,iteration,metric,grad_sqr,grad_var\n640,10,0.1,1.0,1.0\n1280,20,0.2,1.0,1.0\n"
STEPS = "placement,local_bsz,step_time,sync_time\n" + "".join(
    f"{placement},{batch},{0.5 + batch / 128},0.1\n"
    for placement in ("1", "2", "88")
    for batch in (4, 32, 64)
)
RATES = {"v100": {f"('A3C', {n})": {"null": 2.0 * n} for n in (1, 2, 4)}}


def replayed(capfdbinary: pytest.CaptureFixture[bytes], *words: str) -> dict[str, object]:
    assert main(["twin", "replay", *words, "-o", "json"]) == 0
    body: dict[str, object] = json.loads(capfdbinary.readouterr().out)
    return body


@pytest.mark.parametrize(
    ("text", "jobs", "kind"),
    [(SIA, 3, "T4"), (POLLUX, 2, "T4"), (GAVEL, 3, "V100")],
    ids=["sia", "pollux", "gavel"],
)
@pytest.mark.parametrize("policy", ["fifo", "easy", "elastic"])
def test_every_job_of_an_excerpt_of_work_is_done(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], text: str, jobs: int, kind: str,
    policy: str,
) -> None:  # fmt: skip
    """Sia, Pollux and Gavel record work; profiles beside the log say how fast it is done."""
    model = tmp_path / "profiles" / "toy"
    model.mkdir(parents=True)
    (model / "validation-64.csv").write_text(RUN)
    (model / "placements-aws.csv").write_text(STEPS)
    (tmp_path / "profiles" / "simulation_throughputs.json").write_text(json.dumps(RATES))
    log, cluster = tmp_path / "log", tmp_path / "cluster.yaml"
    log.write_text(text)
    cluster.write_text(f'nodes: [{{name: "n[1-4]", devices: "{kind}:8"}}]\n')
    files = (str(log), "--cluster", str(cluster), "--profiles", str(tmp_path / "profiles"))
    body = replayed(capfdbinary, *files, "--policy", policy)
    assert (body["jobs"], body["unfinished"], body["never_fit"]) == (jobs, 0, 0)
    assert float(str(body["mean_jct_s"])) > 5.0


@pytest.mark.parametrize("policy", ["fifo", "easy", "multifactor"])
def test_our_own_journal_is_replayed(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], policy: str
) -> None:
    """The journal of a run with lost nodes, killed servers and people, as a server stores it."""
    game = Game(2, jobs=20, is_wide=False)
    game.play()
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.append(game.journal)
    journal.close()
    ran = {e.event.job_id for e in game.journal if isinstance(e.event, TaskExited)}
    jobs = game.loop.driver.cluster.jobs
    assert all(jobs[name].state in TERMINAL_JOB_STATES for name in ran)
    body = replayed(capfdbinary, str(path), "--cluster", "4x8", "--policy", policy)
    assert (body["unfinished"], body["never_fit"]) == (0, 0)
    assert 10 < int(str(body["jobs"])) <= len(ran)
    assert 0 < int(str(body["failed"])) < int(str(body["jobs"]))


def test_a_log_says_the_same_in_every_form(tmp_path: Path) -> None:
    """What `make bench` writes down as sacct, SWF and journal comes to the sums of the log."""
    jobs = tuple(
        TraceJob(
            id=str(n), submit_s=1_500_000_000.0 + 7 * n, run_s=60.0 + 37 * (n % 11),
            tasks=2 if n % 5 == 0 else 1, devices_per_task=8 if n % 5 == 0 else 1 + n % 4,
            cpus_per_task=1.0, memory_bytes_per_task=1 << 30, end="failed" if n % 7 == 0 else "ok",
        )
        for n in range(80)
    )  # fmt: skip
    trace = Trace(jobs=jobs, source="made up", kind="philly")
    sums = run(trace, read_cluster("4x8"), built_in("fifo")).summary
    assert sums.mean_wait_s > 10
    for name, path in write_all(trace, "4x8", tmp_path).items():
        found, _, _ = sums_of(path, "4x8")
        assert (found.jobs, found.failed) == (sums.jobs, sums.failed), name
        assert found.mean_wait_s == pytest.approx(sums.mean_wait_s), name
        assert found.makespan_s == pytest.approx(sums.makespan_s), name
