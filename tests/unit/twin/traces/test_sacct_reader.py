"""Slurm accounting dumps: what a row means, what is joined, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercio.errors import UserError
from tercio.twin.trace import Trace
from tercio.twin.traces.formats import detect, read_trace
from tercio.twin.traces.reading import Reading
from tercio.twin.traces.source import Source

HEAD = (
    "JobID|User|Account|Partition|Submit|Start|End|ElapsedRaw|State|Timelimit|NNodes"
    "|AllocTRES|ReqTRES"
)
GANG = "billing=8,cpu=64,gres/gpu:h100=16,gres/gpu=16,mem=512G,node=2"


def row(
    job: str = "100",
    *,
    submit: str = "2026-03-01T08:00:00",
    start: str = "2026-03-01T08:05:00",
    end: str = "2026-03-01T09:05:00",
    elapsed: str = "3600",
    state: str = "COMPLETED",
    limit: str = "1-00:00:00",
    tres: str = GANG,
    wanted: str = GANG,
) -> str:
    return f"{job}|ana|nlp|gpu|{submit}|{start}|{end}|{elapsed}|{state}|{limit}|2|{tres}|{wanted}"


def read(*rows: str, is_lenient: bool = False) -> Trace:
    source = Source(name="march.txt", text="\n".join((HEAD, *rows)) + "\n")
    return read_trace([source], Reading(is_lenient=is_lenient))


def test_a_gang_is_read_with_all_that_its_row_says() -> None:
    (job,) = read(row()).jobs
    assert (job.tasks, job.devices_per_task, job.device_type) == (2, 8, "H100")
    assert (job.cpus_per_task, job.memory_bytes_per_task) == (32.0, 256 << 30)
    assert (job.run_s, job.limit_s, job.end) == (3600.0, 86400.0, "ok")
    assert (job.user, job.queue) == ("ana", "gpu/nlp")
    assert job.submit_s == 1772352000.0
    assert job.columns["State"] == "COMPLETED"


def test_steps_are_left_out_and_counted() -> None:
    trace = read(row(), row("100.batch"), row("100.extern"), row("100.0"))
    assert [job.id for job in trace.jobs] == ["100"]
    assert trace.warnings == ("left out 3 rows: a step; its job has a row of its own",)


def test_attempts_of_a_requeued_job_become_its_last() -> None:
    trace = read(
        row(state="REQUEUED", elapsed="10"),
        row(submit="2026-03-01T10:00:00", elapsed="20", state="NODE_FAIL"),
        row(submit="2026-03-01T11:00:00", elapsed="30"),
    )
    (job,) = trace.jobs
    assert (job.run_s, job.submit_s, job.end) == (30.0, 1772352000.0, "ok")
    assert "left out 2 rows: an earlier attempt" in trace.warnings[0]


def test_a_number_that_is_used_again_is_another_job() -> None:
    trace = read(row(), row(submit="2026-09-01T08:00:00"), row(submit="2026-10-01T08:00:00"))
    assert [job.id for job in trace.jobs] == ["100", "100#2", "100#3"]


def test_a_row_that_two_dumps_share_is_one_job() -> None:
    trace = read(row(), row())
    assert len(trace.jobs) == 1
    assert trace.warnings == ("left out 1 row: a repeated row",)


def test_array_elements_are_jobs_and_the_waiting_rest_is_counted() -> None:
    trace = read(row("7_1"), row("7_2"), row("7_[3-9%2]", start="Unknown", state="PENDING"))
    assert [job.id for job in trace.jobs] == ["7_1", "7_2"]
    assert "had not started" in trace.warnings[0]


def test_alike_components_of_a_heterogeneous_job_are_one_gang() -> None:
    trace = read(row("9+0"), row("9+1", tres="gres/gpu:h100=8,node=1"))
    (job,) = trace.jobs
    assert (job.id, job.tasks, job.devices_per_task) == ("9", 3, 8)


def test_unlike_components_are_replayed_one_by_one() -> None:
    trace = read(row("9+0"), row("9+1", tres="cpu=4,node=1"))
    assert [job.id for job in trace.jobs] == ["9+0", "9+1"]
    assert "heterogeneous" in trace.warnings[0]


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("COMPLETED", "ok"),
        ("FAILED", "failed"),
        ("TIMEOUT", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("PREEMPTED", "cancelled"),
    ],
)
def test_how_a_job_ended(state: str, end: str) -> None:
    assert read(row(state=state)).jobs[0].end == end


def test_a_job_cancelled_before_its_start_is_counted() -> None:
    trace = read(row(), row("101", start="None", elapsed="0", state="CANCELLED by 5", tres=""))
    assert len(trace.jobs) == 1
    assert "without having started" in trace.warnings[0]


def test_a_running_job_is_replayed_for_as_long_as_it_had_run() -> None:
    trace = read(row(end="Unknown", elapsed="777", state="RUNNING"))
    assert (trace.jobs[0].run_s, trace.jobs[0].end) == (777.0, "unknown")
    assert "still running" in trace.warnings[0]


def test_the_request_counts_where_the_allocation_is_empty() -> None:
    assert read(row(tres="", wanted="cpu=4,gres/gpu=1,node=1")).jobs[0].devices == 1


@pytest.mark.parametrize(
    ("text", "memory_bytes"), [("64G", 64 << 30), ("1.5T", 3 << 39), ("512", 512 << 20)]
)
def test_memory_without_a_unit_is_mebibytes(text: str, memory_bytes: int) -> None:
    trace = read(row(tres=f"gres/gpu=1,mem={text},node=1"))
    assert trace.jobs[0].memory_bytes_per_task == memory_bytes


def test_devices_that_do_not_divide_by_the_nodes_keep_their_sum() -> None:
    trace = read(row(tres="gres/gpu=9,node=2"))
    assert (trace.jobs[0].devices, trace.jobs[0].devices_per_task) == (9, 1)
    assert "evenly" in trace.warnings[0]


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [("1-00:00:00", 86400.0), ("08:30:00", 30600.0), ("30:00", 1800.0), ("90", 5400.0),
     ("2-12", 216000.0), ("UNLIMITED", None), ("Partition_Limit", None), ("", None)],
)  # fmt: skip
def test_time_limits(text: str, limit_s: float | None) -> None:
    assert read(row(limit=text)).jobs[0].limit_s == limit_s


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"job": "12a"}, "JobID"),
        ({"submit": "yesterday"}, "Submit"),
        ({"submit": "Unknown"}, "Submit"),
        ({"start": "2026-13-01T00:00:00"}, "Start"),
        ({"elapsed": "-5"}, "ElapsedRaw"),
        ({"elapsed": "nan"}, "ElapsedRaw"),
        ({"state": "BORED"}, "State"),
        ({"limit": "soon"}, "Timelimit"),
        ({"tres": "gres/gpu"}, "AllocTRES"),
        ({"tres": "gres/gpu=many"}, "AllocTRES"),
        ({"tres": "gres/gpu=1.5"}, "AllocTRES"),
    ],
)
def test_an_error_names_file_line_field_and_value(changed: dict[str, str], field: str) -> None:
    value = next(iter(changed.values()))
    with pytest.raises(UserError, match=rf"march\.txt:3: {field}: '{value}'") as caught:
        read(row("99"), row(**changed))
    assert caught.value.field == field
    lenient = read(row("99"), row(**changed), is_lenient=True)
    assert lenient.warnings == (f"left out 1 row: unreadable {field}",)


def test_a_name_with_a_bar_is_a_row_of_too_many_columns() -> None:
    with pytest.raises(UserError, match="a row of 13 columns"):
        read(row() + "|x")


@pytest.mark.parametrize("missing", ["AllocTRES|ReqTRES", "ElapsedRaw|Start"])
def test_a_column_without_which_nothing_can_be_replayed_is_asked_for(missing: str) -> None:
    names = [name for name in HEAD.split("|") if name not in missing.split("|")]
    with pytest.raises(UserError, match=missing.split("|", maxsplit=1)[0]) as caught:
        read_trace([Source(name="x", text="|".join(names) + "\n")], Reading())
    assert "sacct --format" in (caught.value.hint or "")


def test_it_is_recognised_by_its_header() -> None:
    assert detect(Source(name="x", text=HEAD)) == "sacct"


cells = st.one_of(
    st.sampled_from(["", "Unknown", "1", "-1", "1e9", "nan", "COMPLETED", "RUNNING", "1_[2-3]",
                     "5+1", "5.0", "2026-03-01T08:00:00", "gres/gpu=8,node=0", "node=2", "="]),
    st.text(st.characters(blacklist_characters="|", codec="utf-8"), max_size=12),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(cells, min_size=13, max_size=13), max_size=6), st.booleans())
def test_no_row_is_lost_silently_and_nothing_but_a_user_error_is_raised(
    rows: list[list[str]], is_lenient: bool
) -> None:
    text = "\n".join([HEAD, row("1"), *("|".join(cells) for cells in rows)])
    try:
        trace = read_trace([Source(name="x", text=text)], Reading(is_lenient=is_lenient))
    except UserError as error:
        assert not is_lenient
        assert error.message.startswith("x:")
        return
    lines = [line for line in text.splitlines()[1:] if line.strip()]
    left_out = sum(
        int(warning.split()[2].replace(",", ""))
        for warning in trace.warnings
        if warning.startswith("left out")
    )
    joined = sum(job.id == "5" for job in trace.jobs)
    assert len(trace.jobs) + left_out >= len(lines) - 6 * joined
