"""Bad job files: each gets one message that names the field, the value and a fix."""

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from job_texts import CONTRACT, EVERYTHING, plain, refusal

from tercio.errors import UserError
from tercio.formats.document import read_documents
from tercio.formats.native import read_job, read_job_object
from tercio.formats.schema import job_schema

# text of the file, field named, part of the message (the value), part of the fix
BY_HAND = [
    ("name: x", "run", "missing", "python"),
    ("run:", "run", "missing", "python"),
    ("run: ''", "run", "''", "command"),
    ("run: [a, b]", "run", "a list", "command"),
    ("run: 3", "run", "'3'", "command"),
    ("run: {a: b}", "run", "a mapping", "command"),
    ("run: a\nname: Llama", "name", "'Llama'", "a-z"),
    ("run: a\nname: -x", "name", "'-x'", "a-z"),
    ("run: a\nname: " + "x" * 64, "name", "'xxx", "1 to 63"),
    ("run: a\nname: [x]", "name", "a list", "a-z"),
    ("run: a\nqueue: /x", "queue", "'/x'", "research/nlp"),
    ("run: a\nqueue: a//b", "queue", "'a//b'", "research/nlp"),
    ("run: a\nuser: ana", "user", "'ana'", "remove"),
    ("run: a\npriority: 1001", "priority", "'1001'", "-1000 to 1000"),
    ("run: a\npriority: high", "priority", "'high'", "whole number"),
    ("run: a\ntime: {earliest: -5}", "time.earliest", "'-5'", "from 0 to 100000000000"),
    ("run: a\npriority: 1.5", "priority", "'1.5'", "whole number"),
    ("run: a\npriority: true", "priority", "'true'", "whole number"),
    ("run: a\npreemptible: yes", "preemptible", "'yes'", "true or false"),
    ("run: a\npreemptible: 1", "preemptible", "'1'", "true or false"),
    ("run: a\nquue: x", "quue", "unknown key", "'queue'"),
    ("run: a\ndevices: H100:8", "devices", "unknown key", "per_task"),
    ("run: a\ngpus: 8", "gpus", "unknown key", "per_task"),
    ("run: a\nnum_nodes: 2", "num_nodes", "unknown key", "tasks"),
    ("run: a\nresources: {}", "resources", "unknown key", "per_task"),
    ("run: a\ncommand: b", "command", "unknown key", "run"),
    ("run: a\nzzz: 1", "zzz", "unknown key", "known keys"),
    ("run: a\ntasks: 0", "tasks", "'0'", "1 to"),
    ("run: a\ntasks: -4", "tasks", "'-4'", "1 to"),
    ("run: a\ntasks: 8..2", "tasks", "'8..2'", "2..8"),
    ("run: a\ntasks: 0..2", "tasks", "'0..2'", "from 1"),
    ("run: a\ntasks: 1.5", "tasks", "'1.5'", "2..8"),
    ("run: a\ntasks: many", "tasks", "'many'", "2..8"),
    ("run: a\ntasks: 1000000", "tasks", "'1000000'", "100000"),
    ("run: a\nper_task: H100:8", "per_task", "'H100:8'", "devices"),
    ("run: a\nper_task: {gpu: 8}", "per_task.gpu", "unknown key", "devices"),
    ("run: a\nper_task: {devices: H10:8}", "per_task.devices", "H10", "H100"),
    ("run: a\nper_task: {devices: H100:0}", "per_task.devices", "H100:0", "none"),
    ("run: a\nper_task: {devices: [H100]}", "per_task.devices", "a list", "H100:8"),
    ("run: a\nper_task: {devices: true}", "per_task.devices", "'true'", "H100:8"),
    ("run: a\nper_task: {cpus: 0}", "per_task.cpus", "'0'", "0.001"),
    ("run: a\nper_task: {cpus: -1}", "per_task.cpus", "'-1'", "4 or 0.5"),
    ("run: a\nper_task: {cpus: two}", "per_task.cpus", "'two'", "4 or 0.5"),
    ("run: a\nper_task: {memory: 64XB}", "per_task.memory", "'64XB'", "GiB"),
    ("run: a\nper_task: {memory: 0}", "per_task.memory", "'0'", "64GiB"),
    ("run: a\nper_task: {memory: 64}", "per_task.memory", "'64'", "64GiB"),
    ("run: a\nper_task: {memory: 1.5}", "per_task.memory", "'1.5'", "1.5GiB"),
    ("run: a\nper_task: {memory: 9999999TiB}", "per_task.memory", "'9999999TiB'", "64GiB"),
    ("run: a\nper_task: {memory: 1GiB, shm: 2GiB}", "per_task.shm", "'2GiB'", "raise memory"),
    ("run: a\ngroups: []", "groups", "no group", "one group"),
    ("run: a\ngroups: 3", "groups", "'3'", "list"),
    ("run: a\ngroups: [{}, {}]", "groups[0]", "no name", "name:"),
    ("run: a\ngroups: [{name: a}, {name: a}]", "groups[1].name", "'a'", "own name"),
    ("run: a\ngroups: [{name: A}]", "groups[0].name", "'A'", "a-z"),
    ("run: a\ngroups: [{nodes: 2}]", "groups[0].nodes", "unknown key", "tasks"),
    ("run: a\ntasks: 2\ngroups: [{}]", "tasks", "beside groups", "inside a group"),
    (
        "run: a\nsubgroups: [{name: x}]\ntasks: 2",
        "tasks",
        "no tasks of its own",
        "in each subgroup",
    ),
    ("run: a\nmin_subgroups: 1", "min_subgroups", "no subgroups", "remove"),
    (
        "run: a\nsubgroups: [{name: x}]\nmin_subgroups: 2",
        "min_subgroups",
        "'2'",
        "from 1 to 1",
    ),
    ("run: a\ntopology: {same: rak}", "topology.same", "'rak'", "'rack'"),
    ("run: a\ntopology: {same: rack, prefer: block}", "topology.prefer", "'block'", "smaller"),
    ("run: a\ntopology: {same: rack, spread: rack}", "topology.spread", "'rack'", "smaller"),
    ("run: a\ntopology: rack", "topology", "'rack'", "same"),
    ("run: a\ntopology: {slice: {tasks: 2}}", "topology.slice.same", "missing", "island"),
    (
        "run: a\ngroups: [{name: a, tasks: 2}, {name: b, topology: {same: rack, leader: a}}]",
        "groups[1].topology.leader",
        "has more than one task",
        "tasks: 1",
    ),
    (
        "run: a\ngroups: [{name: a}, {name: b, topology: {leader: a}}]",
        "groups[1].topology.leader",
        "of which level",
        "same: rack, leader: a",
    ),
    (
        "run: a\ngroups: [{name: a}, {name: b, topology: {same: rack, leader: a}}, "
        "{name: c, topology: {same: rack, leader: b}}]",
        "groups[2].topology.leader",
        "follows another",
        "follow 'a'",
    ),
    (
        "run: a\nsubgroups: [{name: a}, {name: b, topology: {same: rack, leader: a}}, {name: c}]"
        "\nmin_subgroups: 2",
        "min_subgroups",
        "with a leader",
        "one subgroup of their own",
    ),
    (
        "run: a\nsubgroups: [{name: a}, {name: b, topology: {same: rack, leader: x}}]",
        "subgroups[1].topology.leader",
        "'x' is no group",
        "a, b",
    ),
    (
        "run: a\ngroups: [{name: a, topology: {leader: b}}]",
        "groups[0].topology.leader",
        "'b'",
        "groups here",
    ),
    ("run: a\nnodes: 2", "nodes", "'2'", "tasks"),
    ("run: a\nnodes: {match: \"pool = 'a'\"}", "nodes.match", "'='", "write =="),
    ("run: a\nnodes: {exclude: n7}", "nodes.exclude", "'n7'", "list"),
    ("run: a\nnodes: {exclude: [n7, n7]}", "nodes.exclude[1]", "'n7'", "remove"),
    ("run: a\ntime: 8h", "time", "'8h'", "limit"),
    ("run: a\ntime: {limit: 8 parsecs}", "time.limit", "'8 parsecs'", "8h"),
    ("run: a\ntime: {limit: 0}", "time.limit", "'0'", "1s"),
    ("run: a\ntime: {limit: -8h}", "time.limit", "'-8h'", "8h"),
    ("run: a\ntime: {flexible: true}", "time.flexible", "'true'", "8h"),
    ("run: a\ntime: {deadline: tomorrow}", "time.deadline", "'tomorrow'", "Z"),
    ("run: a\ntime: {deadline: 2026-01-01}", "time.deadline", "'2026-01-01'", "zone"),
    (
        "run: a\ntime: {earliest: 2027-01-02T00:00:00Z, deadline: 2027-01-01T00:00:00Z}",
        "time.deadline",
        "2027-01-01",
        "after earliest",
    ),
    ("run: a\nframework: pytorch", "framework", "'pytorch'", "torch"),
    ("run: a\nenv: [A=1]", "env", "a list", "WANDB_MODE"),
    ("run: a\nenv: {1A: x}", "env.1A", "'1A'", "letters"),
    ("run: a\nenv: {A: null}", "env.A", "no value", "secrets"),
    ("run: a\nenv: {A: [1]}", "env.A", "a list", "one value"),
    ("run: a\nenv: {TERCIO_JOB: x}", "env.TERCIO_JOB", "'TERCIO_JOB'", "another name"),
    ("run: a\nsecrets: {A: b}", "secrets", "values", "list of names"),
    ("run: a\nsecrets: [A, A]", "secrets[1]", "'A'", "remove"),
    ("run: a\nenv: {A: b}\nsecrets: [A]", "secrets[0]", "'A'", "remove"),
    ("run: a\nsecrets: [a-b]", "secrets[0]", "'a-b'", "letters"),
    ('run: a\nworkdir: "a\\nb"', "workdir", "a\nb", "one line"),
    ("run: a\nimage: my image", "image", "'my image'", "pytorch"),
    ("run: a\nmounts: [/data]", "mounts", "no container", "name an image"),
    ("run: a\nimage: x\nmounts: [data]", "mounts[0]", "'data'", "/scratch/x:/x"),
    ("run: a\nimage: x\nmounts: [/a:/b, /c:/b]", "mounts[1]", "'/b'", "each place once"),
    ("run: a\ntasks: 1..2\nchecks: {allreduce: 5s}", "checks", "joins later", "one number"),
    ("run: a\nrepair: task\nchecks: {allreduce: true}", "checks", "joins later", "repair: gang"),
    ("run: a\ncheckpoint: {signal: KILL}", "checkpoint.signal", "'KILL'", "SIGUSR1"),
    ("run: a\ncheckpoint: {signal: SIGUSR3}", "checkpoint.signal", "'SIGUSR3'", "SIGUSR1"),
    ("run: a\ncheckpoint: {grace: 2d}", "checkpoint.grace", "'2d'", "1d"),
    ("run: a\ncheckpoint: {every: often}", "checkpoint.every", "'often'", "30m"),
    ("run: a\nretry: true", "retry", "'true'", "on: ["),
    ("run: a\nretry: 3", "retry", "'3'", "max: 5"),
    ("run: a\nretry: {on: [cancelled]}", "retry.on[0]", "'cancelled'", "remove"),
    ("run: a\nretry: {on: failed}", "retry.on", "'failed'", "list"),
    ("run: a\nretry: {max: -1}", "retry.max", "'-1'", "0 to 1000"),
    ("run: a\nrepair: node", "repair", "'node'", "gang, task"),
    ("run: a\ndepends_on: job-00001", "depends_on", "'job-00001'", "list"),
    ("run: a\ndepends_on: [7]", "depends_on[0]", "'7'", "job-00001"),
    ("run: a\ndepends_on: [{when: ok}]", "depends_on[0].job", "missing", "job-00001"),
    ("run: a\ndepends_on: [{job: job-1, when: good}]", "depends_on[0].when", "'good'", "ok"),
    ("run: a\ndepends_on: [job-1, job-1]", "depends_on[1]", "'job-1'", "once"),
    ("run: a\narray: 5", "array", "'5'", '"0-4"'),
    ("run: a\narray: 9-0", "array", "9-0", "0-9"),
    ("run: a\narray: 0-9%0", "array", "'0'", "%8"),
    ("run: a\narray: 0-9:0", "array", "step 0", "1 or more"),
    ("run: a\narray: 0-9,5", "array", "index 5", "overlap"),
    ("run: a\narray: 0-9999999", "array", "10000000 elements", "1000000"),
    ("run: a\narray: [1, 2]", "array", "a list", "0-99"),
    ("run: a\nsites: local", "sites", "'local'", "[local, hpc]"),
    ("run: a\nsites: [a b]", "sites[0]", "'a b'", "[local, hpc]"),
    ("run: a\nspeed: {H10: 1}", "speed.H10", "'H10'", "H100"),
    ("run: a\nspeed: {H100: fast}", "speed.H100", "'fast'", "number"),
    ("run: a\nspeed: {H100: 0}", "speed.H100", "'0'", "number"),
    ("run: a\nspeed: {H100: 1, h100: 2}", "speed.h100", "'H100'", "once"),
    (
        "run: a\nspeed: {H100: {tasks: [2, 1], units_per_s: [1, 2]}}",
        "speed.H100",
        "ascending",
        "ascending",
    ),
    (
        "run: a\nspeed: {H100: {tasks: [1], units_per_s: []}}",
        "speed.H100",
        "1 sizes and 0 rates",
        "one rate",
    ),
    ("run: a\nnotify: [{on: [failed]}]", "notify[0].url", "missing", "https://"),
    ("run: a\nnotify: [{on: [], url: http://x}]", "notify[0].on", "empty", "failed"),
    ("run: a\nnotify: [{on: [fail], url: http://x}]", "notify[0].on[0]", "'fail'", "'failed'"),
    ("run: a\nnotify: [{on: [failed], url: ftp://x}]", "notify[0].url", "'ftp://x'", "https://"),
    *(
        (
            f"run: a\nnotify: [{{on: [failed], url: '{url}'}}]",
            "notify[0].url",
            "'http://",
            "https://",
        )
        for url in ("http://[::1", "http://x:99999/", "http://x:no/", "http://:80/")
    ),
    ('run: a\nlabels: {"a\\n": b}', "labels.a\n", "not a label", "letters"),
    ("run: a\nlabels: [x]", "labels", "a list", "project"),
    ("run: a\nlabels: {a b: c}", "labels.a b", "'a b'", "letters"),
    ("run: a\nlabels: {a: {b: c}}", "labels.a", "a mapping", "one value"),
    ("run: a\nwait_for_capacity: always", "wait_for_capacity", "'always'", "true or false"),
]

