"""Activity inside the SMs by NVML's GPM (Hopper and later): tensor cores, SMs, memory bandwidth.

"GPU utilisation" only says that a kernel was resident; these tell a job that computes from one
that spins. Activity is a mean between two samples, so the first poll has none.
"""

from __future__ import annotations

import pynvml

from tercio.model.readings import Activity

_METRICS = (
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    pynvml.NVML_GPM_METRIC_SM_UTIL,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
)


class GpmMeter:
    """Keeps two samples of one device and lets them take turns."""

    def __init__(self) -> None:
        """Allocate; raises pynvml.NVMLError where the driver knows no GPM."""
        self._older = pynvml.nvmlGpmSampleAlloc()
        self._newer = pynvml.nvmlGpmSampleAlloc()
        self._has_older = False

    def read(self, handle: object) -> Activity | None:
        """Return the activity since the last call, None at the first. Raises NVMLError."""
        pynvml.nvmlGpmSampleGet(handle, self._newer)
        activity = self._between() if self._has_older else None
        self._older, self._newer = self._newer, self._older
        self._has_older = True
        return activity

    def _between(self) -> Activity:
        question = pynvml.c_nvmlGpmMetricsGet_t()
        question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(_METRICS)
        question.sample1, question.sample2 = self._older, self._newer
        for place, metric in enumerate(_METRICS):
            question.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(question)
        ratios = [
            round(each.value / 100, 4) if each.nvmlReturn == pynvml.NVML_SUCCESS else None
            for each in question.metrics[: len(_METRICS)]
        ]
        tensor, sm, dram, engine = ratios
        return Activity(tensor_ratio=tensor, sm_ratio=sm, dram_ratio=dram, engine_ratio=engine)


def is_supported(handle: object) -> bool:
    """Whether a device has GPM. Raises NVMLError where the driver does not know."""
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
