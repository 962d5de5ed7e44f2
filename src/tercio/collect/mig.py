"""How NVIDIA cards are cut into MIG slices, read through NVML; the library is initialised.

Listing slices needs root, as changing them does. Profiles with media extensions (`1g.10gb+me`)
are not offered: a card has them once only, which the placements do not say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

import pynvml

from tercio.model.node import MigProfile, MigSlice, MigSpec

_PREFIX = "MIG "


class CardProfile(NamedTuple):
    """A profile in the driver's terms: its number, name, compute slices and placements."""

    number: int
    name: str
    compute: int
    most: int
    placements: tuple[tuple[int, int], ...]


class CardSlice(NamedTuple):
    """A slice in the driver's terms: its handle, and what it is."""

    handle: Any
    gpu_slice_id: int
    compute: int
    part: MigSlice


def read_mig(handle: object) -> MigSpec | None:
    """Return how a card is cut; None for one that cannot be."""
    try:
        is_on = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:
        return None
    if not is_on:
        return MigSpec()
    offered = [profile for profile in profiles_of(handle) if "+" not in profile.name]
    compute_total = max((profile.compute for profile in offered), default=0)
    size_total = max((sum(place) for each in offered for place in each.placements), default=0)
    return MigSpec(
        is_on=True,
        profiles=tuple(
            MigProfile(
                name=profile.name,
                compute=profile.compute,
                size=profile.placements[0][1],
                starts=tuple(start for start, _ in profile.placements),
                compute_total=compute_total,
                size_total=size_total,
            )
            for profile in offered
        ),
        slices=tuple(sorted((each.part for each in slices_of(handle)), key=lambda p: p.start)),
    )


def profiles_of(handle: object) -> list[CardProfile]:
    """Return what a card in MIG mode offers; empty when its driver does not name profiles."""
    found = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            told = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
            places = _placements(handle, told.id)
        except pynvml.NVMLError:
            continue
        name = _text(told.name).removeprefix(_PREFIX)
        if places and name:
            profile = CardProfile(told.id, name, told.sliceCount, told.instanceCount, places)
            found.append(profile)
    return found


def _placements(handle: object, number: int) -> tuple[tuple[int, int], ...]:
    count = ctypes.c_uint()
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    ask(handle, number, None, ctypes.byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    ask(handle, number, places, ctypes.byref(count))
    return tuple((place.start, place.size) for place in places[: count.value])


def slices_of(handle: object) -> list[CardSlice]:
    """Return the slices of a card; none when the driver shows them to root only."""
    uuids = dict(_uuids(handle))
    found = []
    for profile in profiles_of(handle):
        handles = (pynvml.c_nvmlGpuInstance_t * max(profile.most, 1))()
        count = ctypes.c_uint(profile.most)
        try:
            pynvml.nvmlDeviceGetGpuInstances(handle, profile.number, handles, ctypes.byref(count))
        except pynvml.NVMLError:
            continue
        for each in handles[: count.value]:
            told = pynvml.nvmlGpuInstanceGetInfo(each)
            part = MigSlice(
                profile=profile.name,
                start=told.placement.start,
                size=told.placement.size,
                uuid=uuids.get(told.id, ""),
            )
            found.append(CardSlice(each, told.id, profile.compute, part))
    return found


def _uuids(handle: object) -> Iterator[tuple[int, str]]:
    """Yield the identity of every slice that programs can use, by the number of its slice."""
    try:
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:
        return
    for index in range(most):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            uuid = pynvml.nvmlDeviceGetUUID(part)
            yield pynvml.nvmlDeviceGetGpuInstanceId(part), _text(uuid)
        except pynvml.NVMLError:
            continue


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
