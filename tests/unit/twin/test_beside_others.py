"""The bench that plays a log beside another simulator, where one is installed."""

from __future__ import annotations

import pytest
from bench import simulators
from bench.accasim_run import mean_wait_s

LOG = (
    "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-02 00:00:00,500,16,8000,a\n"
    "2017-10-02 00:00:00,60,8,480,a\n2017-10-02 00:00:00,60,8,480,b\n"
)
SCHEDULE = (
    "1;7;1970-01-01 00:00:00__1;1#__1970-01-01 00:00:30;1970-01-01 00:01:01;1;1;NA;-1;\n"
    "2;7;1970-01-01 00:06:43__1;1#1;1#__1970-01-01 00:06:53;1970-01-01 00:06:57;2;2;NA;-1;\n"
)


def test_a_cluster_is_played_and_its_row_says_how_to_install_the_other(tmp_path):
    path = tmp_path / "philly.csv"
    path.write_text(LOG, encoding="utf-8")
    case = simulators.Case("a", 2, "elsewhere")
    row = simulators.measure(case, path, tmp_path, is_installed=False)
    assert row.what == "a on 2x8, 2 jobs"
    assert row.ours.endswith("wait 30.0 s")
    assert row.others == "AccaSim: not installed (pip install accasim==1.1.3); elsewhere"


def test_the_wait_is_read_from_the_schedule_of_the_other(tmp_path):
    path = tmp_path / "sched"
    path.write_text(SCHEDULE, encoding="utf-8")
    assert mean_wait_s(path) == pytest.approx(20.0)