# texts that are no job at all: the message names the line and the fix
NO_JOBS = [
    ("", "empty", "run: COMMAND"),
    ("# only a comment\n", "empty", "run: COMMAND"),
    ("just text", "'just text'", "run:"),
    ("[1, 2]", "a list", "run:"),
    ("42", "'42'", "run:"),
    ("run: a\nrun: b", "'run' stands twice", "line 1"),
    ("run: a\n\tname: b", "tab", "spaces"),
    ("run: 'a", "not valid YAML", "quote"),
    ("run: a\n- b", "not valid YAML", "indentation"),
    ("run: !!python/object/apply:os.system [ls]", "python", "plain values"),
    ("run: &a *a", "not valid YAML", "column"),
    ("run: *nowhere", "nowhere", "define"),
    ("{run: a, ? [x] : y}", "key is not text", "plain text"),
    ("run: a\nenv: {<<: 3}", "<<", "mapping"),
    ("- " * 500, "deeply nested", "32"),
    ("{a: " * 500, "deeply nested", "32"),
    ('run: "a\\0b"', "character", "remove"),
    ("run: a\x07", "not valid YAML", "control characters"),
    ("run: a\n" + "# x\n" * 300_000, "characters", "at most"),
    ("run: a\n---\n" * 1001, "1001 jobs", "1000"),
]


