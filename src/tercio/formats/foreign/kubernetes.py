"""Kubernetes Jobs (batch/v1) to native jobs.

A Job of several completions is an array: its pods do not start together. Gangs of other kinds
(JobSet, PyTorchJob, RayJob, MPIJob) are refused by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from tercio.formats.cards import find_card
from tercio.formats.document import Json, read_documents
from tercio.formats.foreign.draft import Converted, JobObject, Report, tidy
from tercio.formats.foreign.fields import VARIABLE, Field
from tercio.formats.foreign.images import read_mounts
from tercio.formats.foreign.sbatch_script import SHELLS
from tercio.formats.native import default_name

_CLUSTER: Final = "it is the cluster's"
_FLAGS: Final = ("-c", "-lc", "-ec")
_REFERENCE: Final = re.compile(r"\$(?:(\$)|\((%s)\))" % VARIABLE)  # noqa: UP031
_INDEX: Final = "JOB_COMPLETION_INDEX"
_VERSIONS: Final = ("batch/v1", "batch/v1beta1")


def _read_elsewhere(_: Field) -> None:
    """What is read elsewhere, or only names."""


UNKEPT_SPEC: Final = {
    "ttlSecondsAfterFinished": "ended jobs are kept by the server's retention",
    "podFailurePolicy": "write retry: {on: [...]}",
    "successPolicy": "a gang succeeds when all its tasks do",
    "backoffLimitPerIndex": "write retry: {max: N}",
    "selector": _CLUSTER, "manualSelector": _CLUSTER, "podReplacementPolicy": _CLUSTER,
    "managedBy": _CLUSTER, "maxFailedIndexes": "elements fail one by one",
}  # fmt: skip
UNKEPT_POD: Final = {
    "tolerations": _CLUSTER, "schedulerName": _CLUSTER,
    "serviceAccountName": _CLUSTER, "imagePullSecrets": "images are pulled as the site does",
    "affinity": "write topology, or nodes: {match: ...}", "priorityClassName": "write priority",
    "hostNetwork": _CLUSTER, "hostIPC": _CLUSTER, "dnsPolicy": _CLUSTER, "subdomain": _CLUSTER,
    "securityContext": "jobs run as their user", "runtimeClassName": _CLUSTER,
    "topologySpreadConstraints": "write topology: {spread: ...}",
}  # fmt: skip
UNKEPT_CONTAINER: Final = {
    "ports": "ports are not published", "imagePullPolicy": "images are pulled as the site does",
    "securityContext": "jobs run as their user", "envFrom": "write env",
    "livenessProbe": "the job's own limit stops it", "readinessProbe": "tasks are not probed",
    "startupProbe": "tasks are not probed", "lifecycle": "write setup, or checkpoint.signal",
    "terminationMessagePath": "tercio logs has the output", "tty": "use tercio exec",
    "terminationMessagePolicy": "tercio logs has the output", "stdin": "use tercio exec",
}  # fmt: skip
_DEVICES: Final = {"nvidia.com/gpu": "", "amd.com/gpu": "amd", "intel.com/gpu": "intel"}
_SHARED: Final = "nvidia.com/gpu.shared"
_OTHER_DEVICE: Final = re.compile(r"/.*(gpu|gaudi|tpu|npu|neuron|i915|xe|dcu|mlu|fpga)")
_BESIDE: Final = ("ConfigMap", "Secret", "PersistentVolumeClaim", "PersistentVolume", "Service",
                  "Namespace", "ServiceAccount", "Role", "RoleBinding")  # fmt: skip
"""Kinds that stand beside a Job in its manifest and start nothing themselves."""


def read_kubernetes(text: str, *, source: str) -> Converted:
    """Read the Jobs of a manifest.

    Raises:
        UserError: it is no YAML, or a value has the wrong form; with line and field.
    """
    report = Report()
    jobs: list[JobObject] = []
    is_held = False
    for document in read_documents(text, source=source):
        top = Field(source, "", document, report)
        keyed = top.keyed()
        kind = keyed["kind"].text if "kind" in keyed else ""
        if kind != "Job":
            where = keyed.get("kind", top)
            why = f"only Jobs of batch/v1 are read, not {kind or 'this'}"
            (where.dropped if kind in _BESIDE else where.refused)(why)
            continue
        version = keyed.get("apiVersion", top)
        if version is top or version.text not in _VERSIONS:
            version.refused("only Jobs of batch/v1 are read: write apiVersion: batch/v1")
        manifest = _Manifest(top, default_name(source))
        jobs.append(manifest.read())
        is_held = is_held or manifest.is_held
    return Converted(
        kind="kubernetes", jobs=tuple(jobs), losses=tuple(report.losses), is_held=is_held
    )


class _Manifest:
    """One Job."""

    def __init__(self, top: Field, name: str) -> None:
        self.top = top
        self.job: JobObject = {"name": name}
        self.is_held = self.is_indexed = False
        self.per_task: dict[str, Json] = {}
        self.volumes: Field | None = None
        self.parallelism: int | None = None
        self.completions: int | None = None

    def read(self) -> JobObject:
        self.top.walk(
            {
                "apiVersion": _read_elsewhere, "kind": lambda _: None, "metadata": self.metadata,
                "spec": self.spec,
            },
            {"status": "it is what the cluster reports"},
        )  # fmt: skip
        self.job["per_task"] = self.per_task
        size = self.completions if self.completions is not None else self.parallelism or 1
        if size > 1:
            at_once = self.parallelism or 1
            limit = f"%{at_once}" if at_once < size else ""
            self.job["array"] = f"0-{size - 1}{limit}"
        if size > 1 or self.is_indexed:
            index = "$TERCIO_ARRAY_INDEX" if size > 1 else "0"
            self.job["run"] = f"export {_INDEX}={index}\n{self.job.get('run', 'true')}"
        self.job.setdefault("run", "true")
        return tidy(self.job)

    def metadata(self, field: Field) -> None:
        for key, inner in field.keyed().items():
            if key == "name":
                self.job["name"] = default_name(inner.text)
            elif key == "labels":
                self.job["labels"] = {k: v.text for k, v in inner.keyed().items()}
            elif key == "generateName":
                self.job["name"] = default_name(inner.text)
                inner.changed("names need not be unique")
            elif inner.node.value is not None:
                inner.dropped("it is the cluster's")

    def spec(self, field: Field) -> None:
        mode = field.keyed().get("completionMode")
        self.is_indexed = mode is not None and mode.value == "Indexed"
        field.walk(
            {
                "parallelism": self._parallelism, "completions": self._completions,
                "completionMode": self._mode, "backoffLimit": self._backoff,
                "activeDeadlineSeconds": self._limit, "suspend": self._suspend,
                "template": self._template,
            },
            UNKEPT_SPEC,
        )  # fmt: skip

    def _parallelism(self, field: Field) -> None:
        self.parallelism = field.number(0, 100_000)
        if self.parallelism == 0:
            self.is_held = True
            field.changed("it is held until you release it")
        elif self.parallelism > 1:
            field.changed("an array: its elements do not start together, as pods do not")
            if "completions" not in self.top.keyed()["spec"].keyed():
                field.changed("a work queue: every element must succeed")

    def _completions(self, field: Field) -> None:
        self.completions = field.number(1, 100_000)

    def _backoff(self, field: Field) -> None:
        count = field.number(0, 1000)
        causes: list[Json] = ["node_failed", "preempted", *(["failed"] if count else [])]
        self.job["retry"] = {"on": causes, "max": count}

    def _limit(self, field: Field) -> None:
        self.job["time"] = {"limit": f"{field.number(1, 999_999_999)}s"}

    def _suspend(self, field: Field) -> None:
        self.is_held = field.boolean()

    def _template(self, field: Field) -> None:
        for key, inner in field.keyed().items():
            if key == "spec":
                self.volumes = inner.keyed().get("volumes")
                inner.walk(
                    {
                        "containers": self._containers, "nodeSelector": self._selector,
                        "restartPolicy": self._restart, "initContainers": self._init,
                        "terminationGracePeriodSeconds": self._grace, "nodeName": self._node,
                        "volumes": self._volumes,
                    },
                    UNKEPT_POD,
                )  # fmt: skip
            elif inner.node.value is not None:
                inner.dropped(_CLUSTER)

    def _mode(self, field: Field) -> None:
        _ = field.text  # a mapping is a fault
        field.changed(f"every element has its index, in {_INDEX}")

    def _restart(self, field: Field) -> None:
        _ = field.text  # a mapping is a fault
        field.changed("a failed attempt starts anew as often as backoffLimit says")

    def _init(self, field: Field) -> None:
        field.dropped("write their commands into setup")

    def _node(self, field: Field) -> None:
        self._match(f"name == '{_quoted(field)}'")

    def _selector(self, field: Field) -> None:
        for key, inner in field.keyed().items():
            value = _quoted(inner)
            if key == "nvidia.com/gpu.product":
                self.per_task["type"] = value
                continue
            self._match(f"labels['{key}'] == '{value}'")
        field.changed("a label of the node here")

    def _match(self, text: str) -> None:
        nodes = self.job.setdefault("nodes", {})
        assert isinstance(nodes, dict)
        nodes["match"] = f"{nodes['match']} && {text}" if "match" in nodes else text

    def _grace(self, field: Field) -> None:
        self.job["checkpoint"] = {"grace": f"{field.number(0, 86_400)}s"}

    def _containers(self, field: Field) -> None:
        rows = field.rows()
        if len(rows) != 1:
            field.refused("a task has one command: write one container")
        if not rows:
            return
        self.job["env"], self.job["secrets"] = {}, []
        keyed = rows[0].keyed()
        rows[0].walk(
            {
                "name": _read_elsewhere, "command": _read_elsewhere, "args": _read_elsewhere,
                "image": self._image, "env": self._env, "resources": self._resources,
                "workingDir": self._workdir, "volumeMounts": self._mounts,
            },
            UNKEPT_CONTAINER,
        )  # fmt: skip
        self._command(rows[0], *(keyed.get(key) for key in ("command", "args")))
        kind = self.per_task.pop("type", None)
        devices = self.per_task.get("devices")
        if isinstance(kind, str) and isinstance(devices, str) and devices.isdigit():
            self.per_task["devices"] = f"{kind}:{devices}"
        elif isinstance(kind, str) and isinstance(devices, str) and devices.startswith("nvidia/"):
            card = find_card(re.sub(r"-MIG-.*|-SHARED$", "", kind))
            if card is not None:
                self.per_task["devices"] = f"{card.type}/{devices.removeprefix('nvidia/')}"

    def _command(self, container: Field, command: Field | None, args: Field | None) -> None:
        """Set `run`: a shell's own text as it stands, any other words quoted into one line."""
        lists = [f.rows() for f in (command, args) if f is not None and f.node.value is not None]
        words = [row.text for rows in lists for row in rows]
        names = [str(name) for key in ("env", "secrets") for name in _texts(self.job.get(key))]
        if self.is_indexed:
            names.append(_INDEX)
        if command is None or command.node.value in (None, []):
            container.refused("it has no command: an image's own entry point is not known here")
        if len(words) == 3 and words[0].rpartition("/")[2] in SHELLS and words[1] in _FLAGS:
            # In the text of a shell only names that are defined are the cluster's to fill in.
            lead = "set -e\n" if "e" in words[1] else ""
            filled = _REFERENCE.sub(lambda m: _fill(m, names, "${%s}"), words[2])
            self.job["run"] = lead + filled
        elif words:
            self.job["run"] = " ".join(_quoted_word(word, names) for word in words)

    def _volumes(self, field: Field) -> None:
        for row in field.rows():
            keyed = row.keyed()
            if "hostPath" in keyed:
                row.changed("its path is mounted where the container says, as it is")
                kind = keyed["hostPath"].keyed().get("type")
                if kind is not None and kind.value:
                    kind.dropped("its path must be there, and none is made")
            elif "emptyDir" in keyed:
                row.changed("/dev/shm is as large as its limit; else use the task's directory")
                empty = keyed["emptyDir"]
                for key, inner in (empty.keyed() if empty.value else {}).items():
                    if key != "sizeLimit" and inner.value != "Memory":
                        inner.dropped("memory at /dev/shm is all that is given")
            else:
                row.dropped("mount it on the nodes")

    def _mounts(self, field: Field) -> None:
        """Paths of the node become mounts, memory at /dev/shm its size; others are reported."""
        mounts: list[Json] = []
        for row in field.rows():
            keyed = row.keyed()
            target = keyed["mountPath"].text if "mountPath" in keyed else ""
            volume = self._volume(keyed["name"].text if "name" in keyed else "")
            at = volume.get("hostPath")
            memory = volume.get("emptyDir")
            if at is not None and "path" in at.keyed() and "subPath" not in keyed:
                is_read_only = "readOnly" in keyed and keyed["readOnly"].node.value is True
                text = f"{at.keyed()['path'].text}:{target}" + (":ro" if is_read_only else "")
                kept, _ = read_mounts(text)
                mounts += kept
                if not kept:
                    row.dropped("only absolute paths are mounted")
            elif memory is not None and target == "/dev/shm":
                empty = memory.keyed() if memory.node.value else {}
                size = empty.get("sizeLimit")
                if "medium" not in empty:
                    row.dropped("a directory on disk is no shared memory: write medium: Memory")
                elif size is not None:
                    self.per_task["shm"] = size.text
            else:
                row.dropped("mount it on the nodes, and name its path under mounts")
        self.job["mounts"] = mounts

    def _volume(self, name: str) -> dict[str, Field]:
        """Return the volume of a name as its fields; empty for none."""
        for row in self.volumes.rows() if self.volumes is not None else ():
            keyed = row.keyed()
            if "name" in keyed and keyed["name"].text == name:
                return keyed
        return {}

    def _image(self, field: Field) -> None:
        self.job["image"] = field.text

    def _workdir(self, field: Field) -> None:
        self.job["workdir"] = field.text

    def _env(self, field: Field) -> None:
        env: dict[str, Json] = {}
        secrets: list[Json] = []
        for row in field.rows():
            keyed = row.keyed()
            name = keyed["name"].text if "name" in keyed else ""
            if not re.fullmatch(VARIABLE, name):
                raise row.fault(f"'{name[:40]}' is not a name of a variable", "write name: NAME")
            if "value" in keyed:
                env[name] = "" if keyed["value"].node.value is None else keyed["value"].text
            elif "valueFrom" in keyed and "secretKeyRef" in keyed["valueFrom"].keyed():
                secrets.append(name)
                reference = keyed["valueFrom"].keyed()["secretKeyRef"].value
                row.changed(f"the value is your environment's at submit, not that of {reference}")
            else:
                row.dropped("write its value")
        self.job["env"], self.job["secrets"] = env, secrets

    def _resources(self, field: Field) -> None:
        keyed = field.keyed()
        amounts: dict[str, Field] = {}
        # What is requested is what must be there; limits stand in where nothing is requested.
        for key in ("limits", "requests"):
            if key not in keyed or keyed[key].node.value is None:
                continue
            for name, inner in keyed[key].keyed().items():
                limit = amounts.get(name)
                if limit is not None and limit.node.raw != inner.node.raw:
                    limit.dropped("what is requested counts; use beyond it is the node's to limit")
                amounts[name] = inner
        for key in keyed:
            if key not in ("limits", "requests"):
                keyed[key].dropped("devices are asked for by count")
        for name, inner in amounts.items():
            if name == "cpu":
                self.per_task["cpus"] = _cores(inner)
            elif name == "memory":
                self.per_task["memory"] = _memory(inner)
            elif name in _DEVICES:
                vendor = _DEVICES[name]
                count = inner.number(0, 1000)
                if count:
                    self.per_task["devices"] = f"{vendor}:{count}" if vendor else str(count)
            elif name.startswith("nvidia.com/mig-"):
                # A resource name has no plus: 1g.10gb+me is written 1g.10gb.me.
                profile = name.removeprefix("nvidia.com/mig-")
                profile = re.sub(r"(gb)\.", r"\1+", profile)
                self.per_task["devices"] = f"nvidia/{profile}:{inner.number(1, 1000)}"
            elif name == _SHARED:
                self.per_task["devices"] = str(inner.number(1, 1000))
                inner.changed("whole devices: a share has no size here; write devices: H100:0.5")
            elif _OTHER_DEVICE.search(name):
                inner.refused("devices of this name are not known here: write per_task.devices")
            else:
                inner.dropped("it is not counted here")


