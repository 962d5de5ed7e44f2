"""Live readings of the MIG instances of a card: memory and activity. Part of `live`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pynvml

from tercio.collect.gpm import GpmMeter
from tercio.model.readings import Activity, SliceTelemetry

_T = TypeVar("_T")
_MARK = " MIG "


class Ask(Protocol):
    """Asks one question of one device, and never again where it is not supported."""

    def __call__(self, index: int, name: str, question: Callable[[], _T]) -> _T | None:
        """Return the answer, None for what the device does not say."""
        ...


class MigReader:
    """Reads instances, and keeps the samples that their activity is made of."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._gpm: dict[tuple[int, int], GpmMeter] = {}

    def clear(self) -> None:
        """Forget the samples: the library was let go."""
        self._gpm.clear()

    def read(self, index: int, handle: object) -> tuple[SliceTelemetry, ...]:
        """Return the instances of a card; none while it is not in MIG mode."""
        mode = self._ask(index, "mig", lambda: pynvml.nvmlDeviceGetMigMode(handle)[0])
        if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        most = self._ask(index, "mig_most", lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
        found = [self._slice(index, handle, place) for place in range(most or 0)]
        return tuple(each for each in found if each is not None)

    def _slice(self, index: int, handle: object, place: int) -> SliceTelemetry | None:
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            number = int(pynvml.nvmlDeviceGetGpuInstanceId(part))
            name = _text(pynvml.nvmlDeviceGetName(part))
            uuid = _text(pynvml.nvmlDeviceGetUUID(part))
        except pynvml.NVMLError:
            return None  # no instance there, or one that is being made
        memory = self._ask(index, "mig_memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(part))
        return SliceTelemetry(
            number=number,
            profile=name.partition(_MARK)[2],
            uuid=uuid,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            activity=self._activity(index, handle, number),
        )

    def _activity(self, index: int, handle: object, number: int) -> Activity | None:
        meter = self._gpm.get((index, number))
        if meter is None:
            meter = self._ask(index, "mig_gpm", GpmMeter)
            if meter is None:
                return None
            self._gpm[index, number] = meter
        return self._ask(index, "mig_gpm", lambda: meter.read(handle, gpu_slice=number))


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
