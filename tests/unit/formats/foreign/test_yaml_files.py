"""SkyPilot, dstack and Kubernetes files: what is kept, what is told, how a file is recognised."""

from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.formats.files import read_any
from tercio.formats.foreign.detect import detect, read_foreign
from tercio.formats.foreign.draft import Fate
from tercio.formats.native import read_job, read_job_object

K8S = """
apiVersion: batch/v1
kind: Job
metadata: {name: pi}
spec:
  completions: 4
  parallelism: 2
  backoffLimit: 3
  activeDeadlineSeconds: 60
  suspend: true
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.product: H100, disk: ssd}
      containers:
      - name: c
        image: perl:5
        command: [sh, -c, "echo $HOME"]
        env: [{name: A, value: "1"}, {name: T, valueFrom: {secretKeyRef: {name: s, key: k}}}]
        resources: {limits: {nvidia.com/gpu: 2, memory: 16Gi}, requests: {cpu: 500m}}
"""


def read(text, kind):
    found = read_foreign(text, source="f.yaml", kind=kind)
    specs = [spec for job in found.jobs for spec in read_job_object(job).specs]
    return specs, {loss.field: loss for loss in found.losses}


def devices(spec):
    return [(r.type, r.card_bytes and r.card_bytes // 10**9, r.count, r.share_milli)
            for r in spec.groups[0].per_task.devices]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "source", "kind"),
    [
        ("#!/bin/bash\nls", "a", "sbatch"),
        ("ls\n", "a.sbatch", "sbatch"),
        ("run: x\nresources: {accelerators: L4}", "a.yaml", "sky"),
        ("run: x\nnum_nodes: 2", "a.yaml", "sky"),
        ("type: task\ncommands: [x]", ".dstack.yml", "dstack"),
        (K8S, "a.yaml", "kubernetes"),
        ("run: x", "a.yaml", "native"),
        ("run: x\nper_task: {devices: 1}\nresources: {}", "a.yaml", "native"),
        ("run: [", "a.yaml", "native"),
    ],
)
def test_a_file_is_recognised(text, source, kind):
    assert detect(text, source) == kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("H100:8", [("H100", None, 8, 0)]),
        ("H100", [("H100", None, 1, 0)]),
        ("A100-80GB:4", [("A100", 80, 4, 0)]),
        ("{H100: 8, A100: 4}", [("H100", None, 8, 0), ("A100", None, 4, 0)]),
        ("{L4:1, T4:2}", [("L4", None, 1, 0), ("T4", None, 2, 0)]),
        ("[V100:2, T4]", [("V100", None, 2, 0), ("T4", None, 1, 0)]),
        ("T4:0.5", [("T4", None, 0, 500)]),
        ("H100:2.0", [("H100", None, 2, 0)]),
    ],
)
def test_sky_accelerators(text, expected):
    ((spec,), _) = read(f"run: x\nresources: {{accelerators: {text}}}", "sky")
    assert devices(spec) == expected


def test_a_sky_task():
    ((spec,), told) = read(
        "name: My_Job\nnum_nodes: 2\nworkdir: .\nsetup: pip\nrun: go\n"
        "envs: {A: 1, B: null}\nsecrets: {T: x}\nfile_mounts: {/d: s3://b}\n"
        "resources: {cpus: 8+, memory: 64, use_spot: true, disk_size: 9, priority: 7,\n"
        "  image_id: 'docker:a/b:c', job_recovery: {max_restarts_on_errors: 2}, any_of: "
        "[{accelerators: H100:8}, {accelerators: A100:8, infra: aws}]}\n", "sky",
    )  # fmt: skip
    group = spec.groups[0]
    assert (spec.name, group.tasks, spec.image, spec.priority) == ("my-job", 2, "a/b:c", 7)
    assert (group.per_task.cpus_milli, group.per_task.memory_bytes) == (8000, 64 * 1024**3)
    assert (spec.env, spec.secrets, spec.setup) == ({"A": "1"}, ("T",), "pip")
    assert "failed" in spec.retry.on
    assert devices(spec) == [("H100", None, 8, 0), ("A100", None, 8, 0)]
    assert set(told) == {
        "name", "envs.B", "secrets", "file_mounts./d", "resources.memory", "resources.use_spot",
        "resources.job_recovery.max_restarts_on_errors",
        "resources.disk_size", "resources.any_of", "resources.any_of.1.infra",
    }  # fmt: skip


