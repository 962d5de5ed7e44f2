"""Answers `devices: auto` before a job becomes a command: sizing chooses, the job keeps why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tercio.api.submit import Accepted
from tercio.core.cluster import Cluster
from tercio.errors import UserError

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


def tables_of(site: str) -> SizingTables:
    """The packaged tables with the site's own file on top. Blocks on the disk.

    Raises:
        UserError: the file cannot be read, or makes no sense.
    """
    tables = sizing_tables()
    if not site:
        return tables
    import yaml

    from tercio.sizing.site import parse_site, with_site

    try:
        mapping = yaml.safe_load(Path(site).read_text(encoding="utf-8"))
        if not isinstance(mapping, dict):
            raise UserError("it holds no mapping")
        catalogue = with_site(tables.catalogue, parse_site(mapping))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, UserError) as error:
        raise UserError(
            f"sizing.site: {site} cannot be used: {error}",
            field="sizing.site",
            hint="an operator mends the file; jobs that write their devices need it not",
        ) from None
    return msgspec.structs.replace(tables, catalogue=catalogue)


async def sized(
    accepted: Sequence[Accepted], cluster: Cluster, *, site: str = ""
) -> list[Accepted]:
    """Return the jobs with their devices chosen; a search runs beside the event loop.

    `site` names the site's file of prices and parts, empty for none.

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

        tables = tables_of(site)
        return [
            msgspec.structs.replace(
                each, specs=tuple(size_job(spec, nodes, before, tables) for spec in each.specs)
            )
            for each in accepted
        ]

    return await asyncio.to_thread(choose)
