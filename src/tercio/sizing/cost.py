"""Money, energy and goodput of a run: prices as published, never guessed.

Price of one device-hour comes from the catalogue's dated instances. Node power is board power times
a node factor times PUE. Goodput follows Young and Daly with the interruption rate published for
Llama 3 (one per 50,700 device-hours, 2407.21783).
"""

from __future__ import annotations

import math

import msgspec

from tercio.sizing.catalogue import Catalogue, Gpu, InstanceType

INTERRUPTION_HOURS = 50_700.0
RESTART_S = 600.0
CHECKPOINT_S = 60.0

# Node over board power under load (DGX H100: 10.2 kW for 8 x 700 W at most, 1.4 to 1.5 typical),
# and facility over node.
NODE_FACTOR = 1.45
PUE = 1.2

# Board power as a share of its limit while training; prefill and training draw 85 to 100 %.
TRAINING_POWER_RATIO = 0.9


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What one device-hour costs, on demand: the lowest published price, and the highest."""

    usd_h: float
    high_usd_h: float
    spot_usd_h: float | None
    provider: str
    instance_type: str
    date: str
    source: str
    is_recalled: bool


def device_price(catalogue: Catalogue, gpu: Gpu, *, gpus: int) -> Price | None:
    """The published price of one device of that part for a job of `gpus`; None where there is none.

    A job of a node or more is priced on whole nodes, so a one-device instance does not set its
    price. A price read in a provider's own list goes before a recalled one.
    """
    offers: list[tuple[bool, float, InstanceType]] = []
    for offered in catalogue.instances:
        if offered.gpu != gpu.name or offered.on_demand_usd_h is None or offered.gpus < 1:
            continue
        if gpus >= 4 and offered.gpus < 4:
            continue
        recalled = "recalled" in offered.price_source
        offers.append((recalled, offered.on_demand_usd_h / offered.gpus, offered))
    if not offers:
        return None
    offers.sort(key=lambda offer: (offer[0], offer[1], offer[2].name))
    read = [offer for offer in offers if not offer[0]] or offers
    recalled, low, best = read[0]
    spots = [o[2].spot_usd_h / o[2].gpus for o in offers if o[2].spot_usd_h is not None]
    return Price(
        usd_h=low,
        high_usd_h=max(offer[1] for offer in read),
        spot_usd_h=min(spots) if spots else None,
        provider=best.provider,
        instance_type=best.name,
        date=best.price_date,
        source=best.price_source,
        is_recalled=recalled,
    )


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
