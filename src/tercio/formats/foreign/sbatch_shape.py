"""The options of one script, later over earlier ones, and the shape of gang they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from tercio.errors import UserError
from tercio.formats.cards import find_card
from tercio.formats.document import Json
from tercio.formats.foreign import sbatch_values as values
from tercio.formats.foreign.draft import JobObject, Report, SiteMap
from tercio.formats.foreign.sbatch_options import Option

T = TypeVar("T")

SHAPE: Final = frozenset(
    {
        "job-name", "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "gres", "gpus",
        "gpus-per-node", "gpus-per-task", "cpus-per-task", "cpus-per-gpu", "mincpus", "mem",
        "mem-per-cpu", "mem-per-gpu", "wrap",
    }
)  # fmt: skip
"""Options that `_layout` and the script read."""


class Options:
    """Options by name, read with their line in every message."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.report = Report()
        self.options: dict[str, Option] = {}

    def gather(self, options: Iterable[Option]) -> None:
        """Take options in the place of earlier ones of the same name."""
        for option in (each for given in options for each in _parts(given)):
            if option.name in ("gres", "gpus-per-node"):
                # Of these two the one given last counts.
                other = "gpus-per-node" if option.name == "gres" else "gres"
                replaced = self.options.pop(other, None)
                if replaced is not None and replaced.line and option.line:
                    why = f"--{option.name} stands after it, and the last of the two counts"
                    self.report.dropped(f"--{other}", replaced.value, why, replaced.line)
            earlier = self.options.pop(option.name, None)
            self.options[option.name] = option
            if earlier is not None and earlier.line and option.line:
                why = f"line {option.line} has it again, and the last one counts"
                self.report.dropped(f"--{option.name}", earlier.value, why, earlier.line)

    def _text(self, name: str) -> str | None:
        option = self.options.get(name)
        return None if option is None else option.value

    def _count(self, name: str) -> int | None:
        return self._try(name, lambda option: values.number(option.value))

    def _try(self, name: str, rule: Callable[[Option], T]) -> T | None:
        """Apply a rule to an option that is given; a fault in its value gets line and name."""
        option = self.options.get(name)
        if option is None:
            return None
        try:
            return rule(option)
        except UserError as error:
            where = f"{self.source}:{option.line}" if option.line else "sbatch"
            raise UserError(
                f"{where}: --{name}: {error.message}", hint=error.hint, field=name
            ) from None

    def _changed(self, name: str, why: str) -> None:
        option = self.options[name]
        self.report.changed(f"--{name}", option.value, why, option.line)

    def _dropped(self, name: str, why: str) -> None:
        option = self.options[name]
        self.report.dropped(f"--{name}", option.value, why, option.line)


def _parts(option: Option) -> Iterator[Option]:
    """Yield an option; `--tres-per-task=cpu:4,gres/gpu:1` as the two that say the same."""
    if option.name != "tres-per-task":
        yield option
        return
    rest = []
    for piece in option.value.split(","):
        found = re.fullmatch(r"(cpu|gres/gpu)((?:[:=][A-Za-z0-9_.-]+)?)[:=](\d+)", piece.strip())
        if found is None or (found[1] == "cpu" and found[2]):
            rest.append(piece)
        elif found[1] == "cpu":
            yield Option("cpus-per-task", found[3], option.line)
        else:
            yield Option("gpus-per-task", f"{found[2]}:{found[3]}".lstrip(":="), option.line)
    if rest:
        yield Option(option.name, ",".join(rest), option.line)


