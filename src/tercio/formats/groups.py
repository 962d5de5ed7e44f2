"""Task groups of a job file: size, request per task, topology, nested gangs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.formats.cursor import Cursor, Fields
from tercio.formats.devices import parse_devices
from tercio.model.job import TaskGroup
from tercio.model.resources import NO_DEVICE, DeviceRequest, Request
from tercio.model.topology import SliceRequest, TopologyRequest

AUTO: Final = "auto"
"""Word for devices that sizing chooses."""
MAX_TASKS: Final = 100_000
MAX_GROUPS: Final = 256
MAX_NESTING: Final = 4
GROUP_NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
GROUP_KEYS: Final = (
    "name", "tasks", "per_task", "topology", "subgroups", "min_subgroups", "exclusive",
)  # fmt: skip
FLAT_KEYS: Final = GROUP_KEYS[1:]
PER_TASK_KEYS: Final = ("devices", "cpus", "memory", "shm")
TOPOLOGY_KEYS: Final = ("same", "prefer", "spread", "slice", "leader")
RANGE_FORM: Final = "write an exact number such as 4, or 2..8 for an elastic gang of at least 2"

_PER_TASK_WORDS: Final = {
    word: "write it as devices, such as devices: H100:8"
    for word in ("gpu", "gpus", "accelerators", "device", "gres", "gpus_per_task")
} | {
    "cpu": "did you mean 'cpus'?",
    "mem": "did you mean 'memory'?",
    "shm_size": "did you mean 'shm'?",
}
_GROUP_WORDS: Final = {
    "nodes": "write the size of the gang as tasks",
    "replicas": "write the size of the gang as tasks",
    "count": "write the size of the gang as tasks",
} | {word: f"write it below per_task, as per_task: {{{word}: ...}}" for word in PER_TASK_KEYS}


class GroupContext(msgspec.Struct, frozen=True, kw_only=True):
    """What reading a group needs to know: topology levels and device types of the cluster."""

    levels: tuple[str, ...]
    types: tuple[str, ...] = ()


def read_groups(at: Cursor, context: GroupContext) -> tuple[TaskGroup, ...]:
    """Read `groups`: at least one, names unique and given where there are several."""
    rows = at.rows("write a list of groups, each with tasks and per_task", most=MAX_GROUPS)
    if not rows:
        raise at.fault("no group", "write one group, or write tasks and per_task at the top level")
    groups = tuple(read_group(row, context, depth=0) for row in rows)
    _check_names(rows, groups)
    return groups


def read_group(at: Cursor, context: GroupContext, *, depth: int) -> TaskGroup:
    """Read one group of the list."""
    fields = at.fields(GROUP_KEYS, moved=_GROUP_WORDS)
    name = fields.read("name", _name, "")
    return read_group_fields(fields, context, name=name, depth=depth)


def read_group_fields(
    fields: Fields, context: GroupContext, *, name: str = "", depth: int = 0
) -> TaskGroup:
    """Read the keys of a group; also those of the unnamed group at the top level of a file."""
    low, high = fields.read("tasks", lambda at: read_range(at, MAX_TASKS), (1, None))
    subgroups = fields.read("subgroups", lambda at: _subgroups(at, context, depth), ())
    if subgroups:
        for key in ("tasks", "per_task"):
            inner = fields.find(key)
            if inner is not None:
                fix = f"write {key} in each subgroup, not beside subgroups"
                raise inner.fault("a group of subgroups has no tasks of its own", fix)
    elif minimum := fields.find("min_subgroups"):
        raise minimum.fault("there are no subgroups", "remove it, or write subgroups")
    topology = fields.read("topology", lambda at: read_topology(at, context), None)
    least = fields.read("min_subgroups", lambda at: at.integer(1, len(subgroups)), None)
    if least is not None and least < len(subgroups) and any(
        sub.topology is not None and sub.topology.leader for sub in subgroups
    ):  # fmt: skip
        raise fields.at.child("min_subgroups", fields.at.node).fault(
            "cannot be combined with a leader among the subgroups",
            "remove it, or put the leader and its group into one subgroup of their own",
        )
    return TaskGroup(
        name=name,
        tasks=low,
        tasks_max=high,
        per_task=fields.read("per_task", lambda at: read_request(at, context), Request()),
        topology=topology,
        subgroups=subgroups,
        min_subgroups=least,
        exclusive=fields.read("exclusive", Cursor.boolean, False),
    )


def read_range(at: Cursor, most: int) -> tuple[int, int | None]:
    """Read `4` or `2..8`: smallest and largest number, None for an exact one."""
    value = at.node.value
    if isinstance(value, int) and not isinstance(value, bool):
        return at.integer(1, most), None
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", at.word(RANGE_FORM), re.ASCII)
    if not found or isinstance(value, bool | float):
        raise at.wrong("a number of tasks", RANGE_FORM)
    low, high = int(found.group(1)), int(found.group(2) or found.group(1))
    if low < 1 or high > most:
        raise at.fault(f"{at.shown()} is out of bounds", f"write from 1 to {most}")
    if high < low:
        raise at.fault(f"{at.shown()} runs backwards", f"write {high}..{low}")
    return low, high if high > low else None


def read_request(at: Cursor, context: GroupContext) -> Request:
    """Read `per_task`."""
    fields = at.fields(PER_TASK_KEYS, moved=_PER_TASK_WORDS)
    memory = fields.read("memory", Cursor.memory_bytes, None)
    shm = fields.read("shm", Cursor.memory_bytes, None)
    if memory is not None and shm is not None and shm > memory:
        inner = fields.find("shm")
        assert inner is not None
        fix = "raise memory, or write a smaller shm: it is a part of the memory"
        raise inner.fault(f"{inner.shown()} is more than the memory", fix)
    devices = fields.find("devices")
    is_auto = devices is not None and devices.node.value == AUTO
    return Request(
        is_auto=is_auto,
        devices=(NO_DEVICE,) if devices is None or is_auto else read_devices(devices, context),
        cpus_milli=fields.read("cpus", Cursor.cores_milli, None),
        memory_bytes=memory,
        shm_bytes=shm,
    )


def read_devices(at: Cursor, context: GroupContext) -> tuple[DeviceRequest, ...]:
    """Read a device request."""
    fix = 'write one text such as H100:8 or "H100:8 | A100-80GB:8"'
    if isinstance(at.node.value, bool):
        raise at.wrong("a device request", fix)
    text = at.word(fix)
    try:
        return parse_devices(text, types=context.types)
    except UserError as error:
        raise at.fault(error.message, error.hint or fix) from None


def read_topology(at: Cursor, context: GroupContext) -> TopologyRequest | None:
    """Read `topology` of a group or of a whole job; None when it asks for nothing."""
    fields = at.fields(TOPOLOGY_KEYS)
    request = TopologyRequest(
        same=fields.read("same", lambda a: _level(a, context), None),
        prefer=fields.read("prefer", lambda a: _level(a, context), None),
        spread=fields.read("spread", lambda a: _level(a, context), None),
        slice=fields.read("slice", lambda a: _slice(a, context), None),
        leader=fields.read("leader", _name, None),
    )
    if request.same is not None and request.prefer is not None:
        order = list(context.levels)
        if order.index(request.prefer) >= order.index(request.same):
            inner = fields.find("prefer")
            assert inner is not None
            fix = f"prefer a level smaller than {request.same}, or remove it"
            raise inner.fault(f"{inner.shown()} is no smaller than same: {request.same}", fix)
    if request.same is not None and request.same == request.spread:
        inner = fields.find("spread")
        assert inner is not None
        fix = "spread over a level smaller than same"
        raise inner.fault(f"{inner.shown()} is also the level of same", fix)
    return request if request != TopologyRequest() else None


def _level(at: Cursor, context: GroupContext) -> str:
    return at.option(context.levels)


def _slice(at: Cursor, context: GroupContext) -> SliceRequest:
    fields = at.fields(("tasks", "same"))
    return SliceRequest(
        tasks=fields.need("tasks", lambda a: a.integer(1, MAX_TASKS), "write how many tasks"),
        same=fields.need("same", lambda a: _level(a, context), "write a level such as island"),
    )


def _name(at: Cursor) -> str:
    fix = "write 1 to 63 of a-z, 0-9 and -, such as trainer"
    return at.word(fix, pattern=GROUP_NAME)


def _subgroups(at: Cursor, context: GroupContext, depth: int) -> tuple[TaskGroup, ...]:
    if depth >= MAX_NESTING:
        raise at.fault("too deeply nested", f"nest gangs at most {MAX_NESTING} deep")
    rows = at.rows("write a list of groups", most=MAX_GROUPS)
    groups = tuple(read_group(row, context, depth=depth + 1) for row in rows)
    _check_names(rows, groups)
    check_leaders(at, groups)
    return groups


def check_leaders(at: Cursor, found: Sequence[TaskGroup]) -> None:
    """Refuse a leader that no group beside it can follow."""
    by_name = {group.name: group for group in found}
    for index, row in enumerate(at.rows("write a list")):
        topology = found[index].topology
        if topology is None or topology.leader is None:
            continue
        fault = row.child("topology.leader", row.node).fault
        leader = by_name.get(topology.leader)
        if leader is None:
            names = list(by_name)
            fix = did_you_mean(topology.leader, names) or f"groups here: {', '.join(names)}"
            raise fault(f"'{topology.leader}' is no group of this job", fix)
        if leader is found[index]:
            raise fault("a group cannot lead itself", "name another group")
        if leader.subgroups or leader.tasks != 1 or leader.tasks_max is not None:
            fix = f"give '{leader.name}' tasks: 1, and its other tasks a group of their own"
            raise fault(f"leader '{leader.name}' has more than one task", fix)
        if leader.topology is not None and leader.topology.leader is not None:
            fix = f"let both follow '{leader.topology.leader}'"
            raise fault(f"leader '{leader.name}' follows another group itself", fix)
        if topology.same is None and topology.prefer is None:
            fix = f"write {{same: rack, leader: {leader.name}}}"
            raise fault("says not of which level the domain is", fix)


def _check_names(rows: Sequence[Cursor], groups: Sequence[TaskGroup]) -> None:
    seen: list[str] = []
    for row, group in zip(rows, groups, strict=True):
        if len(groups) > 1 and not group.name:
            raise row.fault("has no name", "name each of several groups, such as name: trainer")
        if group.name in seen:
            raise row.child("name", row.node).fault(
                f"'{group.name}' stands twice", "give each group its own name"
            )
        seen.append(group.name)
