"""The words of sbatch as a request to slurmrestd, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.order import Refused, Seat, sbatch_words
from tercio.engines.slurm.submit import RestSubmitter, body_of
from tercio.errors import EngineError
from tercio.model.effects import DeviceOrder, LaunchTask
from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.model.resources import DeviceShare

ME = Account(
    name="ana", uid=1000, gid=1000, groups=(1000,), home="/home/ana", shell="/bin/sh", is_self=True
)
OTHER = Account(
    name="bo", uid=1001, gid=1001, groups=(1001,), home="/home/bo", shell="/bin/sh", is_self=False
)
ORDER = LaunchTask(
    effect_id=EffectId("launch:job-1/2/3"),
    epoch=1,
    deadline_s=0.0,
    site=SiteName("hpc"),
    node=NodeName("n2"),
    job_id=JobId("job-1"),
    attempt=2,
    task=3,
    user="ana",
    command="true",
    devices=tuple(
        DeviceOrder(share=DeviceShare(index=index), type="H100", vendor="nvidia")
        for index in (1, 2)
    ),
    cpus_milli=3500,
    memory_bytes=5 << 30,
    limit_s=3600.0,
    grace_s=30.0,
)
SEAT = Seat(node="n2", partition="gpu", gres_types=("h100",) * 8, memory_bytes=1 << 38)
WORDS = sbatch_words(
    ORDER, SEAT, owner="cafe", directory="/spool/x", is_pinned=True,
    extra=("--account=research", "--qos=low"),
)  # fmt: skip


def number(value: int) -> dict[str, object]:
    return {"number": value, "set": True, "infinite": False}


def test_every_word_of_sbatch_is_said_to_slurmrestd() -> None:
    job = body_of(WORDS, "#!/bin/sh\n", ME)["job"]
    assert job == {
        "script": "#!/bin/sh\n",
        "current_working_directory": "/",
        "environment": job["environment"],
        "requeue": False,
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "tasks": 1,
        "name": "tercio-job-1.2.3",
        "comment": "tercio cafe launch:job-1/2/3 n2 1,2",
        "partition": "gpu",
        "cpus_per_task": 4,
        "memory_per_node": number(5120),
        "standard_output": "/spool/x/slurm.out",
        "standard_input": "/dev/null",
        "open_mode": ["APPEND"],
        "kill_warning_signal": "TERM",
        "kill_warning_flags": ["BATCH_JOB"],
        "kill_warning_delay": number(30),
        "required_nodes": ["n2"],
        "tres_per_node": "gres/gpu:h100:2",
        "time_limit": number(66),
        "account": "research",
        "qos": "low",
    }
    assert "HOME=/home/ana" in job["environment"]


class ToldRest:
    """A slurmrestd of one version with one answer."""

    def __init__(self, version: str, status: int, answer: dict[str, Any]) -> None:
        self.version, self.status, self.answer = version, status, answer
        self.asked: list[str] = []

    async def find_version(self) -> str:
        return self.version

    async def post(self, what: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(what)
        return self.status, self.answer


class Sbatch:
    async def submit(self, words: Sequence[str], script: str, account: Account) -> int:
        return 7


def submit(rest: ToldRest, account: Account = ME) -> int:
    submitter = RestSubmitter(rest, Sbatch())  # type: ignore[arg-type]
    return asyncio.run(submitter.submit(WORDS, "#!/bin/sh\n", account))


def test_slurmrestd_is_used_from_the_first_version_that_pins_nodes() -> None:
    answer = {"job_id": 41, "step_id": "batch", "errors": [], "warnings": []}
    new, old = ToldRest("v0.0.40", 200, answer), ToldRest("v0.0.39", 200, answer)
    assert (submit(new), new.asked) == (41, ["job/submit"])
    assert (submit(old), old.asked) == (7, [])
    # The token is the server's own user's; a job of another goes by the command.
    assert (submit(new, OTHER), len(new.asked)) == (7, 1)


def recorded(number: int, error: str) -> dict[str, Any]:
    """An answer of slurmrestd 24.11.5."""
    told = {
        "description": "Batch job submission failed", "error_number": number, "error": error,
        "source": "slurm_submit_batch_job()",
    }  # fmt: skip
    return {"errors": [told], "warnings": []}


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (500, recorded(2000, "Invalid partition name specified"), Refused),
        (500, recorded(2014, "Requested node configuration is not available"), Refused),
        (502, recorded(1800, "Unable to contact slurm controller (connect failure)"), EngineError),
        # Written after the schema: an error beside 200, and a gateway before the daemon.
        (200, {"errors": [{"error": "Invalid account or account/partition combination"}]}, Refused),
        (502, {"errors": [{"error": "sorry"}]}, EngineError),
    ],
)  # fmt: skip
def test_refusals_are_told_from_faults_that_pass(
    status: int, answer: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        submit(ToldRest("v0.0.42", status, answer))
    assert not isinstance(caught.value, EngineError) or caught.value.retryable