@pytest.mark.parametrize(("text", "field", "value", "fix"), BY_HAND)
def test_a_bad_field_is_named_with_value_and_fix(text, field, value, fix):
    with pytest.raises(UserError) as raised:
        read_job(text, source="bad.yaml")
    error = raised.value
    assert error.field == field
    assert error.message.startswith("bad.yaml:")
    assert f": {field}: " in error.message
    assert value in error.message
    assert fix in (error.hint or "")


@pytest.mark.parametrize(("text", "problem", "fix"), NO_JOBS)
def test_a_text_that_is_no_job_is_explained(text, problem, fix):
    with pytest.raises(UserError) as raised:
        read_job(text, source="bad.yaml")
    assert raised.value.message.startswith("bad.yaml")
    assert problem in raised.value.message
    assert fix in (raised.value.hint or "")


def test_there_are_enough_of_them():
    assert len(BY_HAND) + len(NO_JOBS) >= 120


# 200 more, made from the schema: one place of a good file gets a value the schema refuses.

SCHEMA = job_schema()
BAD_VALUES = st.sampled_from(
    [None, True, False, 0, -1, 1.5, -0.5, 10**9, 10**30, 1e300, "", " ", "x", "\u00e9", "a b", "-",
     "..", "3..1", "H10:1", "12:3", "8 parsecs", "job", "a\nb", "x" * 300, "/", "%", "[]", [],
     [None],
     ["x", "x"], [1], [[]], [{}], {}, {"x": 1}, {"": ""}, {"a b": {"c": []}}, {"job": 1},
     {"on": "x", "url": 1}, {"tasks": "x", "same": []}]
)  # fmt: skip


