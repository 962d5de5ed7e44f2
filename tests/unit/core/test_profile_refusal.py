"""A goodput profile is used or refused, never ignored."""

from __future__ import annotations

import msgspec
import pytest

from tercio.core.members import check_profile
from tercio.errors import UserError
from tercio.model.job import CheckpointSpec, Goodput, JobSpec, RetrySpec, TaskGroup

PROFILE = (Goodput(type="H100", tasks=(1, 2), units_per_s=(1.0, 1.9)),)
GOOD = JobSpec(
    name="j",
    groups=(TaskGroup(tasks=1, tasks_max=2),),
    goodput=PROFILE,
    checkpoint=CheckpointSpec(path="/data/run"),
)


def test_a_job_without_a_profile_and_one_that_can_be_resized_pass() -> None:
    check_profile(JobSpec(name="plain"), is_elastic=False)
    check_profile(GOOD, is_elastic=True)


@pytest.mark.parametrize(
    ("changes", "is_elastic", "hint"),
    [
        ({}, False, "elastic: goodput"),
        ({"checkpoint": CheckpointSpec()}, True, "checkpoint.path"),
        ({"groups": (TaskGroup(name="a"), TaskGroup(name="b"))}, True, "one group"),
        ({"retry": RetrySpec(on=())}, True, "retry.on"),
    ],
)
def test_what_nothing_would_act_on_is_refused(
    changes: dict[str, object], is_elastic: bool, hint: str
) -> None:
    with pytest.raises(UserError) as caught:
        check_profile(msgspec.structs.replace(GOOD, **changes), is_elastic=is_elastic)
    assert caught.value.field == "speed.H100"
    assert hint in (caught.value.hint or "")
