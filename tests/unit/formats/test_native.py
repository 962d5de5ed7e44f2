import msgspec
import pytest
from job_texts import CONTRACT, EVERYTHING, plain

from tercio.errors import UserError
from tercio.formats.document import from_json, read_documents
from tercio.formats.native import default_name, read_job, read_job_object
from tercio.formats.policy import read_policy
from tercio.model.job import (
    ArraySpec,
    CheckpointSpec,
    Dependency,
    DependsWhen,
    EndCause,
    Framework,
    IndexRange,
    JobSpec,
    NodeFilter,
    NotifySpec,
    Repair,
    RetrySpec,
    TaskGroup,
    TimeSpec,
)
from tercio.model.resources import DeviceRequest, Request
from tercio.model.topology import SliceRequest, TopologyRequest

GIB = 1024**3


def spec_of(text, **options):
    return read_job(text, source="job.yaml", **options).specs[0]


def test_the_contracts_example_reads_in_full():
    assert spec_of(CONTRACT) == JobSpec(
        name="llama-sft",
        queue="research/nlp",
        preemptible=True,
        groups=(
            TaskGroup(
                name="trainer",
                tasks=4,
                per_task=Request(
                    devices=(
                        DeviceRequest(type="H100", count=8),
                        DeviceRequest(type="A100", count=8, card_bytes=80 * 10**9),
                    ),
                    cpus_milli=32_000,
                    memory_bytes=256 * GIB,
                    shm_bytes=64 * GIB,
                ),
                topology=TopologyRequest(
                    same="rack", prefer="island", slice=SliceRequest(tasks=2, same="island")
                ),
            ),
        ),
        topology=TopologyRequest(same="block"),
        nodes=NodeFilter(match="pool == 'a' && !('old' in labels)", exclude=("n7",)),
        time=TimeSpec(limit_s=28800.0, expected_s=21600.0),
        run="python train.py\n",
        setup="pip install -r requirements.txt\n",
        framework=Framework.TORCHRUN,
        env={"WANDB_MODE": "offline"},
        secrets=("HF_TOKEN",),
        workdir=".",
        checkpoint=CheckpointSpec(path="/ckpt/x", signal="SIGUSR1", grace_s=120.0),
        retry=RetrySpec(),
        depends_on=(Dependency(job="job-7f3k2"),),
        array=ArraySpec(ranges=(IndexRange(start=0, stop=100),), concurrency=8),
        sites=("local", "hpc"),
        speed={"H100": 1.0, "A100": 0.4},
        notify=(NotifySpec(on=("failed", "finished"), url="https://example.org/hook"),),
        labels={"project": "x"},
    )


def test_every_key_reads():
    spec = spec_of(EVERYTHING)
    lead, work, nest = spec.groups
    assert lead.per_task.devices[0].mig_profile == "1g.10gb"
    assert (work.tasks, work.tasks_max, work.exclusive) == (2, 8, True)
    assert work.topology.leader == "lead"
    assert [inner.name for inner in nest.subgroups] == ["left", "right"]
    assert nest.min_subgroups == 1
    assert spec.task_count == 1 + 2 + 4
    assert spec.env == {"A": "1", "B": "x", "C": "010", "D": "true"}
    assert spec.labels == {"a.b/c": "007"}
    assert spec.retry == RetrySpec(
        on=(EndCause.FAILED, EndCause.TIME_LIMIT, EndCause.LAUNCH_FAILED), max=0, backoff_s=0.0
    )
    assert spec.depends_on[1] == Dependency(job="job-00002.7", when=DependsWhen.ANY)
    assert spec.array.size == 5
    assert spec.goodput[0].units_per_s == (1.0, 1.9, 3.5)
    assert spec.time.deadline_s > spec.time.earliest_s == 1796112000.0
    assert spec.time.flexible_s == 12 * 3600
    assert spec.checkpoint == CheckpointSpec(path="/c", signal="SIGUSR2", grace_s=60, every_s=600)
    assert spec.repair is Repair.TASK
    assert spec.wait_for_capacity


