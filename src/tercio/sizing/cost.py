"""Money, energy and goodput of a run: prices as published, never guessed.

Price of one device-hour comes from the catalogue's dated instances. Node power is board power times
a node factor times PUE. Goodput follows Young and Daly with the interruption rate published for
Llama 3 (one per 50,700 device-hours, 2407.21783).
"""

from __future__ import annotations

import math

import msgspec

from tercio.errors import UserError
from tercio.sizing.catalogue import Catalogue, Gpu, Grid, InstanceType

INTERRUPTION_HOURS = 50_700.0
RESTART_S = 600.0
CHECKPOINT_S = 60.0

# Node over board power under load (DGX H100: 10.2 kW for 8 x 700 W at most, 1.4 to 1.5 typical),
# and facility over node.
NODE_FACTOR = 1.45
PUE = 1.2

# Board power as a share of its limit while training; prefill and training draw 85 to 100 %.
TRAINING_POWER_RATIO = 0.9


# Checkpoints that are kept at once, and days of a month of storage.
KEPT_CHECKPOINTS = 2
MONTH_DAYS = 30.4

TERMS = ("on-demand", "spot", "committed")


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What one device-hour costs on the terms asked for: the lowest published, and the highest.

    `spot_usd_h` and `committed_usd_h` are the lowest published on the other terms, or None.
    """

    usd_h: float
    high_usd_h: float
    spot_usd_h: float | None
    provider: str
    instance_type: str
    date: str
    source: str
    is_recalled: bool
    term: str = "on-demand"
    committed_usd_h: float | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is paid and powered: one of TERMS, and the grid by name; "" for the site's own."""

    price: str = "on-demand"
    grid: str = ""


def _offer(offered: InstanceType, term: str) -> tuple[float, float] | None:
    """Lowest and highest USD per instance-hour of an instance type on some terms."""
    low, high = {
        "on-demand": (offered.on_demand_usd_h, offered.on_demand_usd_h),
        "spot": (offered.spot_usd_h, offered.spot_high_usd_h or offered.spot_usd_h),
        "committed": (offered.committed_usd_h, offered.committed_usd_h),
    }[term]
    return None if low is None or high is None else (low, high)


def device_price(
    catalogue: Catalogue, gpu: Gpu, *, gpus: int, term: str = "on-demand"
) -> Price | None:
    """The published price of one device of that part for a job of `gpus`; None where there is none.

    A job of a node or more is priced on whole nodes, so a one-device instance does not set its
    price. A price read in a provider's own list goes before a recalled one. Raises UserError for
    unknown terms.
    """
    if term not in TERMS:
        raise UserError(f"unknown price {term!r}", field="price", hint="one of " + ", ".join(TERMS))
    offers: list[tuple[bool, float, float, InstanceType]] = []
    others: dict[str, list[float]] = {name: [] for name in TERMS}
    for offered in catalogue.instances:
        if offered.gpu != gpu.name or offered.gpus < 1 or (gpus >= 4 and offered.gpus < 4):
            continue
        for name in TERMS:
            found = _offer(offered, name)
            if found is None:
                continue
            low, high = found[0] / offered.gpus, found[1] / offered.gpus
            others[name].append(low)
            if name == term:
                offers.append(("recalled" in offered.price_source, low, high, offered))
    if not offers:
        return None
    offers.sort(key=lambda offer: (offer[0], offer[1], offer[3].name))
    read = [offer for offer in offers if not offer[0]] or offers
    recalled, low, _, best = read[0]
    return Price(
        usd_h=low,
        high_usd_h=max(offer[2] for offer in read),
        spot_usd_h=min(others["spot"], default=None),
        provider=best.provider,
        instance_type=best.name,
        date=best.price_date,
        source=best.price_source,
        is_recalled=recalled,
        term=term,
        committed_usd_h=min(others["committed"], default=None),
    )


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a run costs beside its devices; None where nothing is catalogued or stated.

    Attributes:
        energy_kwh: at the meter: boards, hosts and cooling.
        carbon_kg: of that energy on the grid that was named.
        storage_usd: two checkpoints, kept for the run.
        egress_usd: the finished weights (an adapter for LoRA), moved out once.
    """

    energy_kwh: float | None
    carbon_kg: float | None
    storage_usd: float | None
    egress_usd: float | None
    grid: Grid | None


def footprint(
    catalogue: Catalogue,
    gpu: Gpu,
    terms: Terms,
    *,
    gpus: int,
    hours: float,
    checkpoint_bytes: float,
    weight_bytes: float,
) -> Footprint:
    """Energy, carbon, storage and egress of a run of `hours` on `gpus` devices."""
    power, grid = facility_power_w(gpu, gpus=gpus), catalogue.grid(terms.grid)
    kwh = None if power is None else power * hours / 1000.0
    extras = catalogue.extras
    stored_gb = KEPT_CHECKPOINTS * checkpoint_bytes / 1e9
    months = hours / 24.0 / MONTH_DAYS
    return Footprint(
        energy_kwh=kwh,
        carbon_kg=None if kwh is None or grid is None else kwh * grid.gco2_per_kwh / 1000.0,
        storage_usd=_times(extras.storage_usd_gb_month, stored_gb * months),
        egress_usd=_times(extras.egress_usd_gb, weight_bytes / 1e9),
        grid=grid,
    )


def _times(price: float | None, amount: float) -> float | None:
    return None if price is None else price * amount


def goodput_ratio(gpus: int, *, checkpoint_s: float = CHECKPOINT_S) -> float:
    """Useful share of device time: checkpoints at Young's interval, lost work, restarts.

    Interval sqrt(2 delta MTBF); lost share sqrt(2 delta / MTBF) + restart / MTBF.
    """
    mtbf_s = INTERRUPTION_HOURS * 3600.0 / max(gpus, 1)
    lost = math.sqrt(2.0 * checkpoint_s / mtbf_s) + RESTART_S / mtbf_s
    return max(0.05, 1.0 - lost)


def checkpoint_interval_s(gpus: int, *, checkpoint_s: float = CHECKPOINT_S) -> float:
    """Young's interval between checkpoints."""
    return math.sqrt(2.0 * checkpoint_s * INTERRUPTION_HOURS * 3600.0 / max(gpus, 1))


def checkpoint_bytes(parameters: float) -> float:
    """A full training checkpoint: bf16 weights, fp32 master copy and two moments."""
    return 14.0 * parameters


def batch_guard_tokens(flops: float) -> float:
    """Global batch beyond which more tokens per step buy little: 0.2920 C^0.3271 (2401.02954).

    C is the training budget in FLOPs. Published runs of 7 to 405 B stay within 4 to 16 M tokens.
    """
    return 0.2920 * math.pow(flops, 0.3271)


def facility_power_w(
    gpu: Gpu, *, gpus: int, board_ratio: float = TRAINING_POWER_RATIO
) -> float | None:
    """Power at the meter of `gpus` devices; None where the catalogue has no board power."""
    if gpu.tdp_w is None:
        return None
    return gpus * gpu.tdp_w * board_ratio * NODE_FACTOR * PUE