def test_sky_groups_of_tasks():
    (specs, told) = read("name: g\nexecution: parallel\n---\nrun: a\n---\nname: b\nrun: b", "sky")
    assert [spec.name for spec in specs] == ["g-1", "b"]
    (_, told) = read("name: p\n---\nrun: a\n---\nrun: b", "sky")
    assert told["pipeline"].fate is Fate.REFUSED
    (_, told) = read("run: x\nservice: {replicas: 2}", "sky")
    assert told["service"].fate is Fate.REFUSED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24GB", [(None, 24, 1, 0)]),
        ("24GB..", [(None, 24, 1, 0)]),
        ("1", [(None, None, 1, 0)]),
        ("H100:8", [("H100", None, 8, 0)]),
        ("8:H100", [("H100", None, 8, 0)]),
        ("A100,H100:80GB:2..4", [("A100", 80, 2, 0), ("H100", 80, 2, 0)]),
        ("nvidia:2", [(None, None, 2, 0)]),
        ("{name: MI300X, count: {min: 2, max: 4}, memory: 192GB..}", [("MI300X", 192, 2, 0)]),
        ("0", [(None, None, 0, 0)]),
    ],
)
def test_dstack_gpus(text, expected):
    gpu = text if text.startswith("{") else f"'{text}'"
    ((spec,), _) = read(f"type: task\ncommands: [x]\nresources: {{gpu: {gpu}}}", "dstack")
    assert devices(spec) == expected


def test_a_dstack_task():
    ((spec,), told) = read(
        "type: task\nname: t\nnodes: 2\npython: '3.12'\nenv: [A=1, T]\ncommands: [one, two]\n"
        "resources: {memory: 64GB.., cpu: 8, shm_size: 1GB}\nmax_duration: 2h\nworking_dir: sub\n"
        "retry: {on_events: [interruption, error]}\nport: 1\n", "dstack",
    )  # fmt: skip
    assert spec.run == "cd 'sub'\nset -e\none\ntwo"
    assert (spec.env, spec.secrets, spec.time.limit_s) == ({"A": "1"}, ("T",), 7200)
    assert spec.groups[0].per_task.memory_bytes == 64 * 1024**3
    assert {cause.value for cause in spec.retry.on} == {"preempted", "node_failed", "failed"}
    assert set(told) == {
        "python", "env.T", "resources.cpu", "resources.shm_size", "retry.on_events", "port",
    }  # fmt: skip
    ((plain,), _) = read("type: task\ncommands: [x]", "dstack")
    assert plain.retry.on == ()
    (_, told) = read("type: service\ncommands: [x]", "dstack")
    assert told["type"].fate is Fate.REFUSED


def test_a_dstack_task_without_retry_warns_of_nothing():
    file = read_any("type: task\ncommands: [x]", source="a.dstack.yml")
    assert (file.specs[0].retry.on, file.warnings) == ((), ())


def manifest(container):
    return (
        "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: "
        f"[{{name: c, {container}}}]}}}}}}\n"
    )


@pytest.mark.parametrize(
    ("container", "run"),
    [
        ('command: [sh, -c, "echo $(date) $(A)"], env: [{name: A, value: x}]', "echo $(date) ${A}"),
        (
            'command: [echo], args: ["a b", "$(A)/$(B)"], env: [{name: A, value: x}]',
            "echo 'a b' \"${A}\"'/$(B)'",
        ),
        ('command: [python, -c, "print(1)"]', "python -c 'print(1)'"),
        ('command: [sh, -c, "echo $0", zero]', "sh -c 'echo $0' zero"),
        ('command: [bash, -ec, "a"]', "set -e\na"),
        ('args: ["$$(A)"], command: [echo], env: [{name: A, value: x}]', "echo '$(A)'"),
        (
            'command: [echo, "$$5 $(A)$(B)"], env: [{name: A, value: x}]',
            """echo '$5 '"${A}"'$(B)'""",
        ),
        ('command: [sh, -c, "kill $$$$ $$(A)"]', "kill $$ $(A)"),
    ],
)
def test_the_words_of_a_container(container, run):
    ((spec,), _) = read(manifest(container), "kubernetes")
    assert spec.run == run


