"""A site's own catalogue entries and prices, laid over the packaged ones.

The file is a mapping: `prices` gives USD per device-hour by device type, or by its terms, `gpus`
adds or changes parts by the catalogue's field names, `probes` measured speeds over predicted ones.
Everything is checked; nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from tercio.errors import UserError
from tercio.sizing.catalogue import Catalogue, Extras, Gpu, Grid, InstanceType, SpeedProbe

# A probe outside of these measured something else than the speed of the model.
RATIO_MIN = 0.02
RATIO_MAX = 50.0


class SiteGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of one part that a site may state; units as in the catalogue's columns."""

    like: str = ""
    memory_gb: float | None = None
    mem_bw_gb_s: float | None = None
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    tdp_w: float | None = None
    link_gb_s: float | None = None
    domain: int | None = None


class SitePrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per device-hour of one part on each of the terms that a site has."""

    on_demand: float | None = None
    spot: float | None = None
    committed: float | None = None


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site file."""

    date: str = ""
    prices: dict[str, float | SitePrice] = {}
    storage_usd_gb_month: float | None = None
    egress_usd_gb: float | None = None
    gco2_per_kwh: float | None = None
    gpus: dict[str, SiteGpu] = {}
    probes: tuple[SpeedProbe, ...] = ()


def parse_site(mapping: Mapping[str, object]) -> Site:
    """The site file of a parsed YAML mapping. Raises UserError naming the field."""
    try:
        return msgspec.convert(mapping, Site)
    except msgspec.ValidationError as error:
        raise UserError(f"site file: {error}", field="site") from None


def _gpu(catalogue: Catalogue, name: str, stated: SiteGpu) -> Gpu:
    base = catalogue.gpu(stated.like) if stated.like else catalogue.gpus.get(name)
    if base is None:
        if stated.memory_gb is None:
            raise UserError(
                f"site GPU {name!r} has no memory_gb",
                field=f"gpus.{name}.memory_gb",
                hint="state it, or name a catalogued part with `like`",
            )
        base = Gpu(
            name=name,
            vendor="",
            architecture="",
            year=2026,
            status="site",
            memory_gb=stated.memory_gb,
        )
    changes: dict[str, float | int | str] = {"name": name, "source": "site file"}
    for field, scale, ours in (
        ("memory_gb", 1.0, "memory_gb"),
        ("mem_bw_gb_s", 1e9, "memory_bytes_per_s"),
        ("bf16_tflops", 1e12, "bf16_flops"),
        ("fp8_tflops", 1e12, "fp8_flops"),
        ("fp4_tflops", 1e12, "fp4_flops"),
        ("tdp_w", 1.0, "tdp_w"),
        ("link_gb_s", 1e9, "link_bytes_per_s"),
    ):
        value = getattr(stated, field)
        if value is None:
            continue
        if not 0 < value < math.inf:
            raise UserError(
                f"site GPU {name!r}: {field} is {value:g}, and must be above 0",
                field=f"gpus.{name}.{field}",
            )
        changes[ours] = value * scale
    if stated.domain is not None:
        if stated.domain < 1:
            raise UserError(
                f"site GPU {name!r}: domain must be at least 1", field=f"gpus.{name}.domain"
            )
        changes["domain"] = stated.domain
    return msgspec.structs.replace(base, **changes)


def with_site(catalogue: Catalogue, site: Site) -> Catalogue:
    """The catalogue with the site's parts, and its prices before all published ones."""
    gpus = dict(catalogue.gpus)
    for name, stated in site.gpus.items():
        gpus[name] = _gpu(catalogue, name, stated)
    merged = msgspec.structs.replace(catalogue, gpus=gpus)
    offers: list[InstanceType] = []
    for name, price in site.prices.items():
        offers.append(_site_offer(merged, site, name, price))
    own = {offer.gpu: offer for offer in offers}
    kept = [_without(offer, own.get(offer.gpu)) for offer in catalogue.instances]
    probes = tuple(_probe(merged, number, row) for number, row in enumerate(site.probes))
    return msgspec.structs.replace(
        merged, instances=(*offers, *kept), probes=probes, extras=_extras(site)
    )


def _site_offer(
    catalogue: Catalogue, site: Site, name: str, stated: float | SitePrice
) -> InstanceType:
    prices = stated if isinstance(stated, SitePrice) else SitePrice(on_demand=stated)
    found: dict[str, float | None] = {}
    for term in SitePrice.__struct_fields__:
        usd = getattr(prices, term)
        if usd is not None and not 0 < usd < math.inf:
            raise UserError(
                f"price of {name!r} is {usd:g}, and must be above 0", field=f"prices.{name}"
            )
        found[f"{term}_usd_h"] = None if usd is None else 8.0 * usd
    offer = InstanceType(
        provider="site",
        name="site",
        gpu=catalogue.gpu(name).name,
        gpus=8,
        price_date=site.date,
        price_source="site file",
    )
    return msgspec.structs.replace(offer, **found)


def _without(offer: InstanceType, own: InstanceType | None) -> InstanceType:
    """A published offer less the terms on which the site has a price of its own."""
    if own is None:
        return offer
    return msgspec.structs.replace(
        offer,
        on_demand_usd_h=None if own.on_demand_usd_h else offer.on_demand_usd_h,
        spot_usd_h=None if own.spot_usd_h else offer.spot_usd_h,
        spot_high_usd_h=None if own.spot_usd_h else offer.spot_high_usd_h,
        committed_usd_h=None if own.committed_usd_h else offer.committed_usd_h,
    )


def _extras(site: Site) -> Extras:
    for field in ("storage_usd_gb_month", "egress_usd_gb", "gco2_per_kwh"):
        value = getattr(site, field)
        if value is not None and not 0 <= value < math.inf:
            raise UserError(f"site file: {field} is {value:g}, and must be 0 or more", field=field)
    grid = site.gco2_per_kwh
    return Extras(
        storage_usd_gb_month=site.storage_usd_gb_month,
        egress_usd_gb=site.egress_usd_gb,
        grid=None if grid is None else Grid(region="site", name="site", year=0, gco2_per_kwh=grid),
    )


def _probe(catalogue: Catalogue, number: int, row: SpeedProbe) -> SpeedProbe:
    if not RATIO_MIN <= row.ratio <= RATIO_MAX:
        raise UserError(
            f"probe of {row.model!r}: ratio is {row.ratio:g}",
            field=f"probes.{number}.ratio",
            hint=f"measured over predicted speed lies between {RATIO_MIN:g} and {RATIO_MAX:g}",
        )
    return msgspec.structs.replace(row, gpu=catalogue.gpu(row.gpu).name)
