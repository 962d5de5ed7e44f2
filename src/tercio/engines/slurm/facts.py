"""What Slurm says of jobs, nodes, partitions and switches: one shape for text and JSON answers.

JSON differs by version: up to v0.0.38 states are strings and numbers plain; later, states are
lists and numbers `{"set": bool, "infinite": bool, "number": N}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tercio.engines.slurm.tables import Openness, Phase, job_phase, node_openness
from tercio.engines.slurm.text import (
    Gres,
    expand_hosts,
    read_gres,
    read_memory,
    read_pairs,
    read_span,
)

JOB_FORMAT: Final = "%A|%T|%u|%P|%C|%m|%b|%L|%N|%v|%r|%k"
"""For `squeue -o`; the comment is last, as it may hold anything."""

_SIGNED: Final = re.compile(r" \[[^][]*@[^][]*\]$")
"""Who gave a reason and when, as `scontrol` puts it behind."""


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits or runs, ours or not.

    Attributes:
        number: of the job or array element.
        state: Slurm's own words.
        cpus: of the whole job.
        memory_bytes: per node, 0 when unknown.
        gres: per node; empty for requests in another form.
        left_s: until its time limit, None for none.
        nodes: where it runs.
        reason: why it waits, Slurm's word.
    """

    number: int
    state: str
    phase: Phase
    user: str = ""
    partition: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    gres: tuple[Gres, ...] = ()
    left_s: float | None = None
    nodes: tuple[str, ...] = ()
    reservation: str = ""
    reason: str = ""
    comment: str = ""


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the controller sees it. `cpus_used` and `memory_used_bytes` are allocations.

    Attributes:
        openness: whether it takes work.
        why: words and prose for which it does not.
        is_drained: whether it takes no work as somebody drained it; `reason` is what they said.
        is_registered: whether it has answered the controller since that started.
        gres, gres_used: configured and allocated.
    """

    name: str
    openness: Openness
    why: str = ""
    is_drained: bool = False
    is_registered: bool = True
    reason: str = ""
    gres: tuple[Gres, ...] = ()
    gres_used: tuple[Gres, ...] = ()
    cpus: int = 0
    cpus_used: int = 0
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    address: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition; `is_up` when it starts jobs; `limit_s` is its longest time limit."""

    name: str
    is_default: bool
    is_up: bool
    nodes: tuple[str, ...]
    limit_s: float | None = None


class ReservedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation of Slurm that is open now."""

    name: str
    nodes: tuple[str, ...]
    holders: str


def jobs_from_text(text: str) -> list[SlurmJob]:
    """Return the jobs of `squeue -h -o JOB_FORMAT`; lines that are none are passed over."""
    found = []
    for line in text.splitlines():
        fields = line.split("|", 11)
        if len(fields) == 12 and fields[0].isdigit():
            found.append(_job_from_fields(fields))
    return found


def _job_from_fields(fields: list[str]) -> SlurmJob:
    number, state, user, partition, cpus, memory, gres, left, nodes, reserved, reason, comment = (
        fields
    )
    return SlurmJob(
        number=int(number),
        state=state,
        phase=job_phase(state),
        user=user,
        partition=partition,
        cpus=int(cpus) if cpus.isdigit() else 0,
        memory_bytes=read_memory(memory),
        gres=read_gres(gres),
        left_s=read_span(left),
        nodes=expand_hosts(nodes),
        reservation="" if reserved == "(null)" else reserved,
        reason=reason,
        comment="" if comment == "(null)" else comment,
    )


def nodes_from_text(text: str) -> list[SlurmNode]:
    """Return the nodes of `scontrol show node -o -d`."""
    found = []
    for line in text.splitlines():
        pairs = read_pairs(line)
        if "NodeName" in pairs:
            found.append(_node_from_pairs(pairs))
    return found


def _node_from_pairs(pairs: Mapping[str, str]) -> SlurmNode:
    openness, words = node_openness(pairs.get("State", "UNKNOWN"))
    prose = pairs.get("Reason", "")
    return SlurmNode(
        name=pairs["NodeName"],
        openness=openness,
        why=_why(openness, words, prose),
        is_drained=_is_drained(words),
        is_registered=_is_registered(words),
        reason=_SIGNED.sub("", prose),
        gres=read_gres(pairs.get("Gres", "")),
        gres_used=read_gres(pairs.get("GresUsed", "")),
        cpus=_int(pairs.get("CPUEfctv") or pairs.get("CPUTot")),
        cpus_used=_int(pairs.get("CPUAlloc")),
        memory_bytes=read_memory(pairs.get("RealMemory", "")),
        memory_used_bytes=read_memory(pairs.get("AllocMem", "")),
        address=pairs.get("NodeAddr", ""),
        partitions=tuple(pairs.get("Partitions", "").split(",")),
        features=_words(pairs.get("ActiveFeatures", "")),
    )


def _is_drained(words: Iterable[str]) -> bool:
    return any(word.startswith(("drain", "drng")) for word in words)


def _is_registered(words: Iterable[str]) -> bool:
    return not any(word in ("unknown", "unk") for word in words)


def _why(openness: Openness, words: Iterable[str], prose: str) -> str:
    if openness is Openness.OPEN:
        return ""
    return f"{' '.join(words)} in Slurm" + (f": {prose}" if prose else "")


def _words(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(text.split(","))


def _int(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def partitions_from_text(text: str) -> list[Partition]:
    """Return the partitions of `scontrol show partition -o`."""
    found = []
    for line in text.splitlines():
        pairs = read_pairs(line)
        if "PartitionName" in pairs:
            found.append(
                Partition(
                    name=pairs["PartitionName"],
                    is_default=pairs.get("Default") == "YES",
                    is_up=pairs.get("State", "UP") == "UP",
                    nodes=expand_hosts(pairs.get("Nodes", "")),
                    limit_s=read_span(pairs.get("MaxTime", "")),
                )
            )
    return found


def reservations_from_text(text: str) -> list[ReservedNodes]:
    """Return the open reservations of `scontrol show reservation -o`."""
    found = []
    for line in text.splitlines():
        pairs = read_pairs(line)
        if "ReservationName" in pairs and pairs.get("State") == "ACTIVE":
            holders = [
                f"{what} {pairs[key]}"
                for key, what in (("Users", "user"), ("Accounts", "account"))
                if pairs.get(key, "(null)") not in ("(null)", "")
            ]
            found.append(
                ReservedNodes(
                    name=pairs["ReservationName"],
                    nodes=expand_hosts(pairs.get("Nodes", "")),
                    holders=", ".join(holders) or "others",
                )
            )
    return found


_LEVEL_NAMES: Final = ("rack", "block", "zone")


def topology_from_text(text: str) -> dict[str, dict[str, str]]:
    """Return the topology labels of each node from `scontrol show topology`.

    A leaf switch is a `rack`, the level above it a `block`, then `zone`; a block of the block
    plugin is an `island`, since its nodes share an accelerator fabric.
    """
    labels: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        pairs = read_pairs(line)
        if "SwitchName" in pairs:
            level = _int(pairs.get("Level"))
            name, label = pairs["SwitchName"], _LEVEL_NAMES[min(level, 2)]
        elif "BlockName" in pairs:
            name, label = pairs["BlockName"], "island"
        else:
            continue
        for node in expand_hosts(pairs.get("Nodes", "")):
            labels.setdefault(node, {}).setdefault(label, name)
    return labels


def jobs_from_json(body: Mapping[str, Any], now_s: float) -> list[SlurmJob]:
    """Return the unfinished jobs of a slurmrestd answer, of any version."""
    found = []
    for job in body.get("jobs", ()):
        state = _state(job.get("job_state"))
        phase = job_phase(state)
        if phase is Phase.ENDED:
            continue
        end_s = _number(job.get("end_time"))
        found.append(
            SlurmJob(
                number=int(job["job_id"]),
                state=state,
                phase=phase,
                user=job.get("user_name") or "",
                partition=job.get("partition") or "",
                cpus=int(_number(job.get("cpus")) or 0),
                memory_bytes=int(_number(job.get("memory_per_node")) or 0) << 20,
                gres=read_gres(job.get("tres_per_node") or ""),
                left_s=max(0.0, end_s - now_s) if end_s and phase is not Phase.WAITING else None,
                nodes=expand_hosts(job.get("nodes") or ""),
                reservation=job.get("resv_name") or "",
                reason=job.get("state_reason") or "",
                comment=_comment(job.get("comment")),
            )
        )
    return found


def nodes_from_json(body: Mapping[str, Any]) -> list[SlurmNode]:
    """Return the nodes of a slurmrestd answer, of any version."""
    found = []
    for node in body.get("nodes", ()):
        state = "+".join(
            part for part in (_state(node.get("state")), _state(node.get("state_flags"))) if part
        )
        openness, words = node_openness(state or "UNKNOWN")
        found.append(
            SlurmNode(
                name=node["name"],
                openness=openness,
                why=_why(openness, words, node.get("reason") or ""),
                is_drained=_is_drained(words),
                is_registered=_is_registered(words),
                reason=node.get("reason") or "",
                gres=read_gres(node.get("gres") or ""),
                gres_used=read_gres(node.get("gres_used") or ""),
                cpus=int(_number(node.get("effective_cpus")) or _number(node.get("cpus")) or 0),
                cpus_used=int(_number(node.get("alloc_cpus")) or 0),
                memory_bytes=int(_number(node.get("real_memory")) or 0) << 20,
                memory_used_bytes=int(_number(node.get("alloc_memory")) or 0) << 20,
                address=node.get("address") or "",
                partitions=tuple(node.get("partitions") or ()),
                features=_features(node.get("active_features")),
            )
        )
    return found


def _state(value: object) -> str:
    if isinstance(value, str):
        return value.upper()
    return ",".join(str(word).upper() for word in value) if isinstance(value, list) else ""


def _number(value: object) -> float | None:
    """Return a number in either form; None for not set or infinite."""
    if isinstance(value, Mapping):
        return float(value["number"]) if value.get("set") and not value.get("infinite") else None
    return float(value) if isinstance(value, (int, float)) else None


def _comment(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("job") or "")
    return str(value or "")


def _features(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(str(word) for word in value)
    return _words(str(value or ""))