def test_a_flat_file_is_one_group():
    spec = spec_of("run: a\ntasks: 2\nper_task: {devices: 'H100:8'}\ntopology: {prefer: rack}")
    assert len(spec.groups) == 1
    assert spec.groups[0].tasks == 2
    assert spec.groups[0].topology == TopologyRequest(prefer="rack")
    assert spec.topology is None


def test_defaults_are_those_of_the_model():
    assert spec_of("run: a", overrides={"name": "x"}) == JobSpec(name="x", run="a")


def test_null_means_not_given():
    text = "run: a\nname: x\n" + "".join(
        f"{key}: null\n"
        for key in ("queue", "priority", "groups", "tasks", "per_task", "time", "env", "array")
    )
    assert spec_of(text) == JobSpec(name="x", run="a")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("job.yaml", "job"),
        ("a/b/My Train_Job.v2.yml", "my-train-job"),
        ("C:\\jobs\\x.yaml", "x"),
        ("---", "job"),
        ("", "job"),
        ("x" * 99 + ".yaml", "x" * 63),
    ],
)
def test_the_default_name_is_the_files(source, name):
    assert default_name(source) == name
    assert read_job("run: a", source=source).specs[0].name == name


def test_several_documents_are_several_jobs():
    found = read_job("run: a\n---\nrun: b\nname: two\n---\n", source="x.yaml")
    assert [(spec.name, spec.run) for spec in found.specs] == [("x-1", "a"), ("two", "b")]


def test_json_reads_like_yaml():
    tree = plain(read_documents(EVERYTHING, source="x")[0])
    tree["env"]["C"] = "010"  # JSON has no number that starts with 0
    tree["labels"] = {"a.b/c": "007"}
    again = msgspec.json.decode(msgspec.json.encode(tree))
    assert read_job_object(again).specs[0] == spec_of(EVERYTHING)


def test_words_of_yaml_1_1_stay_text():
    spec = spec_of("run: a\nenv: {A: on, B: yes, C: 12:30, D: 2026-01-01, E: 1_000, F: 0x1F}")
    assert spec.env == {
        "A": "on", "B": "yes", "C": "12:30", "D": "2026-01-01", "E": "1_000", "F": "0x1F",
    }  # fmt: skip


def test_merge_keys_and_anchors_work():
    text = """
run: a
groups:
  - &base {name: a, tasks: 2, per_task: {devices: "H100:1"}}
  - {<<: *base, name: b, tasks: 3}
"""
    first, second = spec_of(text).groups
    assert (second.name, second.tasks) == ("b", 3)
    assert second.per_task == first.per_task


def test_the_policy_checks_queue_and_levels():
    policy = read_policy("topology: [node, pod]\nqueues: {default: {}, r: {children: {nlp: {}}}}")
    assert spec_of("run: a\nqueue: r/nlp", policy=policy).queue == "r/nlp"
    assert spec_of("run: a\ntopology: {same: pod}", policy=policy).groups[0].topology.same == "pod"
    with pytest.raises(UserError, match="no queue") as raised:
        spec_of("run: a\nqueue: r/nlq", policy=policy)
    assert raised.value.hint == "did you mean 'r/nlp'?"
    with pytest.raises(UserError) as raised:
        spec_of("run: a\ntopology: {same: rack}", policy=policy)
    assert "pod" in raised.value.hint


def test_an_error_names_the_line_of_the_file():
    text = "run: a\n\n\nper_task:\n  devices: H10:8\n"
    with pytest.raises(UserError, match=r"^job\.yaml:5: per_task\.devices: "):
        spec_of(text)


def test_warnings_speak_of_what_will_surprise():
    found = read_job("run: a\ntime: {limit: 1h, expected: 2h}", source="x")
    assert "time.expected" in found.warnings[0]
    assert read_job(CONTRACT, source="x").warnings == ()


def test_an_alias_bomb_is_refused():
    lines = ["run: a", "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(UserError, match="values"):
        spec_of("\n".join(lines))


def test_json_input_is_checked_too():
    tree = []
    for _ in range(100):
        tree = [tree]
    with pytest.raises(UserError, match="deeply nested"):
        from_json(tree)
    with pytest.raises(UserError, match="character"):
        read_job_object({"run": "a\x00b"})
    with pytest.raises(UserError, match="out of bounds"):
        read_job_object({"run": "a", "priority": 10**30})
