"""NVIDIA devices through NVML. Runs in the child process of `probe`: the library may hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml

from tercio.collect.mig import read_mig
from tercio.collect.reading import DeviceReading

_T = TypeVar("_T")


def read_nvidia() -> tuple[DeviceReading, ...]:
    """Return every NVIDIA device in index order. Raises ImportError or pynvml.NVMLError.

    A device that does not answer is there with its fault. What an old driver cannot say
    stays at its default.
    """
    pynvml.nvmlInit()
    try:
        count = pynvml.nvmlDeviceGetCount()
        buses = [_bus(index) for index in range(count)]
        return tuple(_read_device(index, buses) for index in range(count))
    finally:
        pynvml.nvmlShutdown()


def _bus(index: int) -> str:
    return _ask(lambda: _text(pynvml.nvmlDeviceGetPciInfo(_handle(index)).busId), "").lower()


def _read_device(index: int, buses: list[str]) -> DeviceReading:
    try:
        handle = _handle(index)
        name = _text(pynvml.nvmlDeviceGetName(handle))
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        return DeviceReading(vendor="nvidia", fault=str(error))
    peers, has_switch = _links(handle, buses)
    return DeviceReading(
        vendor="nvidia",
        name=name,
        uuid=uuid,
        serial=_ask(lambda: _text(pynvml.nvmlDeviceGetSerial(handle)), ""),
        memory_bytes=_ask(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), 0),
        pids=_ask(
            lambda: tuple(
                sorted(int(p.pid) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
            ),
            (),
        ),
        peers=peers,
        has_switch=has_switch,
        power_w=_ask(lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) // 1000, 0),
        mig=_ask(lambda: read_mig(handle), None),
    )


def _links(handle: object, buses: list[str]) -> tuple[tuple[int, ...], bool]:
    """Return the devices at the other ends of the active links, and whether one is a switch."""
    peers: set[int] = set()
    has_switch = False
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                has_switch = True
            elif kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
                remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
                bus = _text(remote.busId).lower()
                if bus in buses:
                    peers.add(buses.index(bus))
        except pynvml.NVMLError:
            break
    return tuple(sorted(peers)), has_switch


def _handle(index: int) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def _ask(question: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return question()
    except pynvml.NVMLError:
        return otherwise


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