def places(tree, path=()):
    """Yield the path of every value below the top."""
    rows = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, inner in rows:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


GOOD = [
    plain(read_documents(text, source="good")[0])
    for text in (CONTRACT, EVERYTHING, "run: a\ntasks: 2\nper_task: {devices: 'H100:1', cpus: 4}")
]
PLACES = [(index, path) for index, tree in enumerate(GOOD) for path in places(tree)]


def changed(tree, path, value):
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = changed(tree[path[0]], path[1:], value)
    return copy


def dotted(path):
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


@settings(max_examples=200, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.sampled_from(PLACES), BAD_VALUES)
def test_200_files_that_the_schema_refuses_are_refused_with_field_value_and_fix(place, value):
    index, path = place
    tree = changed(GOOD[index], path, value)
    refusals = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(tree))
    assume(refusals)
    with pytest.raises(UserError) as raised:
        read_job_object(tree, source="bad.json")
    error = raised.value
    assert error.field is not None
    assert error.field in error.message
    assert error.hint
    # The field named is the changed one, one inside it, or one that the change left wrong.
    ours = dotted(path)
    assert error.field.startswith(ours) or ours.startswith(error.field.split(".")[0])


@given(st.sampled_from(PLACES), BAD_VALUES)
def test_any_change_gives_a_job_or_a_user_error(place, value):
    index, path = place
    error = refusal(read_job_object, changed(GOOD[index], path, value))
    assert error is None or error.hint


LINES = st.sampled_from(
    [*CONTRACT.splitlines(), *EVERYTHING.splitlines(), "- x", "  y: [", "}", "? a", "*x", "&x",
     "---", "...", "'", '"', "\t", "%YAML 9", "!!str x", "a: b: c", "<<: 3", "\x85", "\ufeff"]
)  # fmt: skip


@given(st.lists(LINES, max_size=15).map("\n".join))
def test_shuffled_lines_give_a_job_or_a_user_error(text):
    error = refusal(read_job, text, source="x")
    assert error is None or error.hint


@given(st.text(max_size=80))
def test_noise_gives_a_job_or_a_user_error(text):
    error = refusal(read_job, text, source="x")
    assert error is None or error.hint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SCHEMA["properties"], "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_gives_a_job_or_a_user_error(tree):
    error = refusal(read_job_object, tree)
    assert error is None or error.hint
