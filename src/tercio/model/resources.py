"""What a task asks for and what a device can give. All amounts are integers.

Devices are counted in thousandths (`milli`), cores in thousandths, memory in bytes, so that
quota and capacity add up exactly.
"""

from __future__ import annotations

from typing import Final

import msgspec

WHOLE_DEVICE_MILLI: Final = 1000
CPU_DEVICE: Final = "CPU"
"""Type of a declared CPU device, so that every path works on a machine without accelerators."""

Amounts = dict[str, int]
"""Quota amounts by resource name: a device type or `devices` in milli-devices, `cpus` in
milli-cores, `memory` in bytes."""

DEVICES: Final = "devices"
CPUS: Final = "cpus"
MEMORY: Final = "memory"


class DeviceRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True, gc=False
):
    """One alternative of a task's device request.

    Attributes:
        type: canonical device type (`H100`, `CPU`), or None for any accelerator.
        vendor: `nvidia`, `amd`, ..., or None for any.
        count: whole devices, or slices when `mig_profile` is set; the minimum when elastic.
        count_max: largest count of an elastic request, or None when the count is exact.
        share_milli: thousandths of one device (then `count` is 0), or 0.
        share_memory_bytes: memory of one device (then `count` is 0), or 0.
        card_bytes: marketing size of the card's memory, or None for any size.
        card_at_least: whether `card_bytes` is a minimum instead of the exact size.
        mig_profile: MIG profile such as `1g.10gb`, or None for whole devices.
    """

    type: str | None = None
    vendor: str | None = None
    count: int = 0
    count_max: int | None = None
    share_milli: int = 0
    share_memory_bytes: int = 0
    card_bytes: int | None = None
    card_at_least: bool = False
    mig_profile: str | None = None

    @property
    def is_none(self) -> bool:
        """Whether this asks for no device at all."""
        return not (self.count or self.share_milli or self.share_memory_bytes)

    @property
    def is_shared(self) -> bool:
        """Whether this asks for a part of one device, by share, memory or MIG profile."""
        return bool(self.share_milli or self.share_memory_bytes or self.mig_profile)


NO_DEVICE: Final = DeviceRequest()


class Request(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True, gc=False
):
    """What one task needs on one node.

    Attributes:
        devices: alternatives in order of preference; `(NO_DEVICE,)` asks for none.
        cpus_milli: thousandths of a core, or None for the policy's per-device share.
        memory_bytes: at least this much, or None for the policy's per-device share.
        shm_bytes: size of /dev/shm inside the memory, or None for the engine's default.
        is_auto: whether sizing chooses the devices; never so in a job that was accepted.
    """

    devices: tuple[DeviceRequest, ...] = (NO_DEVICE,)
    cpus_milli: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    is_auto: bool = False


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A part of one device held by one task.

    Attributes:
        index: position of the device on its node.
        milli: thousandths of the device; 1000 is all of it.
        memory_bytes: memory of the device that goes with the share.
        mig_profile: MIG profile of the slice, or None.
        mig_start: first memory slice of the MIG instance, or None.
        mig_size: memory slices of the MIG instance, 0 for none.
    """

    index: int
    milli: int = WHOLE_DEVICE_MILLI
    memory_bytes: int = 0
    mig_profile: str | None = None
    mig_start: int | None = None
    mig_size: int = 0

    @property
    def slice_bits(self) -> int:
        """The memory slices of the card that it covers, one bit each; 0 unless it is a slice."""
        return ((1 << self.mig_size) - 1) << (self.mig_start or 0) if self.mig_size else 0
