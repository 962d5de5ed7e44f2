"""Answers `devices: auto` before a job becomes a command: sizing chooses, the job keeps why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from tercio.api.submit import Accepted
from tercio.core.cluster import Cluster

if TYPE_CHECKING:
    from tercio.core.sized import SizingTables


@cache
def sizing_tables() -> SizingTables:
    """The packaged tables: a fifth of a second and a few megabytes, once, when first asked for."""
    from tercio.assets import load_table
    from tercio.core.sized import SizingTables
    from tercio.sizing.packaged import (
        build_calibration,
        build_catalogue,
        build_collective_fits,
        build_gemm_table,
    )

    return SizingTables(
        catalogue=build_catalogue(load_table),
        calibration=build_calibration(load_table),
        kernels=build_gemm_table(load_table),
        fits=build_collective_fits(load_table),
    )


async def sized(accepted: Sequence[Accepted], cluster: Cluster) -> list[Accepted]:
    """Return the jobs with their devices chosen; a search runs beside the event loop.

    Raises:
        UserError: the model is unknown, or no device of the cluster holds it.
    """
    specs = [spec for each in accepted for spec in each.specs]
    if not any(spec.groups[0].per_task.is_auto for spec in specs):
        return list(accepted)
    nodes = dict(cluster.nodes)
    before = [job for job in cluster.jobs.values() if job.spec.sized is not None]

    def choose() -> list[Accepted]:
        from tercio.core.sized import size_job

        tables = sizing_tables()
        return [
            msgspec.structs.replace(
                each, specs=tuple(size_job(spec, nodes, before, tables) for spec in each.specs)
            )
            for each in accepted
        ]

    return await asyncio.to_thread(choose)
