"""Builds the typed tables from the packaged files. Pure: the caller passes the loader in.

Example:
    from tercio.assets import load_table
    catalogue = build_catalogue(load_table)
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tercio.errors import InvariantViolation
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Catalogue, Gpu, Grid, InstanceType, Network
from tercio.sizing.collectives import CollectiveFit
from tercio.sizing.kernels import GemmTable

if TYPE_CHECKING:
    from tercio.sizing.calibration import Calibration

Loader = Callable[[str], bytes]
"""Name of a packaged table, `sizing/gpus.csv`, to its bytes."""

CATALOGUE_DATE = "2026-11-30"
_MODEL_TEXTS = ("name", "source", "date")


def unpacked(load: Loader, name: str) -> bytes:
    """The bytes of a table, gunzipped when its name ends in .gz."""
    raw = load(name)
    return gzip.decompress(raw) if name.endswith(".gz") else raw


def rows_of(load: Loader, name: str) -> list[dict[str, str]]:
    """The rows of a packaged CSV, every value a string."""
    return parse_rows(unpacked(load, name))


def parse_rows(raw: bytes) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(raw.decode("utf-8-sig"))))


def _optional(text: str, scale: float = 1.0) -> float | None:
    """A number, or None for a blank and for a published range: neither is one value."""
    try:
        return float(text) * scale
    except ValueError:
        return None


def build_catalogue(load: Loader) -> Catalogue:
    """The packaged catalogue of devices, instances, networks and models."""
    gpus = {row["name"]: _gpu(row) for row in rows_of(load, "sizing/gpus.csv")}
    instances = tuple(
        InstanceType(
            provider=row["provider"],
            name=row["instance"],
            gpu=row["gpu"],
            gpus=int(row["gpus_per_instance"]),
            vcpus=int(float(row["vcpus"])) if row["vcpus"] else None,
            host_memory_gib=_optional(row["host_mem_gib"]),
            nic_bytes_per_s=_optional(row["nic_gbps_total"], 1e9 / 8),
            on_demand_usd_h=_optional(row["on_demand_usd_h"]),
            spot_usd_h=_spot(row, 0),
            spot_high_usd_h=_spot(row, -1),
            price_region=row["price_region"],
            price_date=row["price_date"],
            price_source=row["price_source"],
        )
        for row in rows_of(load, "sizing/instances.csv")
    )
    networks = {
        row["platform"]: Network(
            name=row["platform"],
            nics=int(row["nics_per_node"]),
            node_bytes_per_s=float(row["total_gb_s_per_dir"]) * 1e9,
            source=row["source"],
            date=CATALOGUE_DATE,
        )
        for row in rows_of(load, "sizing/networks.csv")
    }
    models = {row["name"]: _model(row) for row in rows_of(load, "sizing/models.csv")}
    return Catalogue(
        date=CATALOGUE_DATE,
        gpus=gpus,
        instances=instances,
        networks=networks,
        models=models,
        grids=_grids(load),
    )


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["arch"],
        year=int(row["year"]),
        status=row["status"],
        memory_gb=float(row["memory_gb"]),
        memory_gib_usable=_optional(row["memory_gib_usable"]),
        memory_bytes_per_s=_optional(row["mem_bw_gb_s"], 1e9),
        fp16_flops=_optional(row["fp16_tflops"], 1e12),
        bf16_flops=_optional(row["bf16_tflops"], 1e12),
        fp8_flops=_optional(row["fp8_tflops"], 1e12),
        fp4_flops=_optional(row["fp4_tflops"], 1e12),
        tdp_w=_optional(row["tdp_w"]),
        link=row["scaleup_link"],
        link_bytes_per_s=_optional(row["scaleup_bw_gb_s_per_dir"], 1e9),
        pair_bytes_per_s=_optional(row["p2p_pair_bw_gb_s"], 1e9),
        domain=int(row["scaleup_domain_gpus"] or 1),
        source=row["source"],
        date=CATALOGUE_DATE,
        notes=row["notes"],
    )


def _spot(row: dict[str, str], end: int) -> float | None:
    """One end of a published spot price; None where it is no discount, which is no spot offer."""
    value = _optional(row["spot_usd_h"].split("-")[end])
    list_price = _optional(row["on_demand_usd_h"])
    return None if value is None or (list_price and value >= list_price) else value


def _grids(load: Loader) -> dict[str, Grid]:
    return {
        row["region"]: Grid(
            region=row["region"],
            name=row["name"],
            year=int(row["year"]),
            gco2_per_kwh=float(row["gco2_per_kwh"]),
            source=row["source"],
        )
        for row in rows_of(load, "sizing/grid.csv")
    }


def _model(row: dict[str, str]) -> ModelShape:
    fields: dict[str, str | int | bool] = {}
    for key, text in row.items():
        if key in _MODEL_TEXTS:
            fields[key] = text
        elif key.startswith(("is_", "has_")) or key == "expert_bias":
            fields[key] = text == "1"
        else:
            fields[key] = int(text)
    return msgspec.convert(fields, ModelShape)


def build_gemm_table(load: Loader) -> GemmTable:
    """Measured GEMM latencies (AIConfigurator, Apache-2.0; see NOTICE)."""
    rows = rows_of(load, "sizing/gemm_us.csv.gz")
    sizes_k = tuple(int(key[1:]) for key in rows[0] if key.startswith("k"))
    sizes_m = tuple(sorted({int(row["m"]) for row in rows}))
    sizes_n = tuple(sorted({int(row["n"]) for row in rows}))
    grids: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        grid = grids.setdefault((row["system"], row["dtype"]), [])
        previous = grid[-len(sizes_n) * len(sizes_k) :]
        for position, size in enumerate(sizes_k):
            text = row[f"k{size}"]
            # The B60 table ends at m = 8192; beyond it the time doubles with m.
            grid.append(
                math.log(float(text) * 1e-6) if text else previous[position] + math.log(2.0)
            )
    for key, grid in grids.items():
        if len(grid) != len(sizes_m) * len(sizes_n) * len(sizes_k):
            raise InvariantViolation(f"GEMM table of {key} is not a full grid")
    return GemmTable(sizes_m=sizes_m, sizes_n=sizes_n, sizes_k=sizes_k, log_seconds=grids)


def build_collective_fits(load: Loader) -> dict[tuple[str, str, int], CollectiveFit]:
    """Three-term fits of measured collectives, the newest library version of each system."""
    fits: dict[tuple[str, str, int], CollectiveFit] = {}
    for row in rows_of(load, "sizing/collectives.csv"):
        fits[(row["system"], row["op"], int(row["n_gpus"]))] = CollectiveFit(
            c0_s=float(row["c0_us"]) * 1e-6,
            c_half_s=float(row["c_half_us_per_sqrt_byte"]) * 1e-6,
            c1_s=float(row["c1_us_per_byte"]) * 1e-6,
        )
    return fits


CALIBRATION_FILE = "sizing/calibration.json.gz"


def build_calibration(load: Loader) -> Calibration:
    """The shipped calibration. Imported here: a question of fit needs none of it."""
    from tercio.sizing.calibration import decode

    return decode(unpacked(load, CALIBRATION_FILE))
