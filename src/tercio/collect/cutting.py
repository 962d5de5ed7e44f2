"""Cuts a card into MIG slices, in a child process: a sick driver can hang its caller.

`python -m tercio.collect.cutting` is that child: it reads a `ReconfigureDevice` and prints the
`DeviceReconfigured` that answers it. Slices that are wanted are not touched; the driver itself
refuses to remove one that is in use.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import msgspec
import pynvml

from tercio.collect.mig import CardSlice, profiles_of, read_mig, slices_of
from tercio.model.effects import ReconfigureDevice
from tercio.model.events import DeviceReconfigured
from tercio.model.node import MigSlice

_MODULE = "tercio.collect.cutting"
_FINAL = (
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
)
"""Answers that will be the same next time."""


class _Refused(Exception):
    """The card cannot be cut so; the message says why."""


def cut_device(order: ReconfigureDevice, *, timeout_s: float = 90.0) -> DeviceReconfigured:
    """Cut a card of this machine; blocks until the child answers or its deadline."""
    argv = [sys.executable, "-P", "-m", _MODULE]
    try:
        done = subprocess.run(
            argv,
            input=msgspec.json.encode(order),
            capture_output=True,
            timeout=timeout_s,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=DeviceReconfigured)
    except subprocess.TimeoutExpired:
        return _answer(order, f"the driver did not answer within {timeout_s:g}s", retry=True)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return _answer(order, lines[-1] if lines else f"exit code {error.returncode}", retry=True)
    except (OSError, msgspec.DecodeError) as error:
        return _answer(order, str(error), retry=True)


def cut_here(order: ReconfigureDevice) -> DeviceReconfigured:
    """Cut a card in this process."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _answer(order, str(error), retry=True)
    try:
        handle = (
            pynvml.nvmlDeviceGetHandleByUUID(order.uuid)
            if order.uuid
            else pynvml.nvmlDeviceGetHandleByIndex(order.index)
        )
        try:
            _cut(handle, order)
            why, retry = "", False
        except pynvml.NVMLError as error:
            why, retry = str(error), error.value not in _FINAL
        except _Refused as error:
            why, retry = str(error), False
        answer = _answer(order, why, retry=retry)
        return msgspec.structs.replace(answer, mig=read_mig(handle))
    except pynvml.NVMLError as error:
        return _answer(order, str(error), retry=error.value not in _FINAL)
    finally:
        pynvml.nvmlShutdown()


def _cut(handle: object, order: ReconfigureDevice) -> None:
    is_on = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    if order.is_on and not is_on:
        _set_mode(handle, pynvml.NVML_DEVICE_MIG_ENABLE)
    there = slices_of(handle) if order.is_on or is_on else []
    wanted = {(part.profile, part.start): part for part in order.slices}
    for each in there:
        if (each.part.profile, each.part.start) not in wanted:
            _remove(each)
    for each in there:
        if wanted.pop((each.part.profile, each.part.start), None) and not each.part.uuid:
            _use(each.handle, each.compute)  # half made when its maker was killed
    for part in wanted.values():
        _make(handle, part)
    if is_on and not order.is_on:
        _set_mode(handle, pynvml.NVML_DEVICE_MIG_DISABLE)


def _set_mode(handle: object, mode: int) -> None:
    status = pynvml.nvmlDeviceSetMigMode(handle, mode)
    if status:
        raise pynvml.NVMLError(status)


def _make(handle: object, part: MigSlice) -> None:
    profile = next((each for each in profiles_of(handle) if each.name == part.profile), None)
    if profile is None or (part.start, part.size) not in profile.placements:
        raise _Refused(f"the card has no {part.profile} at {part.start}")
    place = pynvml.c_nvmlGpuInstancePlacement_t(part.start, part.size)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        handle, profile.number, ctypes.byref(place)
    )
    _use(made, profile.compute)


def _use(gpu_slice: object, compute: int) -> None:
    """Give all compute of a slice to one compute slice, which is what programs see."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            told = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_slice, number, 0)
        except pynvml.NVMLError:
            continue
        if told.sliceCount == compute:
            pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_slice, told.id)
            return
    raise _Refused(f"the driver offers no compute slice of size {compute}")


def _remove(each: CardSlice) -> None:
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            told = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(each.handle, number, 0)
        except pynvml.NVMLError:
            continue
        parts = (pynvml.c_nvmlComputeInstance_t * max(told.instanceCount, 1))()
        count = ctypes.c_uint(told.instanceCount)
        pynvml.nvmlGpuInstanceGetComputeInstances(each.handle, told.id, parts, ctypes.byref(count))
        for part in parts[: count.value]:
            pynvml.nvmlComputeInstanceDestroy(part)
    pynvml.nvmlGpuInstanceDestroy(each.handle)


def _answer(order: ReconfigureDevice, why: str, *, retry: bool) -> DeviceReconfigured:
    return DeviceReconfigured(
        at_s=0.0,
        node=order.node,
        effect_id=order.effect_id,
        index=order.index,
        is_done=not why,
        message=why,
        is_retryable=retry,
    )


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=ReconfigureDevice)
    sys.stdout.buffer.write(msgspec.json.encode(cut_here(given)))
