"""dstack task configurations to native jobs (dstack 0.19 to 0.22).

A node of dstack is a task. In its GPU grammar a bare value means exactly that value; a range is
read at its low end.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tercio.formats.document import Json, read_documents
from tercio.formats.foreign.draft import Converted, JobObject, Report, tidy
from tercio.formats.foreign.fields import Field, environment
from tercio.formats.foreign.images import read_mounts
from tercio.formats.native import default_name

TYPES: Final = ("task", "service", "dev-environment", "fleet", "gateway", "volume", "preset")
_REFUSED: Final = {
    "service": "services with replicas are not supported yet",
    "dev-environment": "write a task that runs until you stop it, and use tercio exec",
    "fleet": "nodes are the sites': tercio node list",
    "gateway": "no gateway is run",
    "volume": "mount it on the nodes",
    "preset": "write the job's own file",
}
_ANY_CPU: Final = "the kind of processor is the site's: write nodes: {match: ...}"
_IDLE: Final = r"\bsleep +(infinity|inf)\b|\btail +-f +/dev/null"
_PLACED: Final = "the sites that are connected are used"
UNKEPT: Final = {
    "backends": _PLACED, "regions": _PLACED, "availability_zones": _PLACED, "fleets": _PLACED,
    "instances": _PLACED, "instance_types": _PLACED, "backend_options": _PLACED,
    "reservation": "write the id of a reservation of Tercio",
    "max_price": "there is no price here; a queue's limit bounds use",
    "creation_policy": "nodes are not created",
    "idle_duration": "nodes are not stopped",
    "utilization_policy": "tercio show tells what a job uses",
    "startup_order": "tasks of a gang start together",
    "schedule": "submit it from cron",
    "python": "install the version inside setup",
    "nvcc": "install it inside setup",
    "docker": "no Docker daemon is given to jobs",
    "user": "the user is the one of the token",
    "entrypoint": "commands are run by the shell",
    "shell": "commands are run by bash",
    "privileged": "jobs have no privileges",
    "registry_auth": "images are pulled as the site does",
    "ports": "ports are not published; TERCIO_PORTS are the task's own",
    "repos": "clone it inside setup, or write workdir",
    "files": "put them into workdir",
    **dict.fromkeys(
        ("port", "model", "replicas", "scaling", "probes", "rate_limits", "gateway", "https",
         "auth", "strip_prefix", "path_prefix", "router"), "services are not supported yet",
    ),
    "single_branch": "clone it inside setup", "home_dir": "HOME is the task's directory",
    "ide": "use tercio exec", "init": "write setup", "inactivity_duration": "write time.limit",
}  # fmt: skip


def read_dstack(text: str, *, source: str) -> Converted:
    """Read a configuration of type `task`; others are refused with what to do.

    Raises:
        UserError: it is no YAML, or a value has the wrong form; with line and field.
    """
    report = Report()
    jobs = []
    for document in read_documents(text, source=source):
        top = Field(source, "", document, report)
        kind = top.keyed().get("type")
        if kind is None or kind.text not in TYPES:
            raise top.fault("there is no known type", f"write type: task ({', '.join(TYPES)})")
        if kind.text != "task":
            kind.refused(_REFUSED[kind.text])
        jobs.append(
            _Run(top, default_name(source.removesuffix(".yml").removesuffix(".dstack"))).read()
        )
    return Converted(kind="dstack", jobs=tuple(jobs), losses=tuple(report.losses))


class _Run:
    """One configuration."""

    def __init__(self, top: Field, name: str) -> None:
        self.top = top
        self.job: JobObject = {"name": name, "workdir": "."}
        self.per_task: dict[str, Json] = {}
        self.directory = ""

    def read(self) -> JobObject:
        self.job["retry"] = {"on": []}
        self.top.walk(
            {
                "type": lambda _: None, "name": self.name, "image": self.image, "env": self.env,
                "commands": self.commands, "nodes": self.nodes, "groups": self.groups,
                "resources": self.resources, "priority": self.priority, "retry": self.retry,
                "max_duration": self.limit, "stop_duration": self.grace, "tags": self.tags,
                "spot_policy": self.spot, "working_dir": self.working_dir,
                "stop_criteria": lambda _: None, "volumes": self.volumes,
            },
            UNKEPT,
            is_closed=True,
        )  # fmt: skip
        keyed = self.top.keyed()
        if not self.job.get("run") and keyed["type"].text == "task" and "groups" not in keyed:
            self.top.child("commands", self.top.node).refused(
                "there are none: an image's own entry point is not known here"
            )
        stop = self.top.keyed().get("stop_criteria")
        if stop is not None and stop.node.value is not None:
            self.stop_criteria(stop)
        if not self.job.get("image"):
            self.job.pop("mounts", None)
        self.job["per_task"] = self.per_task
        run = self.job.get("run") or "true"
        self.job["run"] = f"cd {self.directory}\n{run}" if self.directory else run
        return tidy(self.job)

    def name(self, field: Field) -> None:
        self.job["name"] = default_name(field.text)

    def image(self, field: Field) -> None:
        self.job["image"] = field.text

    def volumes(self, field: Field) -> None:
        kept: list[Json] = []
        has_image = "image" in self.top.keyed()
        for row in field.rows():
            mounts, lost = read_mounts(row.text if isinstance(row.node.value, str) else "$")
            kept += mounts if has_image else []
            if lost:
                row.dropped("network volumes are not made; mount it on the nodes")
            elif not has_image:
                row.dropped("without an image the job sees the node's own paths")
        self.job["mounts"] = kept

    def env(self, field: Field) -> None:
        found, bare = environment(field, "its value is taken from your environment at submit")
        self.job["env"] = found
        self.job["secrets"] = list(dict.fromkeys(bare))

    def commands(self, field: Field) -> None:
        # dstack stops at the first command that fails.
        lines = [row.text for row in field.rows()]
        self._find_launcher(field, "\n".join(lines))
        self.job["run"] = "\n".join(["set -e", *lines] if len(lines) > 1 else lines)

    def _find_launcher(self, field: Field, text: str) -> None:
        """Note commands that are for node 0 alone: it calls mpirun, or the others only wait."""
        stop = self.top.keyed().get("stop_criteria")
        ends_with_master = stop is not None and stop.value == "master-done"
        calls_mpi = "DSTACK_MPI_HOSTFILE" in text
        if calls_mpi or (ends_with_master and re.search(_IDLE, text)):
            self.job["framework"] = "mpi"
            if not ends_with_master:
                field.changed("framework: mpi: node 0 runs them, the others wait and end with it")

    def nodes(self, field: Field) -> None:
        self.job["tasks"] = field.number(1, 100_000)

    def groups(self, field: Field) -> None:
        field.refused("groups with commands of their own: write one job for each")

    def priority(self, field: Field) -> None:
        self.job["priority"] = field.number(0, 100)

    def retry(self, field: Field) -> None:
        words = {
            "interruption": ["preempted", "node_failed"], "error": ["failed"], "no-capacity": [],
        }  # fmt: skip
        if isinstance(field.node.value, bool):
            causes = [c for row in words.values() for c in row] if field.node.value else []
        else:
            keyed = field.keyed()
            rows = keyed["on_events"].rows() if "on_events" in keyed else []
            causes = [c for row in rows for c in words.get(row.text, [])]
            for row in rows:
                if row.text not in words:
                    raise row.fault(f"'{row.text}' is no event", f"write {', '.join(words)}")
            if not rows:
                causes = [c for row in words.values() for c in row]
            elif "no-capacity" not in [row.text for row in rows]:
                why = "without no-capacity dstack fails at once when all is taken; here it waits"
                keyed["on_events"].changed(why)
            for key, inner in keyed.items():
                if key != "on_events" and inner.node.value is not None:
                    inner.dropped("attempts are counted: retry: {max: N}")
        if causes:
            self.job["retry"] = {"on": list(dict.fromkeys(causes)), "max": 1000}

    def limit(self, field: Field) -> None:
        seconds = duration_s(field)
        if seconds is not None:
            self.job["time"] = {"limit": f"{seconds}s"}

    def grace(self, field: Field) -> None:
        seconds = duration_s(field)
        if seconds is not None:
            self.job["checkpoint"] = {"grace": f"{min(seconds, 86_400)}s"}

    def tags(self, field: Field) -> None:
        self.job["labels"] = {key: inner.text for key, inner in field.keyed().items()}

    def spot(self, field: Field) -> None:
        if field.text in ("spot", "auto"):
            self.job["preemptible"] = True
        field.changed("there is no spot market; preemptible says whether it may be stopped")

    def working_dir(self, field: Field) -> None:
        if field.text.startswith("/"):
            self.job["workdir"] = field.text
        elif field.text != ".":
            self.directory = "'" + field.text.replace("'", "'\\''") + "'"

    def stop_criteria(self, field: Field) -> None:
        if field.text not in ("all-done", "master-done"):
            raise field.fault(f"'{field.text[:40]}' is none", "write all-done or master-done")
        if field.text == "master-done":
            field.changed(
                "framework: mpi: node 0 runs the commands, the others wait and end with it"
                if "framework" in self.job
                else "a gang ends when all its tasks have ended: end the others inside commands"
            )

    # Resources.

    def resources(self, field: Field) -> None:
        field.walk(
            {"cpu": self._cpu, "memory": self._memory, "gpu": self._gpu, "shm_size": self._shm},
            {"disk": "local disk is not counted"},
            is_closed=True,
        )

    def _cpu(self, field: Field) -> None:
        if isinstance(field.node.value, dict):
            keyed = field.keyed()
            for key, inner in keyed.items():
                if key != "count" and inner.node.value is not None:
                    inner.dropped(_ANY_CPU)
            if "count" in keyed:
                self.per_task["cpus"] = low_end(keyed["count"], r"\d{1,6}")
            return
        kind, _, text = field.text.rpartition(":")
        if kind:
            field.dropped(_ANY_CPU)
        self.per_task["cpus"] = low_end(field, r"\d{1,6}", text)

    def _memory(self, field: Field) -> None:
        size = low_end(field, r"\d{1,9}(?:\.\d+)?\s*[KMGT]?i?B?")
        if size is not None:
            self.per_task["memory"] = binary(str(size))

    def _shm(self, field: Field) -> None:
        size = low_end(field, r"\d{1,9}(?:\.\d+)?\s*[KMGT]?i?B?")
        if size is not None:
            self.per_task["shm"] = binary(str(size))

    def _gpu(self, field: Field) -> None:
        wanted = gpu_map(field) if isinstance(field.node.value, dict) else gpu_text(field)
        if wanted is None:
            return
        memory = ""
        if wanted.memory:
            memory = f"{wanted.memory}{'..' if wanted.is_least else ''}"
        if wanted.vendor in _TPUS:
            field.refused("TPUs and their like are not supported yet")
            return
        requests = []
        for name in wanted.names or [""]:
            words = [name, memory] if name else [memory or wanted.vendor]
            requests.append(":".join([w for w in words if w] + [str(wanted.amount)]))
        self.per_task["devices"] = " | ".join(requests)


class Gpu(NamedTuple):
    """What a GPU specification asks for, at its low end."""

    vendor: str
    names: list[str]
    memory: str
    is_least: bool
    amount: int


_TPUS: Final = ("google", "tpu", "tt", "tenstorrent")
_VENDORS: Final = ("nvidia", "amd", "intel", *_TPUS)


def gpu_text(field: Field) -> Gpu | None:
    """Read `H100:80GB:8`: vendor, names, memory and count in any order."""
    vendor, names, memory, is_least, count = "", [], "", False, 1
    for word in (piece.strip() for piece in field.text.split(":")):
        if word.lower() in _VENDORS:
            vendor = word.lower()
        elif re.fullmatch(r"(\d+)?(\.\.)?(\d+)?", word) and word:
            count = _count(field, word)
        elif re.fullmatch(r"[\d.]*\d\s*[MGT]i?B(\.\..*)?|\.\.\d.*", word, re.IGNORECASE):
            memory, is_least = _size(field, word)
        elif re.match(r"[A-Za-z]", word):
            names = [name.strip() for name in word.split(",") if name.strip()]
        else:
            raise field.fault(f"'{word[:40]}' is no part of a GPU", "write H100:80GB:8")
    return None if count == 0 else Gpu(vendor, names, memory, is_least, count)


def gpu_map(field: Field) -> Gpu | None:
    """Read `{name: H100, memory: 80GB, count: 8}`."""
    vendor, names, memory, is_least, count = "", list[str](), "", False, 1
    for key, inner in field.keyed().items():
        if inner.node.value is None:
            continue
        if key == "vendor":
            vendor = inner.text.lower()
        elif key == "name":
            names = [n.strip() for row in inner.rows() for n in row.text.split(",")]
        elif key == "memory":
            memory, is_least = _size(inner, _as_text(inner))
        elif key == "count":
            count = _count(inner, _as_text(inner))
        else:
            inner.dropped("devices are asked for by name and memory")
    return None if count == 0 else Gpu(vendor, names, memory, is_least, count)


def _as_text(field: Field) -> str:
    """A range may be a mapping of min and max."""
    if not isinstance(field.node.value, dict):
        return field.text
    keyed = field.keyed()
    for key, inner in keyed.items():
        if key not in ("min", "max") and inner.node.value is not None:
            inner.dropped("a range has min and max")
    ends = [keyed[key].text if key in keyed else "" for key in ("min", "max")]
    return "..".join(ends)


def _count(field: Field, text: str) -> int:
    low, dots, high = text.strip().partition("..")
    if not re.fullmatch(r"\d{0,9}(\.\.\d{0,9})?", text.strip()) or not (low or dots):
        raise field.fault(f"'{text[:40]}' is no count", "write 8, 8.. or 1..8")
    if dots and low != high:
        field.changed(f"the low end of the range: {low or 1}")
    return int(low or 1)


def _size(field: Field, text: str) -> tuple[str, bool]:
    low, dots, high = text.partition("..")
    if dots and high:
        least = "at least the low end of the range" if low else "of any size: it has no low end"
        field.changed(least)
    number = re.match(r"\s*(\d+)", low)
    return (f"{number[1]}GB" if number else "", bool(dots))


def low_end(field: Field, pattern: str, text: str | None = None) -> Json:
    """Return the low end of a range; a bare value is at least that here."""
    word = (_as_text(field) if text is None else text).strip()
    low, dots, high = word.partition("..")
    if not re.fullmatch(pattern, low or "0", re.IGNORECASE) or (not low and not dots):
        raise field.fault(f"'{word[:40]}' is not of the right form", "write 8, 8.. or 8..16")
    if not dots:
        field.changed("at least as much: a node may have more")
    elif high and high != low:
        field.changed("at least the low end of the range")
    if not low:
        return None
    return int(low) if low.isdigit() else low


def binary(text: str) -> str:
    """Return a size with a binary unit, as dstack counts: `16GB` is 16 GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    assert found is not None  # the pattern was checked
    return f"{found[1]}{(found[2] or 'G').upper()}iB"


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration_s(field: Field) -> int | None:
    """Read `2h`, seconds, or off for no limit."""
    text = field.text.strip().lower()
    if text in ("off", "false", "0"):
        return None
    found = re.fullmatch(r"(\d{1,9})\s*([smhdw]?)", text)
    if found is None or not int(found[1]):
        raise field.fault(f"'{text[:40]}' is no duration", "write 2h, 30m or off")
    return int(found[1]) * _SECONDS[found[2] or "s"]
