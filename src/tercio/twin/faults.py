"""Faults of nodes: drawn from distributions, or taken from a recorded fault trace."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.model.events import NodeLost, NodeRemoved, NodeReported
from tercio.model.ids import NodeName
from tercio.model.node import NodeSpec
from tercio.model.units import parse_duration_s
from tercio.twin.engine import Engine
from tercio.twin.loop import Loop
from tercio.twin.rng import Stream
from tercio.twin.trace import Trace

DAY_S: Final = 86_400.0
TRACED_SERVERS: Final = 400
"""Servers of the published fault trace, those without a fault counted."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A node that does not answer for a while.

    Attributes:
        node: which.
        at_s, down_s: when, and how long until it is back.
        cause: word for reports.
        is_crash: whether its tasks die at once; else they run on unseen until its own watchdog
            stops them.
        is_removal: whether its engine takes it out of the cluster instead, where nothing of it
            runs on, and puts it in again.
    """

    node: NodeName
    at_s: float
    down_s: float
    cause: str = "hardware"
    is_crash: bool = True
    is_removal: bool = False


class Climate(msgspec.Struct, frozen=True, kw_only=True):
    """How often nodes fail, and for how long. A rate of None never happens.

    Attributes:
        mean_between_s: mean time between faults of one node.
        shape: of the Weibull distribution of that time; 1 is exponential.
        lemon_ratio: part of the nodes that are lemons.
        lemon_factor: how much more often they fail.
        rack_between_s: mean time between faults of one whole rack (label `rack`).
        wave_every_s: a new driver goes round so often: every node is down once, one after another.
        wave_down_s: for so long each.
        repair_median_s, repair_sigma: of the log-normal time to repair.
        partition_ratio: part of the faults in which the tasks run on unseen.
    """

    mean_between_s: float | None = None
    shape: float = 1.0
    lemon_ratio: float = 0.0
    lemon_factor: float = 10.0
    rack_between_s: float | None = None
    wave_every_s: float | None = None
    wave_down_s: float = 900.0
    repair_median_s: float = 20 * 3600.0
    repair_sigma: float = 1.5
    partition_ratio: float = 0.0


def draw(
    climate: Climate, nodes: Sequence[NodeSpec], *, start_s: float, until_s: float, seed: int
) -> tuple[Fault, ...]:
    """Draw the faults of a span of time, in order."""
    found: list[Fault] = []
    kinds = Stream(seed, "faults/kinds")
    scale = 1.0 / _gamma_of_inverse(climate.shape)
    for node in nodes:
        stream = Stream(seed, f"faults/{node.name}")
        is_lemon = stream.chance(climate.lemon_ratio)
        if climate.mean_between_s is None:
            continue
        mean_s = climate.mean_between_s / (climate.lemon_factor if is_lemon else 1.0)
        at_s = start_s + stream.weibull(climate.shape, mean_s * scale)
        while at_s < until_s:
            down_s = stream.lognormal(climate.repair_median_s, climate.repair_sigma)
            is_crash = not kinds.chance(climate.partition_ratio)
            cause = "lemon" if is_lemon else "hardware"
            found.append(
                Fault(node=node.name, at_s=at_s, down_s=down_s, cause=cause, is_crash=is_crash)
            )
            at_s += down_s + stream.weibull(climate.shape, mean_s * scale)
    found += _racks(climate, nodes, start_s, until_s, seed)
    found += _waves(climate, nodes, start_s, until_s)
    return tuple(sorted(found, key=lambda fault: (fault.at_s, fault.node)))


def draw_over(
    climate: Climate, nodes: Sequence[NodeSpec], trace: Trace, *, seed: int
) -> tuple[Fault, ...]:
    """Draw the faults of a replay: over the span of its jobs, and as long again for its tail."""
    start_s = trace.jobs[0].submit_s
    last_s = max(job.submit_s + job.run_s for job in trace.jobs)
    until_s = last_s + (last_s - start_s)
    return draw(climate, nodes, start_s=start_s, until_s=until_s, seed=seed)


def _gamma_of_inverse(shape: float) -> float:
    """Mean of a Weibull distribution of scale 1."""
    return math.gamma(1.0 + 1.0 / shape)


def _racks(
    climate: Climate, nodes: Sequence[NodeSpec], start_s: float, until_s: float, seed: int
) -> list[Fault]:
    if climate.rack_between_s is None:
        return []
    racks: dict[str, list[NodeName]] = {}
    for node in nodes:
        if "rack" in node.labels:
            racks.setdefault(node.labels["rack"], []).append(node.name)
    found: list[Fault] = []
    for rack, names in racks.items():
        stream = Stream(seed, f"faults/rack/{rack}")
        at_s = start_s + stream.exponential(climate.rack_between_s)
        while at_s < until_s:
            down_s = stream.lognormal(climate.repair_median_s, climate.repair_sigma)
            found += [Fault(node=n, at_s=at_s, down_s=down_s, cause="rack") for n in names]
            at_s += down_s + stream.exponential(climate.rack_between_s)
    return found


def _waves(
    climate: Climate, nodes: Sequence[NodeSpec], start_s: float, until_s: float
) -> list[Fault]:
    if climate.wave_every_s is None:
        return []
    found: list[Fault] = []
    wave_s = start_s + climate.wave_every_s
    while wave_s < until_s:
        found += [
            Fault(
                node=node.name, at_s=wave_s + at * climate.wave_down_s,
                down_s=climate.wave_down_s, cause="driver",
            )
            for at, node in enumerate(nodes)
        ]  # fmt: skip
        wave_s += climate.wave_every_s
    return found


class _Line(msgspec.Struct):
    node_id: str
    event_time: float
    event_type: str
    fault_type: dict[str, str] = {}


def read_faults(
    text: str, source: str, nodes: Sequence[NodeSpec], *, start_s: float, seed: int = 0
) -> tuple[Fault, ...]:
    """Read a recorded fault trace and lay it over a cluster from an instant on.

    The trace is a list of `{node_id, event_time (days), event_type: fault_start | fault_end,
    fault_type: {Class}}` (InfiniteHBD, SIGCOMM 2025). It names only servers that failed, 231
    of 400: each node gets one of the 400, drawn by the seed, and a faultless one may be it.

    Raises:
        UserError: the text is not of this form.
    """
    try:
        lines = msgspec.convert(json.loads(text), list[_Line])
    except (ValueError, msgspec.ValidationError) as error:
        hint = "a list of {node_id, event_time, event_type, fault_type}"
        raise UserError(f"{source}: no fault trace: {error}", hint=hint, field="faults") from None
    lines.sort(key=lambda line: line.event_time)
    servers = list(dict.fromkeys(line.node_id for line in lines))
    names_of = _cast(servers, nodes, seed)
    since: dict[str, _Line] = {}
    found: list[Fault] = []
    for line in lines:
        if line.event_type == "fault_start":
            since.setdefault(line.node_id, line)
        elif (begin := since.pop(line.node_id, None)) is not None:
            found += _faults(names_of, begin, line.event_time, start_s)
    last_day = lines[-1].event_time if lines else 0.0
    for begin in since.values():
        found += _faults(names_of, begin, last_day, start_s)
    return tuple(sorted(found, key=lambda fault: (fault.at_s, fault.node)))


def _cast(
    servers: Sequence[str], nodes: Sequence[NodeSpec], seed: int
) -> dict[str, list[NodeName]]:
    """Which nodes play which server; none is played twice before all were played once."""
    stream = Stream(seed, "faults/servers")
    roles = [*servers, *[""] * (TRACED_SERVERS - len(servers))]
    deck: list[str] = []
    names_of: dict[str, list[NodeName]] = {}
    for node in nodes:
        deck = deck or list(roles)
        role = deck.pop(stream.whole(len(deck)))
        names_of.setdefault(role, []).append(node.name)
    return names_of


def _faults(
    names_of: Mapping[str, Sequence[NodeName]], begin: _Line, end_day: float, start_s: float
) -> list[Fault]:
    return [
        Fault(
            node=name,
            at_s=start_s + begin.event_time * DAY_S,
            down_s=(end_day - begin.event_time) * DAY_S,
            cause=begin.fault_type.get("Class", "unknown"),
        )
        for name in names_of.get(begin.node_id, ())
    ]


class Weather:
    """Lets the faults happen.

    Attributes:
        begun: faults so far.
        up: devices of nodes that answer.
    """

    def __init__(
        self, loop: Loop, engine: Engine, nodes: Sequence[NodeSpec], faults: Sequence[Fault]
    ) -> None:
        self.loop, self.engine = loop, engine
        self.begun = 0
        self.up = sum(len(node.devices) for node in nodes)
        self._specs = {node.name: node for node in nodes}
        self._depth: dict[NodeName, int] = {}
        self._faults = sorted(faults, key=lambda fault: (fault.at_s, fault.node))
        self._next = bisect.bisect_left([fault.at_s for fault in self._faults], loop.now_s)
        self._arm()

    def _arm(self) -> None:
        if self._next < len(self._faults):
            self.loop.at(self._faults[self._next].at_s, self._strike, self._faults[self._next])

    def _strike(self, fault: Fault) -> None:
        self._next += 1
        self._arm()
        self.strike(fault)

    def strike(self, fault: Fault) -> None:
        """Begin one fault now."""
        self.begun += 1
        now_s, node = self.loop.now_s, fault.node
        self.loop.at(now_s + fault.down_s, self._mend, node)
        self._depth[node] = self._depth.get(node, 0) + 1
        if self._depth[node] > 1:
            return
        self.up -= len(self._specs[node].devices)
        if fault.is_removal:
            self.engine.lose(node, is_crash=True)
            self.loop.pending.append(NodeRemoved(at_s=now_s, node=node))
            return
        self.engine.lose(node, is_crash=fault.is_crash)
        self.loop.pending.append(NodeLost(at_s=now_s, node=node, reason=fault.cause))
        if not fault.is_crash:
            fence_s = self.loop.driver.cluster.policy.fence_after_s
            self.loop.at(now_s + 0.9 * fence_s, self._watchdog, node)

    def _watchdog(self, node: NodeName) -> None:
        """A node that hears nobody ends its tasks before anybody else starts them again."""
        if self._depth.get(node):
            self.engine.kill_tasks(node)

    def _mend(self, node: NodeName) -> None:
        self._depth[node] -= 1
        if self._depth[node]:
            return
        self.up += len(self._specs[node].devices)
        spec = self.engine.as_cut(self._specs[node])
        self.loop.pending.append(NodeReported(at_s=self.loop.now_s, spec=spec))
        self.loop.pending += self.engine.bring_back(node)


_WORDS: Final[Mapping[str, str]] = {
    "mean": "mean_between_s", "shape": "shape", "lemons": "lemon_ratio",
    "lemon-factor": "lemon_factor", "rack": "rack_between_s", "wave": "wave_every_s",
    "wave-down": "wave_down_s", "repair": "repair_median_s", "repair-sigma": "repair_sigma",
    "partitions": "partition_ratio",
}  # fmt: skip


def parse_climate(text: str) -> Climate:
    """Read `mean=30d,repair=20h,shape=0.8,lemons=0.05,rack=90d,wave=30d`; times have units.

    Raises:
        UserError: naming the word.
    """
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, sign, amount = part.partition("=")
        name = _WORDS.get(word)
        if not sign or name is None:
            hint = did_you_mean(word, _WORDS) or f"words: {', '.join(_WORDS)}"
            raise UserError(f"faults: {part!r} is not understood", hint=hint, field="faults")
        if name.endswith("_s"):
            values[name] = parse_duration_s(amount, field=f"faults.{word}")
            continue
        try:
            values[name] = float(amount)
        except ValueError:
            values[name] = -1.0
        if not 0.0 <= values[name] <= (1.0 if name.endswith("_ratio") else 1e6):
            bounds = "from 0 to 1" if name.endswith("_ratio") else "of at least 0"
            raise UserError(f"faults: {word} is no number {bounds}: {amount!r}", field="faults")
    if values.get("shape") == 0.0:
        raise UserError("faults: shape is 0", hint="1 is exponential", field="faults")
    return Climate(**values)
