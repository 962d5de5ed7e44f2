"""Kernel times: measured tables interpolated in log space, a roofline where no table exists.

`GemmTable` holds one dense grid of latencies per (system, format) over m, n, k. Inside the grid
the latency is log-linear between points; outside, the work beyond the edge is scaled by volume,
and a matrix smaller than the grid is scaled down to the launch floor.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from tercio.sizing.catalogue import KERNEL_SYSTEMS, Gpu

# Launch plus drain of one kernel, seconds; the smallest latencies of the measured tables are
# 3 to 6 microseconds.
LAUNCH_FLOOR_S = 4e-6

# Share of peak a large GEMM reaches on a part without a table. Median of the measured tables and
# of published maximum-achievable-matmul figures: 0.72 to 0.82 for bf16, 0.5 to 0.6 for fp8, 0.47
# for nvfp4.
ROOFLINE_RATIO: Mapping[str, float] = {
    "bfloat16": 0.75,
    "fp8": 0.58,
    "fp8_block": 0.55,
    "nvfp4": 0.47,
}
MEMORY_RATIO = 0.85


class GemmTable(msgspec.Struct, frozen=True, kw_only=True):
    """Log seconds of (system, format) on the grid sizes_m x sizes_n x sizes_k, row-major."""

    sizes_m: tuple[int, ...]
    sizes_n: tuple[int, ...]
    sizes_k: tuple[int, ...]
    log_seconds: Mapping[tuple[str, str], Sequence[float]]


def _bracket(sizes: tuple[int, ...], size: float) -> tuple[int, float]:
    """Index of the cell and the log-space weight of its upper edge, clamped to the grid."""
    if size <= sizes[0]:
        return 0, 0.0
    if size >= sizes[-1]:
        return len(sizes) - 2, 1.0
    low = bisect_right(sizes, size) - 1
    return low, math.log(size / sizes[low]) / math.log(sizes[low + 1] / sizes[low])


def _inside(table: GemmTable, grid: Sequence[float], m: float, n: float, k: float) -> float:
    """Log-trilinear latency, seconds, of a shape clamped to the grid."""
    (im, wm), (i_n, wn), (ik, wk) = (
        _bracket(table.sizes_m, m),
        _bracket(table.sizes_n, n),
        _bracket(table.sizes_k, k),
    )
    count_n, count_k = len(table.sizes_n), len(table.sizes_k)
    total = 0.0
    for dm, pm in ((0, 1 - wm), (1, wm)):
        if pm == 0.0:
            continue
        for dn, pn in ((0, 1 - wn), (1, wn)):
            if pn == 0.0:
                continue
            row = ((im + dm) * count_n + i_n + dn) * count_k + ik
            total += pm * pn * ((1 - wk) * grid[row] + (wk * grid[row + 1] if wk else 0.0))
    return math.exp(total)


def gemm_seconds(table: GemmTable, gpu: Gpu, *, dtype: str, m: float, n: float, k: float) -> float:
    """Seconds of one (m, k) x (k, n) product in `dtype` (bfloat16, fp8, fp8_block or nvfp4)."""
    m, n, k = max(m, 1.0), max(n, 1.0), max(k, 1.0)
    grid = table.log_seconds.get((KERNEL_SYSTEMS.get(gpu.name, ""), dtype))
    if grid is None:
        return roofline_seconds(gpu, dtype=dtype, m=m, n=n, k=k)
    in_m = min(max(m, table.sizes_m[0]), table.sizes_m[-1])
    in_n = min(max(n, table.sizes_n[0]), table.sizes_n[-1])
    in_k = min(max(k, table.sizes_k[0]), table.sizes_k[-1])
    seconds = _inside(table, grid, in_m, in_n, in_k)
    grow = max(m / in_m, 1.0) * max(n / in_n, 1.0) * max(k / in_k, 1.0)
    shrink = min(n / in_n, 1.0) * min(k / in_k, 1.0)
    floor = min(LAUNCH_FLOOR_S, seconds)
    return floor + (seconds - floor) * grow * shrink


ELEMENT_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "bfloat16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5625,
    "mxfp4": 0.53,
}


def roofline_seconds(gpu: Gpu, *, dtype: str, m: float, n: float, k: float) -> float:
    """max(FLOPs / (ratio x peak), bytes / (0.85 x bandwidth)) + launch floor."""
    precision = {"bfloat16": "bf16", "fp8_block": "fp8"}.get(dtype, dtype)
    compute = 2.0 * m * n * k / (ROOFLINE_RATIO[dtype] * gpu.flops(precision))
    width = ELEMENT_BYTES[dtype]
    moved = n * k * width + m * k * width + 2.0 * m * n
    return max(compute, moved / (MEMORY_RATIO * gpu.bandwidth())) + LAUNCH_FLOOR_S


def gemm_basis(table: GemmTable, gpu: Gpu, *, dtype: str) -> str:
    """`measured` where the part has a table for the format, else `roofline`."""
    key = (KERNEL_SYSTEMS.get(gpu.name, ""), dtype)
    return "measured" if key in table.log_seconds else "roofline"


# Log error that a roofline adds where a measured kernel table would have none: isolated products on
# the tabulated parts scatter by about this much around the ratios above.
ROOFLINE_LOG_ERROR = 0.25


def range_half_width(half: float, basis: str) -> float:
    """Half-width of a log range, widened where the part has no measured kernels."""
    return math.hypot(half, ROOFLINE_LOG_ERROR) if basis == "roofline" else half