def test_an_images_own_entry_point_and_other_versions_are_refused():
    (_, told) = read(manifest("image: x, args: [date]"), "kubernetes")
    assert told["spec.template.spec.containers.0"].fate is Fate.REFUSED
    (_, told) = read(manifest("command: [a]").replace("batch/v1", "batch/v2"), "kubernetes")
    assert told["apiVersion"].fate is Fate.REFUSED


def test_a_kubernetes_job():
    ((spec,), told) = read(K8S, "kubernetes")
    assert devices(spec) == [("H100", None, 2, 0)]
    per_task = spec.groups[0].per_task
    assert (per_task.cpus_milli, per_task.memory_bytes) == (500, 16 * 1024**3)
    assert spec.array is not None
    assert (spec.array.size, spec.array.concurrency, spec.time.limit_s) == (4, 2, 60)
    assert spec.run == "export JOB_COMPLETION_INDEX=$TERCIO_ARRAY_INDEX\necho $HOME"
    assert (spec.env, spec.secrets, spec.image) == ({"A": "1"}, ("T",), "perl:5")
    assert spec.nodes is not None
    assert spec.nodes.match == "labels['disk'] == 'ssd'"
    assert read_foreign(K8S, source="f", kind="kubernetes").is_held
    (_, told) = read("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {}", "kubernetes")
    assert told["kind"].fate is Fate.REFUSED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: x\nresources: {accelerators: ['H100:x']}", "f.yaml:2: resources.accelerators"),
        ("run: x\nresources: {cpus: many}", "f.yaml:2: resources.cpus: 'many'"),
        ("run: x\nnum_nodes: 0", "f.yaml:2: num_nodes: '0' is out of bounds"),
        ("run: x\nresources: {accelerators: ':8'}", "f.yaml:2: resources.accelerators"),
        ("type: task\ncommands: [x]\nresources: {gpu: '?'}", "f.yaml:3: resources.gpu"),
        ("type: task\nmax_duration: soon", "f.yaml:2: max_duration: 'soon'"),
        ("type: task\nretry: {on_events: [rain]}", "f.yaml:2: retry.on_events.0"),
        ("apiVersion: batch/v1\nkind: Job\nspec: {parallelism: -1}", "f.yaml:3: spec.parallelism"),
    ],
)
def test_a_fault_names_line_field_and_fix(text, words):
    with pytest.raises(UserError) as caught:
        read_any(text, source="f.yaml")
    assert caught.value.message.startswith(words)
    assert caught.value.hint


def test_native_files_are_read_as_before():
    text = "name: a\nrun: x\n---\nname: b\nrun: y"
    assert read_any(text, source="f.yaml") == read_job(text, source="f.yaml")


@pytest.mark.parametrize(
    ("spec", "run"),
    [
        ("completions: 2, completionMode: Indexed",
         'export JOB_COMPLETION_INDEX=$TERCIO_ARRAY_INDEX\necho "${JOB_COMPLETION_INDEX}"'),
        ("completionMode: Indexed",
         'export JOB_COMPLETION_INDEX=0\necho "${JOB_COMPLETION_INDEX}"'),
        ("completions: 1", "echo '$(JOB_COMPLETION_INDEX)'"),
    ],
)  # fmt: skip
def test_the_index_of_a_pod_is_filled_in_as_the_cluster_does(spec, run):
    """Only the pods of an indexed Job have the variable."""
    ((job,), _) = read(
        f"apiVersion: batch/v1\nkind: Job\nspec: {{{spec}, template: {{spec: {{containers: "
        "[{command: [echo, $(JOB_COMPLETION_INDEX)]}]}}}", "kubernetes",
    )  # fmt: skip
    assert job.run.strip() == run


def volumes(text, mounts):
    return read(
        "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [{command: [a], "
        f"image: i, volumeMounts: {mounts}}}], volumes: {text}}}}}}}", "kubernetes",
    )  # fmt: skip


def test_what_a_volume_is_beyond_its_path_is_told():
    at_shm = "[{name: v, mountPath: /dev/shm}]"
    ((job,), told) = volumes("[{name: v, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]", at_shm)
    assert job.groups[0].per_task.shm_bytes == 1024**3
    ((job,), told) = volumes("[{name: v, emptyDir: {sizeLimit: 1Gi}}]", at_shm)
    assert job.groups[0].per_task.shm_bytes is None
    assert "spec.template.spec.containers.0.volumeMounts.0" in told
    ((job,), told) = volumes("[{name: v, hostPath: {path: /a, type: DirectoryOrCreate}}]", at_shm)
    assert "spec.template.spec.volumes.0.hostPath.type" in told


