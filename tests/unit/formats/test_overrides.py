import pytest

from tercio.errors import UserError
from tercio.formats.native import read_job
from tercio.model.resources import DeviceRequest


def spec_of(text, **overrides):
    return read_job(text, source="job.yaml", overrides=overrides).specs[0]


def test_a_job_may_come_from_options_alone():
    spec = spec_of(
        "", gpus="H100:8", nodes=2, name="x", queue="q", priority=3, time="8h",
        env={"A": "1"}, run=["python", "a b.py"], workdir="w-1", cpus=4, memory="8GiB",
    )  # fmt: skip
    assert spec.run == "python 'a b.py'"
    assert spec.groups[0].tasks == 2
    assert spec.groups[0].per_task.devices == (DeviceRequest(type="H100", count=8),)
    assert spec.groups[0].per_task.cpus_milli == 4000
    assert (spec.name, spec.queue, spec.priority, spec.workdir) == ("x", "q", 3, "w-1")
    assert spec.time.limit_s == 28800.0
    assert spec.env == {"A": "1"}


def test_options_win_over_the_file_and_keep_the_rest():
    text = """
run: python a.py
tasks: 8
per_task: {devices: "A100:1", cpus: 7}
time: {limit: 1h, expected: 30m}
env: {A: old, B: kept}
secrets: [X]
"""
    spec = spec_of(
        text, gpus="H100:2", nodes="2..4", time="2h", env={"A": "new"}, secrets=["X", "Y"]
    )
    group = spec.groups[0]
    assert (group.tasks, group.tasks_max) == (2, 4)
    assert group.per_task.devices[0].type == "H100"
    assert group.per_task.cpus_milli == 7000
    assert (spec.time.limit_s, spec.time.expected_s) == (7200.0, 1800.0)
    assert spec.env == {"A": "new", "B": "kept"}
    assert spec.secrets == ("X", "Y")


def test_the_one_group_of_a_list_is_meant():
    text = "run: a\ngroups: [{name: g, tasks: 3, per_task: {cpus: 2}}]"
    group = spec_of(text, gpus="L4:1", nodes=5).groups[0]
    assert (group.tasks, group.per_task.cpus_milli) == (5, 2000)
    assert group.per_task.devices[0].type == "L4"


def test_several_groups_are_ambiguous():
    with pytest.raises(UserError, match="several task groups") as raised:
        spec_of("run: a\ngroups: [{name: g}, {name: h}]", gpus="L4:1")
    assert raised.value.field == "overrides.gpus"
    assert "per_task.devices" not in raised.value.message
    assert "devices" in raised.value.hint


def test_none_is_not_given_and_unknown_is_refused():
    assert spec_of("run: a", gpus=None).groups[0].tasks == 1
    with pytest.raises(UserError) as raised:
        spec_of("run: a", gpu="L4:1")
    assert raised.value.hint == "did you mean 'gpus'?"


def test_every_document_gets_the_options():
    found = read_job("run: a\n---\nrun: b", source="x", overrides={"priority": 7})
    assert [spec.priority for spec in found.specs] == [7, 7]


@pytest.mark.parametrize(
    "overrides",
    [{"gpus": "H10:1"}, {"nodes": 0}, {"env": [1]}, {"time": "x"}, {"run": ""}, {"name": "A B"},
     {"secrets": "X"}, {"env": {"1": "x"}}],
)  # fmt: skip
def test_bad_options_are_refused(overrides):
    with pytest.raises(UserError) as raised:
        spec_of("run: a", **overrides)
    assert raised.value.hint
    assert raised.value.field


def test_a_file_of_the_wrong_shape_is_still_refused():
    with pytest.raises(UserError, match="mapping"):
        spec_of("run: a\nper_task: 3", gpus="L4:1")
    with pytest.raises(UserError, match="mapping"):
        spec_of("run: a\ntime: 3", time="1h")
