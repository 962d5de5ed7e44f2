"""The other formats: rows, faults, detection, filters and files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercio.cli.twin_files import open_trace
from tercio.errors import UserError
from tercio.twin.progress.book import ProfileBook, Rates
from tercio.twin.trace import Trace
from tercio.twin.traces.formats import READERS, detect, read_trace
from tercio.twin.traces.reading import Reading
from tercio.twin.traces.source import Source

SHARED = Path(os.environ.get("TERCIO_SHARED", "../shared")) / "traces"
BOOK = ProfileBook(rates={"A3C": {"V100": Rates(together={1: 2.0, 4: 8.0})}})
SWF = "; UnixStartTime: 1000\n 1 5 2 60 16 -1 -1 16 120 2048 1 3 1 -1 2 -1 -1 -1\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
)
TEXTS = {
    "sacct": "JobID|Submit|State|ElapsedRaw|AllocTRES\n1|2026-01-01T00:00:00|COMPLETED|5|cpu=1\n",
    "swf": SWF,
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-02 00:00:01,5,1,5,a\n",
    "openb": PODS + "p1,8000,1024,2,1000,T4,LS,Running,10,100,40\n",
    "itp": "job_id,submission_time,duration,num_gpu\nx,5,60,16\n",
    "gavel": "A3C\tpython3 x.py\t--steps\t1\t100\t7.0\t1\n",
}


def read(name: str, text: str, *, is_lenient: bool = False) -> Trace:
    reading = Reading(is_lenient=is_lenient, profiles=BOOK)
    return read_trace([Source(name="t", text=text)], reading, name=name)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_format_is_recognised_and_read(name: str) -> None:
    source = Source(name="t", text=TEXTS[name])
    assert detect(source) == name
    assert len(read_trace([source], Reading(profiles=BOOK)).jobs) == 1


def test_a_row_of_swf() -> None:
    (job,) = read("swf", SWF).jobs
    assert (job.id, job.submit_s, job.run_s, job.end) == ("1", 1005.0, 60.0, "ok")
    assert (job.tasks, job.devices_per_task, job.limit_s) == (2, 8, 120.0)
    assert (job.user, job.queue, job.memory_bytes_per_task) == ("user-3", "queue-2", 16 << 20)


def test_rows_of_swf_that_say_nothing_of_a_run_are_counted() -> None:
    trace = read(
        "swf",
        SWF
        + "2 5 2 -1 8 -1 -1 8 9 9 5 1 1 1 1 1 -1 -1\n"
        + "3 5 2 9 8 -1 -1 8 9 9 2 1 1 1 1 1 -1 -1\n"
        + "4 5 2 9 -1 -1 -1 -1 9 9 1 1 1 1 1 1 -1 -1\n",
    )
    assert len(trace.jobs) == 1
    assert len(trace.warnings) == 3


def test_a_pod_runs_from_its_binding_to_its_deletion() -> None:
    trace = read(
        "openb",
        TEXTS["openb"]
        + "p2,1000,512,1,460,G2|P100,BE,Running,11,100,50\n"
        + "p3,1000,512,1,1000,,LS,Pending,12,100,\n",
    )
    first, second = trace.jobs
    assert (first.run_s, first.devices_per_task, first.device_type) == (60.0, 2, "T4")
    assert (first.cpus_per_task, first.memory_bytes_per_task) == (8.0, 1 << 30)
    assert second.device_type is None
    assert (second.devices_per_task, second.share_milli, second.devices) == (0, 460, 0.46)
    assert [warning.split(":")[0] for warning in trace.warnings] == ["left out 1 row", "1 job"]


def test_a_pod_list_without_times_is_refused() -> None:
    with pytest.raises(UserError, match="creation_time"):
        read("openb", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,1,1,1,1000\n")


def test_steps_become_seconds_by_the_profile() -> None:
    trace = read("gavel", TEXTS["gavel"] + "A3C\tx\t-s\t1\t80\t8.0\t2\nA3C\tx\t-s\t1\t80\t9\t64\n")
    # Two devices lie between one and four: 2 * (8 / 2) ** 0.5 = 4 steps a second.
    assert [job.run_s for job in trace.jobs] == [50.0, pytest.approx(20.0)]
    assert "left out 1 row: no rate at this size" in trace.warnings[0]


def test_work_without_profiles_is_refused_with_the_option_to_give() -> None:
    with pytest.raises(UserError, match="profiles") as caught:
        read_trace([Source(name="t", text=TEXTS["gavel"])], Reading())
    assert "--profiles" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "line", "field"),
    [
        ("swf", "1 2 3", "line"),
        ("swf", "1 x 2 60 16 -1 -1 16 120 2048 1 3 1 -1 2 -1 -1 -1", "submit"),
        ("swf", "1 5 2 60 1.5 -1 -1 16 120 2048 1 3 1 -1 2 -1 -1 -1", "processors"),
        ("philly", "2017-10-02 00:00:01,inf,1,0,a", "duration"),
        ("philly", "2017-10-02 00:00:01,1", "line"),
        ("openb", "p1,8000,1024,2,1000,T4,LS,Running,10,30,40", "deletion_time"),
        ("openb", "p1,8000,1024,2,5000,T4,LS,Running,10,30,20", "gpu_milli"),
        ("itp", "x,5,60,0", "num_gpu"),
        ("itp", "x,5,6_0,1", "duration"),
        ("gavel", "A3X\tx\t-s\t1\t80\t8.0\t2", "job_type"),
        ("gavel", "A3C\tx\t-s\t1\t80\tsoon\t2", "arrival"),
    ],
)
def test_a_fault_names_file_line_and_field(name: str, line: str, field: str) -> None:
    text = TEXTS[name] + line + "\n"
    count = len(text.splitlines())
    with pytest.raises(UserError, match=rf"^t:{count}: {field}: ") as caught:
        read(name, text)
    assert caught.value.field == field
    trace = read(name, text, is_lenient=True)
    assert f"left out 1 row: unreadable {field}" in trace.warnings


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(TEXTS)), st.data(), st.booleans())
def test_any_text_is_read_or_refused(name: str, data: st.DataObject, is_lenient: bool) -> None:
    text = list(TEXTS[name])
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        text[at:at] = data.draw(st.text(max_size=4))
        cut = data.draw(st.integers(0, len(text)))
        del text[cut : cut + data.draw(st.integers(0, 3))]
    try:
        trace = read(name, "".join(text), is_lenient=is_lenient)
    except UserError as error:
        assert error.message.startswith("t")
    else:
        assert trace.jobs


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_under_any_name_is_read_or_refused(text: str) -> None:
    source = Source(name="t", text=text)
    for name in (None, *READERS):
        try:
            read_trace([source], Reading(profiles=BOOK), name=name)
        except UserError as error:
            assert error.message


def test_filters_and_types_are_taken_when_a_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(TEXTS["openb"] + "p2,1000,512,1,1000,G2,BE,Running,11,100,50\n")
    trace = open_trace([path], filters=["num_gpu>=2"], ignores_types=True)
    assert [(job.id, job.device_type) for job in trace.jobs] == [("p1", None)]
    with pytest.raises(UserError, match="passes the filters"):
        open_trace([path], filters=["num_gpu=7"])


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("hello\n")
    with pytest.raises(UserError, match="no format") as caught:
        open_trace([path])
    assert "--format" in (caught.value.hint or "")
    with pytest.raises(UserError, match="saact"):
        open_trace([path], format_name="saact")


def test_folders_and_gzip_are_opened_and_broken_files_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("not a trace")
    (tmp_path / "a.csv").write_text(TEXTS["itp"])
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(TEXTS["itp"].encode()))
    trace = open_trace([tmp_path])
    assert (len(trace.jobs), trace.source) == (2, f"{tmp_path}/a.csv and 1 more")
    (tmp_path / "c.csv").write_bytes(gzip.compress(TEXTS["itp"].encode())[:-9])
    with pytest.raises(UserError, match="cannot read"):
        open_trace([tmp_path / "c.csv"])
    (tmp_path / "d.csv").write_bytes(b"a,b\n\xff\n")
    with pytest.raises(UserError, match=r"d\.csv:2: not a text"):
        open_trace([tmp_path / "d.csv"])
    with pytest.raises(UserError, match="there is no file"):
        open_trace([tmp_path / "none.csv"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not at hand")
@pytest.mark.parametrize(
    ("path", "count", "device_hours"),
    [
        # Counts and device hours as published with the traces.
        ("philly-2017/philly_jobs.csv.gz", 82_247, 978_078),
        ("microsoft-itp-2021/raw", 69_351, 1_632_720),
        ("alibaba-openb-2023/openb_pod_list_default.csv.gz", 8_152 - 897, None),
        ("sia-workloads/workloads/philly/workload-1.csv", 160, None),
        ("pollux-workloads/workloads/workload-1.csv", 160, None),
        ("gavel/traces/physical_cluster/minimize_makespan.trace", 100, None),
    ],
)
def test_public_traces_are_read_whole(path: str, count: int, device_hours: int | None) -> None:
    trace = open_trace([SHARED / path])
    assert len(trace.jobs) == count
    if device_hours is not None:
        total_s = sum(job.devices * job.run_s for job in trace.jobs)
        assert total_s / 3600 == pytest.approx(device_hours, rel=1e-5)