@pytest.mark.parametrize(
    ("text", "framework", "told"),
    [
        ("stop_criteria: master-done\ncommands: [mpirun --hostfile $DSTACK_MPI_HOSTFILE a]", "mpi",
         "stop_criteria"),
        ("stop_criteria: master-done\ncommands: [a || sleep infinity]", "mpi", "stop_criteria"),
        ("commands: [mpirun --hostfile $DSTACK_MPI_HOSTFILE a]", "mpi", "commands"),
        ("stop_criteria: master-done\ncommands: [a]", "plain", "stop_criteria"),
        ("commands: [sleep infinity]", "plain", ""),
    ],
)  # fmt: skip
def test_nodes_that_only_wait_for_the_first_end_with_it(text, framework, told):
    ((job,), losses) = read(f"type: task\nnodes: 2\n{text}\n", "dstack")
    assert job.framework.value == framework
    assert [told] == [*losses] or not told


def test_a_secret_of_sky_that_is_no_text_is_a_fault():
    with pytest.raises(UserError, match="is not a single value"):
        read("run: a\nsecrets: {A: {b: true}}", "sky")


@pytest.mark.parametrize(
    ("text", "kind", "field"),
    [
        ("type: task\ncommand: [a]\ncommands: [b]", "dstack", "command"),
        ("type: task\nimage: x", "dstack", "commands"),
        ("type: task\ncommands: [a]\nresources: {gpu: tpu:v5litepod-8}", "dstack", "resources.gpu"),
        ("resources: {accelerator: A100}\nrun: a", "sky", "resources.accelerator"),
        ("num_nodes: 2\nsecret: [A]\nrun: a", "sky", "secret"),
    ],
)
def test_a_slip_of_the_hand_does_not_run_something_else(text, kind, field):
    (_, told) = read(text, kind)
    assert [name for name, loss in told.items() if loss.fate is Fate.REFUSED] == [field]


@pytest.mark.parametrize(
    ("limits", "selector", "device", "fates"),
    [
        ("nvidia.com/mig-1g.10gb: 2", "{}", "nvidia/1g.10gb", {}),
        ("nvidia.com/mig-1g.10gb.me: 1", "{}", "nvidia/1g.10gb+me", {}),
        (
            "nvidia.com/mig-3g.20gb: 1",
            "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB}",
            "A100/3g.20gb",
            {},
        ),
        ("nvidia.com/gpu.shared: 1", "{}", "any", {"nvidia.com/gpu.shared": Fate.CHANGED}),
        ("habana.ai/gaudi: 8", "{}", "any", {"habana.ai/gaudi": Fate.REFUSED}),
        ("rdma/ib: 1", "{}", "any", {"rdma/ib": Fate.DROPPED}),
    ],
)
def test_the_devices_of_a_cluster(limits, selector, device, fates):
    ((job,), told) = read(
        "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {nodeSelector: "
        f"{selector}, containers: [{{command: [a], resources: {{limits: {{{limits}}}}}}}]}}}}}}",
        "kubernetes",
    )  # fmt: skip
    (request,) = job.groups[0].per_task.devices
    name = request.type or request.vendor or "any"
    assert (f"{name}/{request.mig_profile}" if request.mig_profile else name) == device
    found = {field.partition("limits.")[2]: loss.fate for field, loss in told.items()}
    assert {name: fate for name, fate in found.items() if name} == fates


def test_what_stands_beside_a_job_in_its_manifest_is_told_and_does_not_keep_it_from_running():
    manifest = (
        "kind: {}\napiVersion: v1\n---\nkind: Job\napiVersion: batch/v1\n"
        "spec: {{template: {{spec: {{containers: [{{command: [a]}}]}}}}}}"
    )
    ((_,), told) = read(manifest.format("ConfigMap"), "kubernetes")
    assert told["kind"].fate is Fate.DROPPED
    assert read(manifest.format("Deployment"), "kubernetes")[1]["kind"].fate is Fate.REFUSED


def test_a_count_that_is_none_is_a_fault():
    for count in ("a", "1..x", ""):
        with pytest.raises(UserError, match="count"):
            read(f"type: task\ncommands: [a]\nresources: {{gpu: {{count: '{count}'}}}}", "dstack")
