"""What stands in the way of a job of several groups: the group that decides, or all together.

Of groups of which not all must start, those furthest from a start are left out first: a group
that could never fit says nothing of a job that starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from tercio.model.reasons import Reason
from tercio.model.resources import DEVICES, WHOLE_DEVICE_MILLI
from tercio.model.topology import SITE
from tercio.sched.classes import JobClass
from tercio.sched.gang import Room
from tercio.sched.need import ANY, Branch, Leaf, Mode, Need, Shape
from tercio.sched.table import Ints, Table

WHOLE_NODES: Final = "whole nodes"
"""What exclusive tasks are short of together."""


class Stage(IntEnum):
    """How far a group is from a start, furthest first."""

    NEVER = 0
    DOWN = 1
    SHORT = 2


class Blocker(NamedTuple):
    """A group that does not fit by itself and without which the job cannot start."""

    stage: Stage
    reason: Reason
    leaf: Leaf
    need: Need


class Shortage(NamedTuple):
    """What groups that each fit alone are short of together.

    Attributes:
        what: a device type, or `WHOLE_NODES`.
        wanted, there: thousandths of devices, or nodes.
        level: the level one domain of which must hold them all, or empty.
        domain: the domain of that level that holds the most of it.
    """

    what: str
    wanted: int
    there: int
    level: str = ""
    domain: str = ""


def blocker(
    shape: Shape, needs: Sequence[Need], test: Callable[[Leaf, Need], tuple[Stage, Reason] | None]
) -> Blocker | None:
    """Return the group whose own blocker is the job's, or None where enough groups pass."""

    def visit(group: Branch | Leaf) -> Blocker | None:
        if isinstance(group, Leaf):
            need = needs[group.index]
            found = test(group, need)
            return None if found is None else Blocker(*found, group, need)
        parts = [visit(child) for child in group.children]
        blocked = [part for part in parts if part is not None]
        spare = max(0, len(parts) - group.minimum)
        if len(blocked) <= spare:
            return None
        stage = sorted(part.stage for part in blocked)[spare]
        return next(part for part in blocked if part.stage is stage)

    return visit(shape.root)


def shortage(
    job_class: JobClass, combination: Sequence[int], room: Room, *, is_empty: bool
) -> Shortage | None:
    """Count whether all groups together ask for more than there is.

    `is_empty`: of the cluster as it is when nothing runs, else of what is free now. A definite
    yes; that nothing is short of by counting does not mean that the groups fit together.
    """
    if len(job_class.shape.leaves) == 1:
        return None
    needs = job_class.shape.needs(combination)
    wanted = _wanted(job_class, combination, needs, room)
    columns = _columns(job_class, needs, room, is_empty=is_empty)
    exclusive = sum(
        leaf.tasks
        for leaf, need in zip(job_class.shape.leaves, needs, strict=True)
        if need.exclusive and not leaf.is_optional
    )
    if exclusive:
        wanted[WHOLE_NODES] = exclusive
    table = room.fit(needs[0]).table
    for level, domain in _levels(job_class, table):
        found = _in_best_domain(wanted, columns, level, domain)
        if found is not None:
            names = table.domain_names.get(level, [])
            at = found[1]
            return found[0]._replace(domain=names[at] if at < len(names) else "")
    return None


def _levels(job_class: JobClass, table: Table) -> list[tuple[str, Ints]]:
    """Everywhere, and the levels one domain of which must hold the whole job."""
    levels = [("", np.zeros(table.count, np.int64))]
    if len(table.domain_names.get(SITE, [])) > 1:
        levels.append((SITE, table.domains[SITE].astype(np.int64)))
    spec = job_class.spec.topology
    if spec is not None and spec.same in table.domains:
        levels.append((spec.same, table.domains[spec.same].astype(np.int64)))
    return levels


def _in_best_domain(
    wanted: dict[str, int], columns: dict[str, Ints], level: str, domain: Ints
) -> tuple[Shortage, int] | None:
    """What the domain that comes nearest is short of, and its number; None if one has enough."""
    known = domain >= 0
    if not known.any():
        return None
    count = int(domain.max()) + 1
    parts = np.full(count, np.inf)
    there = {}
    for what, amount in wanted.items():
        if what not in columns:
            continue
        sums = np.bincount(domain[known], columns[what][known], count)
        there[what] = totals = sums.astype(np.int64)
        parts = np.minimum(parts, totals / max(amount, 1))
    best = int(parts.argmax())
    if not there or parts.item(best) >= 1.0:
        return None
    what = min(there, key=lambda name: there[name].item(best) / max(wanted[name], 1))
    return Shortage(what, wanted[what], there[what].item(best), level), best


def _wanted(
    job_class: JobClass, combination: Sequence[int], needs: Sequence[Need], room: Room
) -> dict[str, int]:
    """Thousandths of devices by type that the job takes at least, slices not counted."""
    pairs = list(zip(job_class.shape.leaves, needs, strict=True))
    if any(leaf.is_optional for leaf, _ in pairs):
        if any(need.mode is Mode.MIG for need in needs):
            return {}
        at = job_class.shape.combinations.index(tuple(combination))
        least = job_class.amounts[at]
        types = dict.fromkeys(need.type for need in needs if need.type is not None)
        named = {name: least.get(name, 0) for name in types if name != ANY}
        if ANY in types:
            named[ANY] = least.get(DEVICES, 0) - sum(named.values())
        return {name: amount for name, amount in named.items() if amount > 0}
    found: dict[str, int] = {}
    for leaf, need in pairs:
        if need.type is not None and need.mode in (Mode.WHOLE, Mode.SHARE):
            each = room.fit(need).refresh().device_milli
            found[need.type] = found.get(need.type, 0) + leaf.tasks * each
    return found


def _columns(
    job_class: JobClass, needs: Sequence[Need], room: Room, *, is_empty: bool
) -> dict[str, Ints]:
    """What there is of each, by row: the most that any of the groups could use."""
    found: dict[str, Ints] = {}
    for leaf, need in zip(job_class.shape.leaves, needs, strict=True):
        fit = room.fit(need).refresh()
        table = fit.table
        rows = (fit.possible > 0) if is_empty else (fit.possible > 0) & fit.open
        if need.exclusive and not leaf.is_optional:
            nodes = rows if is_empty else fit.fits > 0
            _join(found, WHOLE_NODES, nodes.astype(np.int64))
        if need.type is None or need.mode is Mode.MIG:
            continue
        kinds = list(fit.kinds)
        if is_empty:
            there = np.isin(table.kind, kinds).sum(axis=1) * WHOLE_DEVICE_MILLI
        elif need.mode is Mode.WHOLE:
            there = table.untouched[kinds].sum(axis=0) * WHOLE_DEVICE_MILLI
        else:
            right = np.isin(table.kind, kinds) & table.usable
            there = np.where(right, table.milli_free, 0).sum(axis=1)
        _join(found, need.type, np.where(rows, there, 0).astype(np.int64))
    return found


def _join(found: dict[str, Ints], what: str, column: Ints) -> None:
    known = found.get(what)
    found[what] = column if known is None else np.maximum(known, column)
