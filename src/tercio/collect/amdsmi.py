"""AMD devices through AMD SMI, where its Python package is installed (it comes with ROCm).

Runs in the child process of `probe`, as `nvml` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

from tercio.collect.reading import DeviceReading

_T = TypeVar("_T")


def read_amd() -> tuple[DeviceReading, ...]:
    """Return every AMD device in the library's order. Raises ImportError without the library."""
    smi = importlib.import_module("amdsmi")
    smi.amdsmi_init()
    try:
        handles = smi.amdsmi_get_processor_handles()
        return tuple(_read_device(smi, handle) for handle in handles)
    finally:
        smi.amdsmi_shut_down()


def uuid_of(asic_serial: str) -> str:
    """Return how ROCR_VISIBLE_DEVICES names a device: `GPU-` and the ASIC's serial in hexadecimal.

    >>> uuid_of("0xB4C1F2"), uuid_of("")
    ('GPU-b4c1f2', '')
    """
    serial = asic_serial.removeprefix("0x").lower()
    return f"GPU-{serial}" if serial else ""


def _read_device(smi: object, handle: object) -> DeviceReading:
    failure: type[Exception] = smi.AmdSmiException  # type: ignore[attr-defined]

    def ask(question: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return question()
        except (failure, KeyError, ValueError):
            return otherwise

    def call(name: str) -> dict[str, object]:
        nothing: dict[str, object] = {}
        return ask(lambda: getattr(smi, name)(handle), nothing)

    asic = call("amdsmi_get_gpu_asic_info")
    memory_mib = call("amdsmi_get_gpu_vram_info").get("vram_size", 0)
    nobody: list[dict[str, object]] = []
    processes = ask(lambda: smi.amdsmi_get_gpu_process_list(handle), nobody)  # type: ignore[attr-defined]
    return DeviceReading(
        vendor="amd",
        name=str(asic.get("market_name", "")),
        uuid=uuid_of(str(asic.get("asic_serial", ""))),
        serial=str(call("amdsmi_get_gpu_board_info").get("product_serial", "")),
        memory_bytes=int(str(memory_mib)) * 1024**2 if str(memory_mib).isdigit() else 0,
        pids=tuple(sorted(int(str(p["pid"])) for p in processes if "pid" in p)),
    )
