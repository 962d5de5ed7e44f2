"""sbatch scripts to native jobs.

`#SBATCH` lines count up to the first command; options of the command line come before the
environment (`SBATCH_*`), which comes before the file. Every option of sbatch is known: it has a
counterpart, needs none, or stands in the report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tercio.errors import UserError
from tercio.formats.cards import find_card
from tercio.formats.document import Json
from tercio.formats.foreign import sbatch_values as values
from tercio.formats.foreign.draft import Converted, SiteMap, tidy
from tercio.formats.foreign.fields import VARIABLE
from tercio.formats.foreign.images import image_of_pyxis, read_mounts
from tercio.formats.foreign.sbatch_options import (
    IDLE,
    UNKEPT,
    Option,
    count_options,
    directives,
    parse_options,
    split,
)
from tercio.formats.foreign.sbatch_script import named_in, wrap_script
from tercio.formats.foreign.sbatch_shape import Shape
from tercio.formats.native import default_name
from tercio.model.units import format_instant, parse_instant_s

ENVIRONMENT: Final = {
    "SBATCH_ACCOUNT": "account", "SBATCH_ARRAY_INX": "array", "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_EXCLUSIVE": "exclusive", "SBATCH_EXPORT": "export", "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres", "SBATCH_JOB_NAME": "job-name", "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu", "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos",
    "SBATCH_REQUEUE": "requeue", "SBATCH_RESERVATION": "reservation", "SBATCH_SIGNAL": "signal",
    "SBATCH_TIMELIMIT": "time", "SBATCH_CLUSTERS": "clusters",
}  # fmt: skip
"""Variables that sbatch reads as options, of those that can matter here."""


def read_sbatch(
    text: str,
    *,
    source: str,
    sites: SiteMap | None = None,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    now_s: float | None = None,
) -> Converted:
    """Read a batch script.

    Args:
        text: the script.
        source: its name, for messages and the default name of the job.
        sites: what partitions mean here.
        options: words of sbatch's command line before the script.
        arguments: words after the script, given to it.
        environment: `SBATCH_*` variables of the submitter, if they are to count.
        now_s: for `--begin=now+1hour`; without it such a time is refused by name.

    Raises:
        UserError: an unknown option or a value of the wrong form, with its line.
    """
    return _Reader(text, source, sites or SiteMap(), now_s).read(
        options, tuple(arguments), environment or {}
    )


class _Reader(Shape):
    """Options by name, and the job they make."""

    def __init__(self, text: str, source: str, sites: SiteMap, now_s: float | None) -> None:
        super().__init__(source, sites)
        self.text, self.now_s = text, now_s
        self.is_held = False

    def read(
        self, words: Sequence[str], arguments: tuple[str, ...], environment: Mapping[str, str]
    ) -> Converted:
        """Gather the options, later ones over earlier ones, and convert them one by one."""
        found, late = directives(self.text)
        for line, text in found:
            words_of_line = split(text, source=self.source, line=line)
            self.gather(parse_options(words_of_line, source=self.source, line=line))
            rest = words_of_line[count_options(words_of_line) :]
            if rest and rest[0] in ("hetjob", "packjob"):
                why = "the groups of a heterogeneous job are not read: write groups in a job file"
                self.report.refused("#SBATCH", rest[0], why, line)
            elif rest:
                why = "a word that is no option: write --option=value"
                self.report.dropped("#SBATCH", " ".join(rest), why, line)
        for line in late:
            why = "it stands after the first command, where sbatch ignores it too"
            self.report.dropped("#SBATCH", None, why, line)
        for name, option in ENVIRONMENT.items():
            if name in environment:
                self.gather([Option(option, environment[name], 0)])
        self.gather(parse_options(words, source=self.source, line=0))
        self._convert(arguments)
        return Converted(
            kind="sbatch",
            jobs=(tidy(self.job),),
            losses=tuple(sorted(self.report.losses, key=lambda loss: loss.line)),
            is_held=self.is_held,
        )

    def _convert(self, arguments: tuple[str, ...]) -> None:
        self.job["name"] = default_name(self._text("job-name") or self.source)
        name = self._text("job-name")
        if name is not None and self.job["name"] != name:
            self._changed("job-name", f"names are of a-z, 0-9 and -: {self.job['name']}")
        per_node = self._layout()
        for name in list(self.options):
            if name in _RULES:
                self._try(name, partial(_RULES[name], self))
            elif name in IDLE:
                self._dropped(name, IDLE[name])
            elif name in UNKEPT:
                self._dropped(name, UNKEPT[name])
        text = self._text("wrap") if not self.text.strip() else None
        body = f"#!/bin/sh\n{text}" if text is not None else self.text
        self._image(body)
        # Slurm would give each of the nodes that are asked for by number a node of its own.
        has_nodes = "nodes" in self.options or "ntasks-per-node" in self.options
        self.job["run"] = wrap_script(
            body,
            arguments=arguments,
            tasks_per_node=per_node,
            are_nodes=has_nodes and self.job["tasks"] != 1 and "exclusive" not in self.job,
        )
        self.job.setdefault("workdir", ".")

    def _image(self, body: str) -> None:
        """Take image and mounts from the script's `srun` lines where no option has them."""
        images = list(map(image_of_pyxis, named_in(body, "container-image")))
        if self.job.get("image") is None and len(images) == 1 and "$" not in images[0]:
            self.job["image"] = images[0]
        for image in images:
            if image != self.job.get("image"):
                one = "the script alone knows it" if "$" in image else "a job has one image"
                self.report.dropped(
                    "srun --container-image", image, f"{one}: write #SBATCH --container-image"
                )
        if self.job.get("image") is None:
            if self.job.pop("mounts", None):
                self._dropped("container-mounts", "there is no image to mount them in")
            return
        given = [read_mounts(text) for text in named_in(body, "container-mounts")]
        lost = [mount for _, each in given for mount in each]
        if lost:
            why = "only absolute paths that the file itself says are mounted, with ro or rw"
            self.report.dropped("srun --container-mounts", ",".join(lost), why)
        if "mounts" not in self.job:
            self.job["mounts"] = list(dict.fromkeys(mount for kept, _ in given for mount in kept))

    # Options one by one.

    def time(self, option: Option) -> None:
        """--time."""
        limit_s = values.time_s(option.value)
        if limit_s is not None:
            self._put("time", "limit", values.hours(limit_s))

    def begin(self, option: Option) -> None:
        """--begin and --deadline: an instant, or from now on."""
        key = "earliest" if option.name == "begin" else "deadline"
        later_s = values.begins_in_s(option.value)
        if later_s is not None and self.now_s is not None:
            self._put("time", key, format_instant(self.now_s + later_s))
            return
        clock_s = None if self.now_s is None else values.next_clock_s(option.value, self.now_s)
        if clock_s is not None:
            self._changed(option.name, "read as UTC: sbatch means the controller's zone")
            self._put("time", key, format_instant(clock_s))
            return
        text = re.sub(r"^(\d{4}-\d{2}-\d{2})(?:[T ](.+))?$", r"\1T\2", option.value.strip())
        text = text + "00:00:00" if text.endswith("T") else text
        has_zone = re.search(r"(Z|[+-]\d{2}:?\d{2})$", text) is not None
        try:
            at_s = parse_instant_s(
                text if re.search(r"(Z|[+-]\d{2}:?\d{2})$", text) else f"{text}Z"
            )
        except UserError:
            self._dropped(option.name, f"write time: {{{key}: 2026-12-01T08:00:00Z}}")
            return
        if not has_zone:
            self._changed(option.name, "read as UTC: sbatch means the controller's zone")
        self._put("time", key, format_instant(at_s))

    def partition(self, option: Option) -> None:
        """--partition: a device type, a queue, or a label."""
        names = option.value.split(",")
        queue = next((name for name in names if name in self.sites.queues), None)
        if queue is not None:
            self.job["queue"] = queue
        elif any(name in self.sites.partitions for name in names):
            self._changed("partition", "it stands for a device type of this site")
        else:
            why = "kept as a label; name its device type in the server's [convert.partitions]"
            self._changed("partition", why)
        self._put("labels", "slurm-partition", option.value)

    def label(self, option: Option) -> None:
        """Options that are kept as labels."""
        value = re.sub(r"[\x00-\x1f]", " ", option.value)[:256]
        self._put("labels", f"slurm-{option.name}", value)
        self._changed(option.name, f"kept as the label slurm-{option.name}")

    def array(self, option: Option) -> None:
        """--array: the same grammar."""
        self.job["array"] = option.value.strip()

    def dependency(self, option: Option) -> None:
        """--dependency."""
        found = values.dependencies(option.value)
        self.job["depends_on"] = found.rows
        for word in found.lost:
            self._changed("dependency", word)

    def signal(self, option: Option) -> None:
        """--signal: sent before a planned stop, of every kind."""
        name, before_s = values.signal(option.value)
        self._put("checkpoint", "signal", name)
        self._put("checkpoint", "grace", f"{before_s:g}s")

    def requeue(self, option: Option) -> None:
        """--requeue and --no-requeue."""
        causes: list[Json] = ["node_failed", "preempted"] if option.name == "requeue" else []
        self.job["retry"] = {"on": causes}
        if option.value:
            self._changed("requeue", "there is no faster requeue: lost nodes are retried at once")

    def exclusive(self, option: Option) -> None:
        """--exclusive: whole nodes."""
        self.job["exclusive"] = True
        if option.value not in ("", "exclusive", "1", "yes"):
            self._changed("exclusive", "whole nodes are taken, shared with nobody")

    def oversubscribe(self, _: Option) -> None:
        """--oversubscribe, --share."""
        self._dropped("oversubscribe", "nodes are shared, devices and cores are not")

    def nodelist(self, option: Option) -> None:
        """--nodelist: only these nodes, or at least these."""
        hosts = values.host_list(option.value)
        tasks = self.job["tasks"]
        if isinstance(tasks, int) and tasks > len(hosts):
            self._changed("nodelist", "only these nodes are used")
        self._match(" || ".join(f"name == '{host}'" for host in hosts))

    def exclude(self, option: Option) -> None:
        """--exclude."""
        self._put("nodes", "exclude", list(values.host_list(option.value)))

    def constraint(self, option: Option) -> None:
        """--constraint: features are labels of nodes; a device type stands in the request."""
        text = option.value.strip()
        if find_card(text):
            return
        if re.search(r"[\[\]*():]", text):
            self._dropped("constraint", "write it as nodes: {match: ...}")
            return
        plain = re.sub(r"[A-Za-z0-9_.-]+", lambda found: f"'{found[0]}' in labels", text)
        self._match(re.sub(r"[&,]", " && ", plain).replace("|", " || "))
        self._changed("constraint", "a feature is a label of a node here")

    def segment(self, option: Option) -> None:
        """--segment: so many nodes of one block."""
        self._put("topology", "slice", {"tasks": values.number(option.value), "same": "block"})

    def switches(self, _: Option) -> None:
        """--switches=N[@wait]."""
        self._put("topology", "prefer", "rack")
        self._changed("switches", "one rack is preferred; write same: rack to require it")

    def spread(self, _: Option) -> None:
        """--spread-job."""
        self._put("topology", "spread", "node")

    def reservation(self, option: Option) -> None:
        """--reservation: ours have ids of their own."""
        name = option.value.partition(",")[0]
        if re.fullmatch(r"[A-Za-z0-9._-]+", name):
            self.job["reservation"] = name
            more = ", and only the first of them counts" if "," in option.value else ""
            self._changed("reservation", f"the reservation must exist in Tercio{more}")
        else:
            self._dropped("reservation", "write the id of a reservation")

    def priority(self, option: Option) -> None:
        """--priority and --nice: places inside the queue."""
        found = re.fullmatch(r"-?\d{1,10}", option.value.strip())
        size = int(found[0]) if found else 100 if option.name == "nice" else None
        if size is None:
            self._dropped(option.name, "write priority from -1000 to 1000")
            return
        signed = -size if option.name == "nice" else size
        self.job["priority"] = max(-1000, min(1000, signed))
        self._changed(option.name, f"priority {self.job['priority']}, inside its queue only")

    def chdir(self, option: Option) -> None:
        """--chdir."""
        self.job["workdir"] = option.value

    def log(self, option: Option) -> None:
        """--output and --error."""
        self._dropped(option.name, "tercio logs JOB has it, of every task, by attempt")

    def export(self, option: Option) -> None:
        """--export: only what is written out is set."""
        env = self.job["env"]
        assert isinstance(env, dict)
        for name, value in values.exports(option.value):
            if name.startswith("TERCIO_"):
                self._dropped("export", "Tercio sets its own")
            elif value is not None:
                env[name] = value
            elif name == "ALL":
                why = "the submitter's environment is not copied; give --env NAME for each"
                self._dropped("export", why)
            elif name in ("NONE", "NIL"):
                self._changed("export", "as always: only what is written out is set")
            elif re.fullmatch(VARIABLE, name):
                self._dropped("export", f"give --env {name} at submit")
            else:
                why = f"'{name[:20]}' is no name of a variable: quote a value with commas in it"
                self._dropped("export", why)

    def image(self, option: Option) -> None:
        """--container-image."""
        self.job["image"] = image_of_pyxis(option.value)

    def mounts(self, option: Option) -> None:
        """--container-mounts."""
        kept, lost = read_mounts(option.value)
        self.job["mounts"] = list(kept)
        if lost:
            why = f"{', '.join(lost)[:80]}: only absolute paths, with ro or rw, are mounted"
            self._dropped(option.name, why)

    def container(self, option: Option) -> None:
        """Further --container- options of Pyxis."""
        self._dropped(option.name, _CONTAINER[option.name])

    def hold(self, _: Option) -> None:
        """--hold."""
        self.is_held = True

    def _match(self, text: str) -> None:
        nodes = self.job.setdefault("nodes", {})
        assert isinstance(nodes, dict)
        nodes["match"] = f"({nodes['match']}) && ({text})" if "match" in nodes else text

    def _put(self, key: str, inner: str, value: Json) -> None:
        fields = self.job.setdefault(key, {})
        assert isinstance(fields, dict)
        fields[inner] = value


