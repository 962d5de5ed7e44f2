"""The typed catalogue: devices, instances, networks and models, each with its source and date.

A blank field stays None: nothing here guesses. A lookup of an unknown name raises `UserError`
with the nearest names. The catalogue is a value: `tercio.assets` reads the packaged tables and
passes the rows in, a site file may override prices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from tercio.errors import UserError, did_you_mean
from tercio.sizing.architecture import ModelShape

GIB = 1024**3
GB = 10**9


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator. Dense rates only (no sparsity); link bandwidth in one direction."""

    name: str
    vendor: str
    architecture: str
    year: int
    status: str
    memory_gb: float
    memory_gib_usable: float | None = None
    memory_bytes_per_s: float | None = None
    fp16_flops: float | None = None
    bf16_flops: float | None = None
    fp8_flops: float | None = None
    fp4_flops: float | None = None
    tdp_w: float | None = None
    link: str = ""
    link_bytes_per_s: float | None = None
    pair_bytes_per_s: float | None = None
    domain: int = 1
    source: str = ""
    date: str = ""
    notes: str = ""

    @property
    def usable_bytes(self) -> float:
        """Memory a program can use: the driver's value where seen, else 0.975 of marketing GB.

        The seen ratios run from 0.93 (B300) to 1.0; HBM parts of 80 to 141 GB show 0.99 GiB per GB
        because vendors print GiB as GB.
        """
        if self.memory_gib_usable is not None:
            return self.memory_gib_usable * GIB
        return self.memory_gb * 0.985 * GIB

    def flops(self, precision: str) -> float:
        """Peak dense FLOP/s for `precision` (fp32 excluded): the widest rate the part has for it.

        A part without the narrow format computes in the next wider one. Raises UserError naming the
        missing catalogue field when no rate is known.
        """
        half = self.bf16_flops or self.fp16_flops
        rate = half
        if precision in ("fp8", "mxfp8", "nvfp4", "fp4", "mxfp4") and self.fp8_flops:
            rate = self.fp8_flops
        if precision in ("nvfp4", "fp4", "mxfp4") and self.fp4_flops:
            rate = self.fp4_flops
        if not rate:
            raise UserError(
                f"the catalogue has no bf16 or fp16 rate for {self.name}",
                code="unsupported",
                field="bf16_flops",
                hint="add bf16_tflops for this part in a site catalogue file",
            )
        return rate

    def bandwidth(self) -> float:
        """Memory bandwidth in bytes per second. Raises UserError when it is blank or 0."""
        if not self.memory_bytes_per_s or self.memory_bytes_per_s <= 0:
            raise UserError(
                f"the catalogue has no memory bandwidth for {self.name}",
                code="unsupported",
                field="memory_bytes_per_s",
                hint="add mem_bw_gb_s for this part in a site catalogue file",
            )
        return self.memory_bytes_per_s


class InstanceType(msgspec.Struct, frozen=True, kw_only=True):
    """One cloud instance type. Prices in USD per instance-hour; None where none is published.

    Spot prices are often published as a range: its ends are `spot_usd_h` and `spot_high_usd_h`.
    """

    provider: str
    name: str
    gpu: str
    gpus: int
    vcpus: int | None = None
    host_memory_gib: float | None = None
    nic_bytes_per_s: float | None = None
    on_demand_usd_h: float | None = None
    spot_usd_h: float | None = None
    spot_high_usd_h: float | None = None
    committed_usd_h: float | None = None
    price_region: str = ""
    price_date: str = ""
    price_source: str = ""


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Mean carbon of a kilowatt-hour in one region and year, in grams of CO2 equivalent."""

    region: str
    name: str
    year: int
    gco2_per_kwh: float
    source: str = ""


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What only a site can say: USD per GB-month stored and per GB that leaves; its own grid."""

    storage_usd_gb_month: float | None = None
    egress_usd_gb: float | None = None
    grid: Grid | None = None


class SpeedProbe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured speed of a site: tokens per second over the prediction of the catalogue.

    `method` is pretrain, full, lora or qlora; `gpu` a part by name or alias.
    """

    model: str
    method: str
    gpu: str
    ratio: float
    date: str = ""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The network of one node platform: bytes per second of a node, one direction."""

    name: str
    nics: int
    node_bytes_per_s: float
    source: str = ""
    date: str = ""


# Names that users and published tables give to a part, to its catalogue name.
GPU_ALIASES: Mapping[str, str] = {
    "a100": "A100-SXM4-80GB",
    "a100_40gb": "A100-SXM4-40GB",
    "a100-40gb": "A100-SXM4-40GB",
    "a100_80gb": "A100-SXM4-80GB",
    "a100-80gb": "A100-SXM4-80GB",
    "a100-sxm": "A100-SXM4-80GB",
    "a100_sxm": "A100-SXM4-80GB",
    "h100": "H100-SXM5-80GB",
    "h100_80gb": "H100-SXM5-80GB",
    "h100-80gb": "H100-SXM5-80GB",
    "h100_sxm": "H100-SXM5-80GB",
    "h100-sxm": "H100-SXM5-80GB",
    "h200": "H200-SXM5-141GB",
    "h200_sxm": "H200-SXM5-141GB",
    "h20": "H20-SXM5-96GB",
    "b200": "B200-SXM-180GB",
    "b200_sxm": "B200-SXM-180GB",
    "b300": "B300-SXM-288GB",
    "b300_sxm": "B300-SXM-288GB",
    "gh200": "GH200-96GB",
    "v100": "V100-SXM2-32GB",
    "v100-32gb": "V100-SXM2-32GB",
    "a6000": "RTX-A6000",
    "rtx a6000": "RTX-A6000",
    "rtx 4090": "RTX-4090",
    "rtx 3090": "RTX-3090",
    "rtx 5090": "RTX-5090",
    "4090": "RTX-4090",
    "3090": "RTX-3090",
    "rtxpro6000": "RTX-PRO-6000-Server",
    "rtx_pro_6000_server": "RTX-PRO-6000-Server",
    "p100": "P100-SXM2-16GB",
}

