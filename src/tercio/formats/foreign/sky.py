"""SkyPilot task files to native jobs (sky/utils/schemas.py of SkyPilot 0.10 to 0.14).

A node of SkyPilot is a task: `num_nodes` is the size of the gang, resources are those of a node.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from tercio.formats.document import Json, Node, read_documents
from tercio.formats.foreign.draft import Converted, JobObject, Report, tidy
from tercio.formats.foreign.fields import Field, environment, plain
from tercio.formats.foreign.sbatch_values import mebibytes
from tercio.formats.native import default_name

_NO_CLOUD: Final = "the sites that are connected are used"
UNKEPT: Final = {
    "pool": "pools of workers are not kept; a queue's reservation holds capacity",
    "volumes": "mount it on the nodes",
    "config": "settings of other back ends",
    "event_callback": "write notify: [{on: [finished], url: https://...}]",
    "inputs": "fetch inputs inside setup",
    "outputs": "write outputs inside run",
    "managed_secrets": "list the names under secrets",
    "api_server_access": "the job gets no token of the server",
    "experimental": "it has no counterpart",
}
UNKEPT_RESOURCES: Final = {
    "cloud": _NO_CLOUD,
    "region": _NO_CLOUD,
    "zone": _NO_CLOUD,
    "infra": _NO_CLOUD,
    "instance_type": "nodes are chosen by what is asked for",
    "disk_size": "local disk is not counted",
    "disk_tier": "local disk is not counted",
    "local_disk": "local disk is not counted",
    "ephemeral_storage": "local disk is not counted",
    "network_tier": "the fabric is the site's",
    "max_hourly_cost": "there is no price here; a queue's limit bounds use",
    "ports": "ports are not published; TERCIO_PORTS are the task's own",
    "autostop": "nodes are not stopped; time: {limit: ...} ends a job",
    "priority_class": "write priority",
    "accelerator_args": "it is for TPUs",
    "cluster_name": "clusters are not named",
}


def read_sky(text: str, *, source: str) -> Converted:
    """Read a task file, of one document or several.

    Raises:
        UserError: it is no YAML, or a value has the wrong form; with line and field.
    """
    report = Report()
    documents = read_documents(text, source=source)
    jobs: list[JobObject] = []
    name = default_name(source)
    is_pipeline = len(documents) > 1
    for position, document in enumerate(documents):
        top = Field(source, "", document, report)
        keyed = top.keyed()
        if is_pipeline and position == 0 and set(keyed) <= _HEADER:
            if "name" in keyed:
                name = default_name(keyed["name"].text)
                keyed["name"].changed("each task is a job with a name of its own")
            for key in ("primary_tasks", "termination_delay"):
                if key in keyed:
                    keyed[key].dropped("every job ends by itself")
            if "execution" not in keyed or keyed["execution"].text != "parallel":
                why = "tasks that follow each other: submit them one by one with depends_on"
                report.refused("pipeline", name, why, document.line)
            continue
        own = name if not is_pipeline else f"{name[:58]}-{len(jobs) + 1}"
        jobs.append(_Task(top, own).read())
    return Converted(kind="sky", jobs=tuple(jobs), losses=tuple(report.losses))


_HEADER: Final = {"name", "execution", "primary_tasks", "termination_delay"}


class _Task:
    """One document."""

    def __init__(self, top: Field, name: str) -> None:
        self.top = top
        self.job: JobObject = {"name": name}
        self.per_task: dict[str, Json] = {}

    def read(self) -> JobObject:
        self.top.walk(
            {
                "name": self.name, "workdir": self.workdir, "num_nodes": self.num_nodes,
                "resources": self.resources, "envs": self.envs, "secrets": self.secrets,
                "file_mounts": self.file_mounts, "setup": self.setup, "run": self.run,
                "service": self.service, "pool": self.pool,
            },
            UNKEPT,
            is_closed=True,
        )  # fmt: skip
        if not str(self.job.get("run", "")).strip():
            self.job["run"] = "true"
        self.job["per_task"] = self.per_task
        return tidy(self.job)

    def name(self, field: Field) -> None:
        self.job["name"] = default_name(field.text)
        if self.job["name"] != field.text:
            field.changed(f"names are of a-z, 0-9 and -: {self.job['name']}")

    def workdir(self, field: Field) -> None:
        if isinstance(field.node.value, dict):
            field.dropped("clone the repository inside setup")
        else:
            self.job["workdir"] = field.text

    def num_nodes(self, field: Field) -> None:
        self.job["tasks"] = field.number(1, 100_000)

    def envs(self, field: Field) -> None:
        env, _ = environment(field, "it has no value: give it at submit as --env {0}=VALUE")
        self.job["env"] = env

    def secrets(self, field: Field) -> None:
        rows = field.rows() if isinstance(field.node.value, list) else None
        names = [row.text for row in rows] if rows is not None else list(field.keyed())
        self.job["secrets"] = names
        inner = [] if rows is not None else list(field.keyed().values())
        if [each.text for each in inner if each.node.value is not None]:
            why = "values are taken from the environment at submit, never from a file"
            field.report.changed(field.name, ", ".join(names), why, field.node.line)

    def file_mounts(self, field: Field) -> None:
        for target, inner in field.keyed().items():
            field.report.dropped(
                f"file_mounts.{target}", inner.node.raw if inner.node.raw else "",
                "put it into workdir, or mount it on the nodes", inner.node.line,
            )  # fmt: skip

    def setup(self, field: Field) -> None:
        self.job["setup"] = field.text

    def run(self, field: Field) -> None:
        self.job["run"] = field.text

    def service(self, field: Field) -> None:
        field.refused("services with replicas and a load balancer are not supported yet")

    def pool(self, field: Field) -> None:
        field.refused("pools of workers are not supported yet")

    # Resources.

    def resources(self, field: Field) -> None:
        devices: list[str] = []
        keyed = field.keyed()
        for key in ("any_of", "ordered"):
            if key in keyed and keyed[key].node.value is not None:
                devices = self._alternatives(keyed[key])
        field.walk(
            {
                "accelerators": lambda f: devices.extend(accelerators(f)),
                "cpus": self._cpus, "memory": self._memory, "use_spot": self._spot,
                "image_id": self._image, "labels": self._labels, "priority": self._priority,
                "job_recovery": self._recovery, "spot_recovery": self._recovery,
                "infra": self._infra, "any_of": _read_before, "ordered": _read_before,
            },
            UNKEPT_RESOURCES,
            is_closed=True,
        )  # fmt: skip
        if devices:
            self.per_task["devices"] = " | ".join(dict.fromkeys(devices))

    def _alternatives(self, field: Field) -> list[str]:
        found: list[str] = []
        for row in field.rows():
            keyed = row.keyed()
            if "accelerators" in keyed:
                found += accelerators(keyed["accelerators"])
            for key, inner in keyed.items():
                if key != "accelerators":
                    inner.dropped(UNKEPT_RESOURCES.get(key, "write it for all alternatives"))
        if field.name.endswith("any_of") and len(found) > 1:
            field.changed("tried in this order, not by price")
        return found

    def _cpus(self, field: Field) -> None:
        found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)(\+?)", field.text.strip())
        if found is None:
            raise field.fault(f"'{field.text[:40]}' is no number of cores", "write 8 or 8+")
        self.per_task["cpus"] = float(found[1]) if "." in found[1] else int(found[1])
        if not found[2]:
            field.changed("at least as many: a node may have more")

    def _memory(self, field: Field) -> None:
        pattern = r"(\d{1,9}(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?(\+?)"
        found = re.fullmatch(pattern, field.text.strip(), re.IGNORECASE)
        if found is None:
            raise field.fault(f"'{field.text[:40]}' is no memory size", "write 32, 32+ or 64GB")
        unit = {"K": 1 / 1024, "M": 1, "": 1024, "G": 1024, "T": 1024**2}[found[2].upper()]
        self.per_task["memory"] = mebibytes(max(round(float(found[1]) * unit), 1))
        if not found[3]:
            field.changed("at least as much: a node may have more")

    def _spot(self, field: Field) -> None:
        if field.boolean():
            self.job["preemptible"] = True
            field.changed("there is no spot market; the job may be preempted")

    def _image(self, field: Field) -> None:
        if isinstance(field.node.value, dict) or not field.text.startswith("docker:"):
            field.dropped("machine images are the site's; write docker:IMAGE")
        else:
            self.job["image"] = field.text.removeprefix("docker:")

    def _labels(self, field: Field) -> None:
        self.job["labels"] = {key: inner.text for key, inner in field.keyed().items()}

    def _priority(self, field: Field) -> None:
        self.job["priority"] = field.number(-1000, 1000)

    def _recovery(self, field: Field) -> None:
        if not isinstance(field.node.value, dict):
            _ = field.text  # a list is a fault
            field.changed("lost nodes and preemption are retried, wherever there is room")
            return
        for key, inner in field.keyed().items():
            if key == "max_restarts_on_errors":
                count = inner.number(0, 1000)
                causes: list[Json] = ["node_failed", "preempted", *(["failed"] if count else [])]
                self.job["retry"] = {"on": causes, "max": max(count, 5)}
                if count < 5:
                    inner.changed("retries of all causes are counted together: 5 in all")
            elif inner.node.value is not None:
                inner.dropped("lost nodes and preemption are retried, wherever there is room")

    def _infra(self, field: Field) -> None:
        kind, _, rest = field.text.partition("/")
        site = rest.partition("/")[0]
        if kind.lower() in ("slurm", "k8s", "kubernetes", "ssh") and site not in ("", "*"):
            self.job["sites"] = [site]
            field.changed(f"site {site} must be connected")
        else:
            field.dropped(_NO_CLOUD)


def _read_before(_: Field) -> None:
    """Its alternatives were read before the other keys."""


def accelerators(field: Field) -> list[str]:
    """Read `accelerators`: a text, a list in order, or a set of which any will do.

    `{L4:1, H100:1}` in YAML's flow style is a mapping whose keys hold the counts.
    """
    value = field.node.value
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(accelerators(row) for row in field.rows()))
    if not isinstance(value, dict):
        return [_accelerator(field, field.text)]
    if len(value) > 1:
        field.changed("tried in this order, not by price")
    found = []
    for key, inner in field.keyed().items():
        text = key if inner.node.value is None else f"{key}:{inner.text}"
        found.append(_accelerator(field, text))
    return found


def _accelerator(field: Field, text: str) -> str:
    name, colon, count = text.strip().rpartition(":")
    if not colon:
        name, count = text.strip(), "1"
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", count) or not name:
        raise field.fault(f"'{text[:40]}' is no accelerator", "write H100:8")
    whole = count.removesuffix(".0") if float(count) >= 1 else count
    if name.lower().startswith(("tpu-", "tpu")):
        field.refused("TPUs are not supported yet")
    return f"{name}:{whole}"


def looks_like_sky(document: Node) -> bool:
    """Whether a document has keys that only SkyPilot's files have."""
    value = plain(document)
    return isinstance(value, dict) and bool(set(value) & _OWN) and not set(value) & _NATIVE


def is_sky_group(documents: list[Node]) -> bool:
    """Whether several documents begin with the header of a pipeline or job group."""
    if len(documents) < 2:
        return False
    header = documents[0].value
    return isinstance(header, dict) and bool(header) and set(header) <= _HEADER


_OWN: Final = {
    "resources", "num_nodes", "envs", "file_mounts", "service", "pool", "config", "volumes",
}  # fmt: skip
_NATIVE: Final = {
    "per_task", "tasks", "groups", "framework", "time", "retry", "queue", "array", "depends_on",
    "topology", "checkpoint", "nodes", "env", "sites", "repair", "model", "notify",
}  # fmt: skip
