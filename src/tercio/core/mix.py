"""Recent kinds of work: what tasks asked for, and how often. Packing looks at it.

A node is well packed when the work that usually comes still fits; what usually comes is
counted here. The published mix changes seldom, since every change costs the scheduler a new
look at all nodes: at first with every few tasks, later when a fifth of the work is new.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from tercio.model.job import JobSpec, TaskGroup
from tercio.model.resources import Request
from tercio.model.snapshot import MixEntry

_KINDS_MAX: Final = 64
_TASKS_MAX: Final = 20_000
_FRESH_PART: Final = 5
_KEYS_KEPT: Final = 1024


@functools.lru_cache(maxsize=_KEYS_KEPT)
def _key_of(request: Request) -> str:
    return msgspec.json.encode(request).decode()


class Kind(msgspec.Struct, kw_only=True, eq=False):
    """One kind of task and how many of it were asked for lately."""

    request: Request
    count: int = 0


class Mix(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """Counts by kind, the tasks noted since the mix was last published, and that mix."""

    kinds: dict[str, Kind] = {}
    fresh: int = 0
    published: tuple[MixEntry, ...] = ()

    def note(self, spec: JobSpec) -> None:
        """Count the tasks of a submitted job; an array counts with all its elements."""
        elements = spec.array.size if spec.array is not None else 1
        for group in spec.groups:
            self._note_group(group, elements)
        total = sum([kind.count for kind in self.kinds.values()])
        if self.fresh * _FRESH_PART >= total:
            self._publish(total)

    def _note_group(self, group: TaskGroup, elements: int) -> None:
        for inner in group.subgroups:
            self._note_group(inner, elements)
        if group.subgroups:
            return
        key = _key_of(group.per_task)
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = Kind(request=group.per_task)
        count = min(group.tasks * elements, _TASKS_MAX)
        kind.count += count
        self.fresh += count

    def _publish(self, total: int) -> None:
        if total > _TASKS_MAX:  # what is long ago counts less and less
            for kind in self.kinds.values():
                kind.count = (kind.count + 1) // 2
        ranked = sorted(self.kinds.items(), key=lambda pair: (-pair[1].count, pair[0]))
        self.kinds = dict(ranked[:_KINDS_MAX])
        total = sum(kind.count for kind in self.kinds.values())
        self.published = tuple(
            MixEntry(request=kind.request, weight=kind.count / total)
            for kind in self.kinds.values()
        )
        self.fresh = 0
