"""The Philly export, line by line."""

from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.twin.traces.philly import read_philly

HEAD = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def test_jobs_come_in_order_with_whole_seconds_of_at_least_one() -> None:
    trace = read_philly(
        HEAD + "2017-10-02 00:00:01,66.9,8,0,a\n2017-10-02 00:00:00,0.0,16,0,b\n", "x.csv"
    )
    first, second = trace.jobs
    assert (first.queue, first.run_s, first.tasks, first.devices_per_task) == ("b", 1.0, 2, 8)
    assert (second.queue, second.run_s, second.tasks, second.devices_per_task) == ("a", 66.0, 1, 8)
    assert second.submit_s - first.submit_s == 1.0
    assert first.columns["num_gpus"] == "16"


def test_a_gang_splits_into_equal_tasks() -> None:
    trace = read_philly(HEAD + "2017-10-02 00:00:01,1,12,0,a\n", "x.csv")
    assert (trace.jobs[0].tasks, trace.jobs[0].devices_per_task) == (2, 6)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("yesterday,1,1,0,a", "timestamp"),
        ("2017-10-02 00:00:01,long,1,0,a", "duration"),
        ("2017-10-02 00:00:01,1,one,0,a", "num_gpus"),
        ("2017-10-02 00:00:01,1,-1,0,a", "num_gpus"),
    ],
)
def test_an_error_names_file_line_and_column(line: str, column: str) -> None:
    with pytest.raises(UserError, match=r"x\.csv:2") as caught:
        read_philly(HEAD + line + "\n", "x.csv")
    assert caught.value.field == column


def test_a_missing_column_is_named() -> None:
    with pytest.raises(UserError, match="num_gpus"):
        read_philly("timestamp,duration,cluster\n", "x.csv")