def _texts(value: Json) -> list[str]:
    return [str(name) for name in value] if isinstance(value, Mapping | list) else []


def _fill(found: re.Match[str], names: Sequence[str], form: str) -> str:
    if found[1]:
        return "$"  # `$$(NAME)` is no reference
    return form % found[2] if found[2] in names else found[0]


def _quoted_word(word: str, names: Sequence[str]) -> str:
    """Quote a word for a shell, with `$(NAME)` as the value of the variable."""
    found, literal, at = "", "", 0
    for reference in _REFERENCE.finditer(word):
        literal += word[at : reference.start()]
        filled = _fill(reference, names, '"${%s}"')
        if filled.startswith('"'):
            found += (shlex.quote(literal) if literal else "") + filled
            literal = ""
        else:
            literal += filled
        at = reference.end()
    literal += word[at:]
    return found + (shlex.quote(literal) if literal or not found else "")


def _quoted(field: Field) -> str:
    if "'" in field.text:
        raise field.fault("a quote in a label", "remove it")
    return field.text


def _cores(field: Field) -> Json:
    found = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)(m?)", field.text.strip())
    if found is None:
        raise field.fault(f"'{field.text[:40]}' is no number of cores", "write 4 or 500m")
    cores = float(found[1]) / 1000 if found[2] else float(found[1])
    return int(cores) if cores.is_integer() else cores


def _memory(field: Field) -> str:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti|k|M|G|T)?", field.text.strip())
    if found is None:
        raise field.fault(f"'{field.text[:40]}' is no memory size", "write 16Gi")
    return f"{found[1]}{(found[2] or '').upper().replace('I', 'i')}B"
