import pytest
from job_texts import CONTRACT, EVERYTHING

from tercio.formats.native import read_job
from tercio.formats.support import FEATURES, unsupported

ALL = frozenset(FEATURES)


def spec_of(text):
    return read_job(text, source="job.yaml").specs[0]


@pytest.mark.parametrize(
    ("text", "feature", "field"),
    [
        ("subgroups: [{name: a}]", "subgroups", "subgroups"),
        ("groups: [{name: g, subgroups: [{tasks: 1..2}]}]", "tasks.elastic",
         "groups[0].subgroups[0].tasks"),
        ("speed: {H100: {tasks: [1], units_per_s: [1]}}", "goodput", "speed.H100"),
        ("speed: {H100: 2}", "speed", "speed"),
        ("reservation: r1", "reservation", "reservation"),
        ("repair: task", "repair.task", "repair"),
        ("image: x", "image", "image"),
        ("topology: {slice: {tasks: 2, same: node}}", "topology.slice", "topology.slice"),
        ("groups: [{name: a}, {name: b, topology: {same: rack, leader: a}}]", "topology.leader",
         "groups[1].topology.leader"),
        ("groups: [{name: a}]\ntopology: {spread: rack}", "topology.spread", "topology.spread"),
        ("topology: {same: rack}", "topology.same", "topology.same"),
        ("topology: {prefer: rack}", "topology.prefer", "topology.prefer"),
        ("checkpoint: {every: 10m}", "checkpoint.every", "checkpoint.every"),
        ("framework: ray", "framework.ray", "framework"),
        ("framework: dask", "framework.dask", "framework"),
        ("framework: mpi", "framework.mpi", "framework"),
        ("framework: jax", "framework.jax", "framework"),
        ("framework: tensorflow", "framework.tensorflow", "framework"),
        ("tasks: 1..2", "tasks.elastic", "tasks"),
        ("exclusive: true", "exclusive", "exclusive"),
        ("per_task: {devices: 'H100:1..2'}", "devices.elastic", "per_task.devices"),
        ("per_task: {devices: 'H100/1g.10gb'}", "devices.mig", "per_task.devices"),
        ("per_task: {devices: 'H100:0.5'}", "devices.share", "per_task.devices"),
        ("per_task: {devices: 'H100 | A100'}", "devices.alternatives", "per_task.devices"),
        ("per_task: {shm: 1GiB}", "shm", "per_task.shm"),
        ("array: 0-3", "array", "array"),
        ("depends_on: [job-1]", "depends_on", "depends_on"),
        ("notify: [{on: [failed], url: http://x}]", "notify", "notify"),
        ("outputs: x", "outputs", "outputs"),
        ("setup: x", "setup", "setup"),
        ("time: {deadline: 5}", "deadline", "time.deadline"),
        ("nodes: {match: 'true'}", "nodes.match", "nodes.match"),
    ],
)  # fmt: skip
def test_each_feature_is_refused_by_name_until_it_is_supported(text, feature, field):
    spec = spec_of(f"run: a\n{text}")
    [error] = unsupported(spec, ALL - {feature})
    assert error.code == "unsupported"
    assert error.field == field
    assert "not supported by this site yet" in error.message
    assert error.hint == FEATURES[feature]
    assert unsupported(spec, ALL) == []


def test_a_plain_job_needs_nothing():
    spec = spec_of("run: a\ntasks: 4\nper_task: {devices: 'H100:8', cpus: 4}\nframework: torchrun")
    assert unsupported(spec, frozenset()) == []


def test_big_jobs_name_every_feature_once_for_each_place():
    fields = [error.field for error in unsupported(spec_of(EVERYTHING), frozenset())]
    assert len(fields) > 15
    assert "groups[2].subgroups[0].per_task.devices" in fields
    assert unsupported(spec_of(CONTRACT), ALL) == []