_CONTAINER: Final = {
    "container-workdir": "tasks start in workdir, in a container too; write cd into the script",
    "container-env": "what the job sets is set inside, in place of what the image sets",
    "container-mount-home": "the home directory is not mounted; name it under mounts",
    "no-container-mount-home": "as always: the home directory is not mounted",
    "container-remap-root": "jobs run as their user",
    "no-container-remap-root": "as always: jobs run as their user",
    "container-writable": "as always: the image's files may be changed, for this task alone",
    "container-readonly": "the image's files may be changed, for this task alone",
    "container-entrypoint": "the image's own entry point is not run",
    "no-container-entrypoint": "as always: the image's own entry point is not run",
}
_RULES: Final[dict[str, Callable[[_Reader, Option], None]]] = {
    "time": _Reader.time,
    "begin": _Reader.begin,
    "deadline": _Reader.begin,
    "partition": _Reader.partition,
    "account": _Reader.label,
    "qos": _Reader.label,
    "wckey": _Reader.label,
    "comment": _Reader.label,
    "array": _Reader.array,
    "dependency": _Reader.dependency,
    "signal": _Reader.signal,
    "requeue": _Reader.requeue,
    "no-requeue": _Reader.requeue,
    "exclusive": _Reader.exclusive,
    "oversubscribe": _Reader.oversubscribe,
    "nodelist": _Reader.nodelist,
    "exclude": _Reader.exclude,
    "constraint": _Reader.constraint,
    "segment": _Reader.segment,
    "switches": _Reader.switches,
    "spread-job": _Reader.spread,
    "reservation": _Reader.reservation,
    "priority": _Reader.priority,
    "nice": _Reader.priority,
    "chdir": _Reader.chdir,
    "output": _Reader.log,
    "error": _Reader.log,
    "export": _Reader.export,
    "container-image": _Reader.image,
    "container-mounts": _Reader.mounts,
    **dict.fromkeys(_CONTAINER, _Reader.container),
    "hold": _Reader.hold,
}  # fmt: skip
"""What each option does; those of the gang's shape are read together before."""
