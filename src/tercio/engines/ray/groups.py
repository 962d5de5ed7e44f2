"""Holds what a task uses by a placement group of one bundle, on its node, with its devices.

Ray gives a group devices of its own choice: the free ones with the lowest numbers. A probe in
the group reads which. Where they are not the planned ones, every other free device of the node
is held one by one for a moment, so that only the planned ones are left to choose.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Final

import ray
from ray.util import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from tercio.engines.ray.messages import DECOY, Attach, Held, Reserve
from tercio.engines.ray.settings import RaySettings

_MILLI: Final = 1000
_PROBE_S: Final = 30.0
_DECOY_S: Final = 1.0
_TRIES: Final = 2
_NODE_LABEL: Final = "ray.io/node-id"


def _held_ids() -> list[str]:
    return [str(name) for name in ray.get_runtime_context().get_accelerator_ids()["GPU"]]


class Groups:
    """Makes and removes our placement groups; nobody else's is ever touched."""

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._prefix = f"{settings.namespace}:"
        self._nodes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Reused by the next probe: a fresh worker for each would cost a second.
        self._probe: Any = ray.remote(num_cpus=0, max_calls=0)(_held_ids)
        self._probed: set[str] = set()

    async def end_decoys(self) -> None:
        """Remove what a bridge before this one held for a moment when it died."""
        table = await asyncio.to_thread(placement_group_table)
        for group in table.values():
            name = group["name"]
            if group["state"] != "REMOVED" and name.startswith(self._prefix + DECOY):
                await self._remove(name)

    async def warm(self, attach: Attach) -> None:
        """Have a worker ready on a node with devices, so that the first probe is quick."""
        if attach.devices:
            strategy = NodeAffinitySchedulingStrategy(attach.node_id, soft=False)
            reference = self._probe.options(scheduling_strategy=strategy).remote()
            try:
                async with asyncio.timeout(_PROBE_S):
                    await reference
            except TimeoutError:
                ray.cancel(reference)

    async def reserve(self, wanted: Reserve) -> Held:
        """Hold what a task needs; a repeated order finds the first hold."""
        async with self._nodes[wanted.node_id]:
            name = self._prefix + wanted.name
            if await self._stands(name, wanted):
                return Held(is_held=True)
            for _ in range(_TRIES):
                held = await self._try(name, wanted)
                if held is not None:
                    if held.is_held:
                        self._probed.add(name)
                    return held
            return Held(is_held=False, message=f"Ray gave other devices than {_names(wanted)}")

    async def release(self, names: tuple[str, ...]) -> None:
        """Remove our groups of these names."""
        for name in names:
            self._probed.discard(self._prefix + name)
            await self._remove(self._prefix + name)

    async def _remove(self, name: str) -> None:
        group, state = await asyncio.to_thread(_find, name)
        if state != "REMOVED":
            await asyncio.to_thread(remove_placement_group, group)

    async def _stands(self, name: str, wanted: Reserve) -> bool:
        """Whether the task's group is there, made whole and with the planned devices.

        A bridge may have died between making it and looking; then it is removed. No task runs
        under a hold that was not looked at.
        """
        group, state = await asyncio.to_thread(_find, name)
        if state == "CREATED":
            if not wanted.ids or name in self._probed:
                return True
            if await self._probe_ids(group, _resources(wanted)) == sorted(wanted.ids):
                self._probed.add(name)
                return True
        if state != "REMOVED":
            await asyncio.to_thread(remove_placement_group, group)
        return False

    async def _try(self, name: str, wanted: Reserve) -> Held | None:
        """Make the group; None when it got other devices, after making room for a next try."""
        resources = _resources(wanted)
        timeout_s = self._settings.reserve_timeout_s
        group = await self._make(name, wanted.node_id, resources, timeout_s=timeout_s)
        if group is None:
            return Held(is_held=False, message=_refusal(resources))
        if not wanted.ids or await self._ids(group, resources) == sorted(wanted.ids):
            return Held(is_held=True, is_new=True)
        await asyncio.to_thread(remove_placement_group, group)
        decoys: list[Any] = []
        try:
            await self._hold_others(wanted, decoys)
            group = await self._make(name, wanted.node_id, resources, timeout_s=_DECOY_S)
            if group is None:
                message = f"somebody else holds a device of {_names(wanted)} in Ray"
                return Held(is_held=False, message=message)
            if await self._ids(group, resources) == sorted(wanted.ids):
                return Held(is_held=True, is_new=True)
            await asyncio.to_thread(remove_placement_group, group)
            return None
        finally:
            for decoy in decoys:
                await asyncio.to_thread(remove_placement_group, decoy)

    async def _hold_others(self, wanted: Reserve, decoys: list[Any]) -> None:
        """Hold every free device of the node but the wanted ones, by groups put into `decoys`."""
        found: list[Any] = []
        while True:
            one = {"GPU": 1.0}
            name = f"{self._prefix}{DECOY}{wanted.node_id}/{len(decoys) + len(found)}"
            decoy = await self._make(name, wanted.node_id, one, timeout_s=_DECOY_S)
            if decoy is None:
                break
            ids = await self._ids(decoy, one)
            (found if set(ids) <= set(wanted.ids) else decoys).append(decoy)
        for decoy in found:
            await asyncio.to_thread(remove_placement_group, decoy)

    async def _make(
        self, name: str, node_id: str, resources: dict[str, float], *, timeout_s: float
    ) -> Any:
        """Return a new group, or None when the node has no room for it."""
        group = placement_group(
            [resources],
            name=name,
            lifetime="detached",
            bundle_label_selector=[{_NODE_LABEL: node_id}],
        )
        if await asyncio.to_thread(group.wait, timeout_s):
            return group
        await asyncio.to_thread(remove_placement_group, group)
        return None

    async def _ids(self, group: Any, resources: dict[str, float]) -> list[str]:
        """Return the devices of a new group; one that does not tell them is removed."""
        try:
            return await self._probe_ids(group, resources)
        except BaseException:
            await asyncio.to_thread(remove_placement_group, group)
            raise

    async def _probe_ids(self, group: Any, resources: dict[str, float]) -> list[str]:
        strategy = PlacementGroupSchedulingStrategy(group)
        probe = self._probe.options(num_gpus=resources["GPU"], scheduling_strategy=strategy)
        reference = probe.remote()
        async with asyncio.timeout(_PROBE_S):
            return sorted(await reference)


def _find(name: str) -> tuple[Any, str]:
    """Return the group of a name and its state; `REMOVED` where there is none."""
    try:
        group = get_placement_group(name)
    except ValueError:
        return None, "REMOVED"
    return group, placement_group_table(group).get("state", "REMOVED")


def _resources(wanted: Reserve) -> dict[str, float]:
    resources = {
        "GPU": wanted.device_milli / _MILLI,
        "CPU": wanted.cpus_milli / _MILLI,
        "memory": float(wanted.memory_bytes),
    }
    # A bundle of nothing is refused; this much of a core is below what Ray counts as one task.
    return {name: amount for name, amount in resources.items() if amount} or {"CPU": 0.001}


def _refusal(resources: dict[str, float]) -> str:
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in resources.items())
    return f"the node has no room in Ray for {wanted}: others use it, or it is smaller than planned"


def _names(wanted: Reserve) -> str:
    return f"devices {','.join(wanted.ids)}"