class Shape(Options):
    """How many tasks, and what each of them needs."""

    def __init__(self, source: str, sites: SiteMap) -> None:
        super().__init__(source)
        self.sites = sites
        self.job: JobObject = {}
        self.type = self.typed_by = ""

    def _layout(self) -> int:
        """Set tasks, per_task and the variables that tell scripts of them; return tasks a node."""
        nodes = self._try("nodes", self._nodes)
        ntasks = self._count("ntasks")
        per_node = self._count("ntasks-per-node")
        gpus_per_rank = self._count("ntasks-per-gpu")
        if ntasks is None and per_node is None:
            ntasks = self._ranks_by_gpus()
        if nodes is None and ntasks is not None and per_node is not None:
            nodes = -(-ntasks // per_node)
        if nodes is None:
            # Slurm would choose the nodes: one task of ours for each of its tasks leaves it open.
            nodes, per_node = (ntasks or 1), 1
        if per_node is None:
            per_node = -(-ntasks // nodes) if ntasks is not None else 1
            if ntasks is not None and ntasks % nodes:
                why = f"{nodes} nodes cannot share {ntasks} tasks evenly: {per_node} on each"
                self._changed("ntasks", why)
        gpus = self._gpus(nodes, per_node)
        cpus = self._cores(per_node, gpus)
        self.job["tasks"] = nodes
        self.job["per_task"] = {
            "devices": self._devices(gpus),
            "cpus": cpus,
            "memory": self._memory(cpus, gpus, per_node),
        }
        if gpus_per_rank is not None and not self.options.get("ntasks-per-node"):
            per_node = max(1, gpus * gpus_per_rank)
        env: dict[str, Json] = {
            "SLURM_NTASKS_PER_NODE": str(per_node), "SLURM_NTASKS": str(per_node * nodes),
        }  # fmt: skip
        if "cpus-per-task" in self.options:
            env["SLURM_CPUS_PER_TASK"] = str(self._count("cpus-per-task"))
        self.job["env"] = env
        return per_node

    def _ranks_by_gpus(self) -> int | None:
        """Return the tasks that `--gpus=16 --gpus-per-task=2` says without naming them."""
        if "gpus" not in self.options or "gpus-per-task" not in self.options:
            return None
        all_of = self._try("gpus", lambda o: values.typed_count(o.value).amount) or 0
        each = self._try("gpus-per-task", lambda o: values.typed_count(o.value).amount) or 0
        return all_of // each if each and all_of >= each else None

    def _nodes(self, option: Option) -> int:
        low, high = values.node_range(option.value)
        if high != low:
            self._changed("nodes", f"the gang has exactly {low} task{'s' if low > 1 else ''}")
        return low

    def _gpus(self, nodes: int, per_node: int) -> int:
        """Return the devices of a node, and keep the type that an option names."""
        counts: dict[str, int] = {}
        for name in ("gpus-per-node", "gres", "gpus-per-task", "gpus"):
            found = self._gpu_rows(name) if name in self.options else []
            if not found:
                continue
            count = sum(row.amount for row in found)
            if name == "gpus-per-task":
                count *= per_node
            elif name == "gpus":
                if count % nodes and not counts:
                    why = f"{nodes} nodes cannot share {count} evenly: {-(-count // nodes)} on each"
                    self._changed(name, why)
                count = -(-count // nodes)
            first = next(iter(counts), name)
            if counts and counts[first] != count:
                self._dropped(name, f"--{first} says {counts[first]} on each node, and counts")
            counts[name] = count
            if not self.type:
                self.type, self.typed_by = found[0].type, name
        return next(iter(counts.values()), 0)

    def _gpu_rows(self, name: str) -> list[values.Gres]:
        rows = (
            self._try(
                name,
                lambda o: values.gres(o.value) if name == "gres" else [values.typed_count(o.value)],
            )
            or []
        )
        if name != "gres" and "," in self.options[name].value:
            self._changed(name, "a node has devices of one type: the first is asked for")
        found = [row for row in rows if row.name == "gpu"]
        if len({row.type for row in found}) > 1:
            self._changed(name, f"a node has devices of one type: {found[0].type or 'any'}")
        for row in rows:
            if row.name in ("shard", "mps") and row.amount and not found:
                why = f"a {row.name} has no size here, so a whole device: write devices: H100:0.5"
                self._changed(name, why)
                found = [values.Gres("gpu", row.type, 1)]
            elif row.name not in ("gpu", "none"):
                self._dropped(name, f"{row.name} is not counted here")
        return found

    def _devices(self, count: int) -> str | None:
        if not count:
            return None
        partition = self._text("partition")
        mapped = next(
            (
                self.sites.partitions[name]
                for name in (partition or "").split(",")
                if name in self.sites.partitions
            ),
            "",
        )
        constraint = self._text("constraint") or ""
        named = self.type or (constraint if find_card(constraint) else "")
        card = find_card(named) if named else None
        slice_ = re.fullmatch(r"(?:(.+?)[_-])?(\d{1,2}g\.\d{1,4}gb)", named)
        if slice_ is not None:
            whole = find_card(slice_[1].removeprefix("nvidia_")) if slice_[1] else None
            return f"{whole.type if whole else mapped or 'nvidia'}/{slice_[2]}:{count}"
        if named and card is None:
            self._changed(self.typed_by, f"'{named}' is no known device type: any device will do")
        if card is not None:
            return f"{card.type}:{count}"
        return f"{mapped}:{count}" if mapped else str(count)

    def _cores(self, per_node: int, gpus: int) -> int | None:
        per_rank = self._count("cpus-per-task")
        if per_rank is not None:
            return per_rank * per_node
        per_gpu = self._count("cpus-per-gpu")
        if per_gpu is not None:
            return per_gpu * gpus
        return self._count("mincpus")

    def _memory(self, cpus: int | None, gpus: int, per_node: int) -> str | None:
        # Slurm gives each of its tasks one core where nothing is said.
        cores = cpus or per_node
        for name, factor in (("mem", 1), ("mem-per-cpu", cores), ("mem-per-gpu", gpus or 1)):
            option = self.options.get(name)
            size = self._try(name, lambda o: values.memory_bytes(o.value)) if option else None
            if size == 0:
                self._changed(name, "all memory of a node is taken by exclusive: true")
                self.job["exclusive"] = True
            elif size is not None:
                return values.mebibytes(-(-size * factor // 1024**2))
        return None
