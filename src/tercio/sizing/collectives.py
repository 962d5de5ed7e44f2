"""Collective times: three-term fits inside a scale-up domain, ring arithmetic across nodes.

T = c0 + c_half sqrt(M) + c1 M with M the message in bytes; the square-root term takes the mean
error of 148 measured curves from 11.6 % to 6.4 %. A part without a curve borrows the curve of the
H100 with its bandwidth term scaled by link speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from tercio.sizing.catalogue import KERNEL_SYSTEMS, Gpu

# Share of the NIC line rate that large transfers reach: 36.95 of 50 GB/s on 4 x 8 B200 over EFA.
NIC_RATIO = 0.74
NIC_LATENCY_S = 12e-6


class CollectiveFit(msgspec.Struct, frozen=True, kw_only=True):
    """One measured curve, T in seconds and M in bytes."""

    c0_s: float
    c_half_s: float
    c1_s: float

    def seconds(self, message_bytes: float) -> float:
        """Time of one collective of `message_bytes`."""
        return self.c0_s + self.c_half_s * math.sqrt(message_bytes) + self.c1_s * message_bytes


CollectiveFits = Mapping[tuple[str, str, int], CollectiveFit]
"""(system, operation, ranks) to curve; all_reduce, all_gather, reduce_scatter, alltoall."""

_REFERENCE = "h100_sxm"
_REFERENCE_LINK = 450e9


def link_bytes_per_s(gpu: Gpu, ranks: int) -> float:
    """Scale-up bandwidth of one device among `ranks`; in a mesh a pair has its own link only."""
    rate = gpu.link_bytes_per_s or 16e9
    if gpu.pair_bytes_per_s and gpu.pair_bytes_per_s < rate:
        return min(rate, gpu.pair_bytes_per_s * max(ranks - 1, 1))
    return rate


def scale_up_seconds(
    fits: CollectiveFits, gpu: Gpu, *, operation: str, ranks: int, message_bytes: float
) -> float:
    """Seconds of a collective inside one scale-up domain. 0 for one rank."""
    if ranks <= 1 or message_bytes <= 0:
        return 0.0
    system = KERNEL_SYSTEMS.get(gpu.name, _REFERENCE)
    if (system, operation, 2) not in fits:
        system = _REFERENCE
    known = sorted(n for (s, op, n) in fits if s == system and op == operation)
    below = max((n for n in known if n <= ranks), default=known[0])
    fit = fits[(system, operation, below)]
    # Ring volume grows as (n-1)/n beyond the largest measured count, latency with log2 n.
    volume = ((ranks - 1) / ranks) / ((below - 1) / below)
    depth = math.log2(ranks) / math.log2(below)
    speed = 1.0
    if system == _REFERENCE and KERNEL_SYSTEMS.get(gpu.name) != _REFERENCE:
        speed = _REFERENCE_LINK / link_bytes_per_s(gpu, ranks)
    return (
        fit.c0_s * depth
        + fit.c_half_s * math.sqrt(message_bytes)
        + fit.c1_s * volume * speed * message_bytes
    )


def collective_seconds(
    fits: CollectiveFits,
    gpu: Gpu,
    *,
    operation: str,
    ranks: int,
    message_bytes: float,
    domain: int,
    nic_bytes_per_s: float,
) -> float:
    """Seconds of a collective over `ranks` devices, `domain` of them joined by scale-up links.

    Across nodes every NIC carries the share of its device: M (k-1)/(k g) for gather and scatter of
    k domains of g devices, twice that for all-reduce, M (n-g)/n for all-to-all.
    """
    if ranks <= 1 or message_bytes <= 0:
        return 0.0
    if ranks <= domain:
        return scale_up_seconds(
            fits, gpu, operation=operation, ranks=ranks, message_bytes=message_bytes
        )
    groups = max(ranks / domain, 2.0)
    local = min(ranks, domain)
    if operation == "alltoall":
        wire = message_bytes * (ranks - local) / ranks
    else:
        wire = message_bytes * (groups - 1) / (groups * local)
        wire *= 2.0 if operation == "all_reduce" else 1.0
    inside = scale_up_seconds(
        fits, gpu, operation=operation, ranks=local, message_bytes=message_bytes
    )
    outside = wire / (NIC_RATIO * nic_bytes_per_s) + NIC_LATENCY_S * math.log2(groups * 2)
    return max(inside, outside) + 0.3 * min(inside, outside)
