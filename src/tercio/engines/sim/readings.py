"""What simulated devices say of themselves: invented, steady, and called simulated."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import msgspec

from tercio.engines.sim.script import wish_of
from tercio.model.node import NodeSpec
from tercio.model.readings import DeviceTelemetry, NodeReading

_LIMIT_W = 700.0
_IDLE_W = 71.0
_CLOCK_MHZ = 1755
_MEMORY_BYTES = 80 * 2**30
"""Limits and idle draw of an H100 SXM (NVIDIA's data sheet; nvidia-smi on an idle one)."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a device that a task holds.

    Attributes:
        job: its id; jobs differ in how busy they keep a device.
        share: of the device, from 0 to 1.
        is_slow: whether the device does less than others of the job.
    """

    job: str
    share: float = 1.0
    is_slow: bool = False


def with_identity(node: NodeSpec) -> NodeSpec:
    """Return a node whose devices have names of their own, as real ones do."""
    devices = tuple(
        msgspec.structs.replace(
            device,
            uuid=device.uuid or f"SIM-{node.name}-{device.index}",
            serial=device.serial or f"simulated-{node.name}-{device.index}",
        )
        for device in node.devices
    )
    return msgspec.structs.replace(node, devices=devices)


def slow_device(
    env: Mapping[str, str], *, task: int, devices: Sequence[int], since_s: float, now_s: float
) -> int | None:
    """Return which device of a running task is slow now, as its behaviour wishes; None for none."""
    wish = wish_of(env)
    steps = wish.steps if wish is not None else None
    if steps is None or steps.slow_task != task or not devices:
        return None
    is_due = now_s - since_s >= steps.slow_from_step * steps.every_s
    return devices[len(devices) // 2] if is_due else None


def simulated_reading(
    node: NodeSpec, loads: Mapping[int, Sequence[Load]], at_s: float
) -> NodeReading:
    """Return what a node would report now; `loads` is by position of the device."""
    devices = tuple(
        _device(node, device.index, loads.get(device.index, ()), at_s) for device in node.devices
    )
    return NodeReading(at_s=at_s, boot_id="simulated", driver="simulated", devices=devices)


def _device(node: NodeSpec, index: int, loads: Sequence[Load], at_s: float) -> DeviceTelemetry:
    spec = node.devices[index]
    busy = sum(load.share * _busy(load.job, at_s) for load in loads)
    is_slow = any(load.is_slow for load in loads)
    wave = math.sin(at_s / 47.0 + _part(f"{node.name}/{index}") * 6.283)
    use = max(0.0, min(1.0, busy + 0.01 * wave)) if loads else 0.0
    wanted_w = _IDLE_W + (_LIMIT_W - _IDLE_W) * 0.92 * use + 3 * wave
    held = sum(load.share * (0.45 + 0.45 * _part(load.job)) for load in loads)
    total_bytes = spec.memory_bytes or _MEMORY_BYTES
    return DeviceTelemetry(
        index=index,
        uuid=spec.uuid,
        serial=spec.serial,
        name=f"{spec.type} (simulated)",
        pci=f"00000000:{index + 16:02x}:00.0",
        utilization_ratio=round(use, 3),
        memory_used_bytes=int(held * total_bytes),
        memory_total_bytes=total_bytes,
        power_w=round(wanted_w * (0.82 if is_slow else 1.0), 1),
        power_limit_w=_LIMIT_W,
        # Cards at the end of the air stream are warmer; a badly cooled one is slow.
        temperature_c=round(29 + index * 0.5 + 42 * wanted_w / _LIMIT_W + 8 * is_slow, 1),
        sm_clock_mhz=int(_CLOCK_MHZ * (0.8 if is_slow else 1.0)) if loads else 345,
    )


def _busy(job: str, at_s: float) -> float:
    """How busy a job keeps its devices: a level of its own, with a slow wave."""
    level = 0.62 + 0.33 * _part(job)
    return level + 0.03 * math.sin(at_s / 190.0 + _part(f"{job}/phase") * 6.283)


def _part(text: str) -> float:
    """A number from 0 to 1 that is the same in every process."""
    return zlib.crc32(text.encode()) / 2**32
