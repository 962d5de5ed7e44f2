from __future__ import annotations

import math
import re

import msgspec
import pytest

from tercio.errors import UserError
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits, collective_seconds, scale_up_seconds
from tercio.sizing.kernels import GemmTable, gemm_basis, gemm_seconds


def test_a_measured_shape_returns_its_own_latency(catalogue: Catalogue, kernels: GemmTable) -> None:
    row = (kernels.sizes_m.index(4096) * len(kernels.sizes_n) + kernels.sizes_n.index(8192)) * len(
        kernels.sizes_k
    ) + kernels.sizes_k.index(8192)
    own = math.exp(kernels.log_seconds[("h100_sxm", "bfloat16")][row])
    asked = gemm_seconds(kernels, catalogue.gpu("H100"), dtype="bfloat16", m=4096, n=8192, k=8192)
    assert asked == pytest.approx(own)
    assert 2 * 4096 * 8192 * 8192 / asked == pytest.approx(784e12, rel=0.02)


def test_beyond_the_grid_time_grows_with_volume(catalogue: Catalogue, kernels: GemmTable) -> None:
    gpu = catalogue.gpu("H100")
    edge = gemm_seconds(kernels, gpu, dtype="bfloat16", m=16384, n=16384, k=16384)
    beyond = gemm_seconds(kernels, gpu, dtype="bfloat16", m=65536, n=16384, k=16384)
    assert beyond == pytest.approx(4 * edge, rel=1e-3)


def test_every_catalogued_part_answers_or_names_the_missing_field(
    catalogue: Catalogue, kernels: GemmTable
) -> None:
    for gpu in catalogue.gpus.values():
        if gpu.memory_bytes_per_s and (gpu.bf16_flops or gpu.fp16_flops):
            seconds = gemm_seconds(kernels, gpu, dtype="bfloat16", m=256, n=4096, k=4096)
            assert 0 < seconds < 1
            assert gemm_basis(kernels, gpu, dtype="bfloat16") in ("measured", "roofline")
        else:
            with pytest.raises(UserError, match=re.escape(gpu.name)) as caught:
                gemm_seconds(kernels, gpu, dtype="bfloat16", m=256, n=4096, k=4096)
            assert caught.value.field in ("bf16_flops", "memory_bytes_per_s")


def test_zero_bandwidth_is_refused(catalogue: Catalogue) -> None:
    broken = msgspec.structs.replace(catalogue.gpu("H100"), memory_bytes_per_s=0.0)
    with pytest.raises(UserError, match="memory bandwidth"):
        broken.bandwidth()


def test_all_reduce_of_a_gib_matches_the_measured_bus_rate(
    catalogue: Catalogue, fits: CollectiveFits
) -> None:
    size = 1e9
    seconds = scale_up_seconds(
        fits, catalogue.gpu("H100"), operation="all_reduce", ranks=8, message_bytes=size
    )
    assert size * 2 * 7 / 8 / seconds / 1e9 == pytest.approx(445, rel=0.1)


def test_leaving_the_node_costs_more_and_one_rank_nothing(
    catalogue: Catalogue, fits: CollectiveFits
) -> None:
    def seconds(ranks: int) -> float:
        return collective_seconds(
            fits, catalogue.gpu("H100"), operation="all_gather", ranks=ranks, message_bytes=1e9,
            domain=8, nic_bytes_per_s=50e9,
        )  # fmt: skip

    assert seconds(1) == 0
    assert seconds(8) < seconds(16) < seconds(128)


def test_a_mesh_gives_two_devices_one_link(catalogue: Catalogue, fits: CollectiveFits) -> None:
    gpu = catalogue.gpu("MI300X")
    pair = scale_up_seconds(fits, gpu, operation="all_reduce", ranks=2, message_bytes=1e9)
    eight = scale_up_seconds(fits, gpu, operation="all_reduce", ranks=8, message_bytes=1e9)
    assert pair > eight