# Parts with a measured kernel table, and the system name of that table.
KERNEL_SYSTEMS: Mapping[str, str] = {
    "A100-SXM4-40GB": "a100_sxm",
    "A100-SXM4-80GB": "a100_sxm",
    "H100-SXM5-80GB": "h100_sxm",
    "H200-SXM5-141GB": "h200_sxm",
    "B200-SXM-180GB": "b200_sxm",
    "B300-SXM-288GB": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
    "RTX-PRO-6000-Server": "rtx_pro_6000_server",
    "Arc-Pro-B60": "b60",
}


def model_key(name: str) -> str:
    """A name without organisation, case, punctuation: `meta-llama/Llama-3-8B` is `llama38b`."""
    key = re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())
    return key.removeprefix("meta").removeprefix("nvidia") or key


_VARIANT = re.compile(r"(instruct|base|chat|hf|it|v0\d|bf16|fp8|nvfp4|thinking|2507)+$")


def _stem(key: str) -> str:
    """A model key without the words of its release: `mixtral8x7bv01` -> `mixtral8x7b`."""
    return _VARIANT.sub("", key) or key


def _median(values: Sequence[float]) -> float:
    """The middle value; `statistics` alone would be a tenth of the time of a short command."""
    ordered, half = sorted(values), len(values) // 2
    return (ordered[half] + ordered[-half - 1]) / 2.0


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All tables, by name. `date` is the version that every answer carries."""

    date: str
    gpus: Mapping[str, Gpu]
    instances: Sequence[InstanceType]
    networks: Mapping[str, Network]
    models: Mapping[str, ModelShape]
    probes: Sequence[SpeedProbe] = ()
    grids: Mapping[str, Grid] = {}
    extras: Extras = Extras()

    def grid(self, region: str) -> Grid | None:
        """The grid of a region by code or name, or of a number in g/kWh; the site's for "".

        Raises:
            UserError: the region is not in the table, with the nearest names.
        """
        wanted = region.strip()
        if not wanted:
            return self.extras.grid
        if re.fullmatch(r"\d+(\.\d+)?", wanted):
            return Grid(region=wanted, name="as given", year=0, gco2_per_kwh=float(wanted))
        for row in self.grids.values():
            if wanted.lower() in (row.region.lower(), row.name.lower()):
                return row
        known = [text for row in self.grids.values() for text in (row.region, row.name)]
        raise UserError(
            f"unknown grid {region!r}",
            code="not_found",
            field="grid",
            hint=did_you_mean(wanted, known) or "a country such as USA or France, or grams per kWh",
        )

    def speed_ratio(self, model: str, method: str, gpu: str) -> float:
        """Measured over predicted speed, by the site's probes; 1 where none speaks of it.

        The last probe of the same model decides; without one, the median over the other models
        of the same method and part.
        """
        alike = [row for row in self.probes if (row.method, row.gpu) == (method, gpu)]
        same = [row.ratio for row in alike if model_key(row.model) == model_key(model)]
        if same:
            return same[-1]
        return _median([row.ratio for row in alike]) if alike else 1.0

    def gpu(self, name: str) -> Gpu:
        """The part of that name or alias. Raises UserError with the nearest names."""
        wanted = name.strip()
        by_lower = {known.lower(): known for known in self.gpus}
        found = by_lower.get(GPU_ALIASES.get(wanted.lower(), wanted).lower())
        if found is None:
            known = [*self.gpus, *(alias for alias in GPU_ALIASES)]
            raise UserError(
                f"unknown GPU {name!r}",
                code="not_found",
                field="gpu",
                hint=did_you_mean(wanted, known) or "`tercio size gpus` lists the catalogue",
            )
        return self.gpus[found]

    def model(self, name: str) -> ModelShape:
        """The model of that name, organisation optional. Raises UserError with near names."""
        if name in self.models:
            return self.models[name]
        wanted = model_key(name)
        keys: dict[str, str] = {}
        for known in self.models:
            keys.setdefault(model_key(known), known)
        if wanted in keys:
            return self.models[keys[wanted]]
        stems: dict[str, str] = {}
        for key, known in keys.items():
            stems.setdefault(_stem(key), known)
        if _stem(wanted) in stems:
            return self.models[stems[_stem(wanted)]]
        short = {key: known.rsplit("/", 1)[-1] for key, known in keys.items()}
        near = did_you_mean(wanted, short)
        if near is not None:
            for key, label in short.items():
                near = near.replace(f"'{key}'", f"'{label}'")
        raise UserError(
            f"unknown model {name!r}",
            code="not_found",
            field="model",
            hint=near or "give --config with the model's config.json",
        )
