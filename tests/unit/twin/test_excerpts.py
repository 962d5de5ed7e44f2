"""An excerpt of every kind of log, written out here, through the live scheduler."""

from __future__ import annotations

import json

import pytest

from tercio.cli.main import run as main

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
