"""Money and carbon: what is published, what a site states, and blanks that stay blanks."""

from __future__ import annotations

import msgspec
import pytest

from tercio.errors import UserError
from tercio.sizing import cost
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.cost import Terms, device_price, footprint
from tercio.sizing.site import parse_site, with_site


def site(catalogue: Catalogue, **stated: object) -> Catalogue:
    return with_site(catalogue, parse_site(stated))


def test_spot_is_published_for_some_and_committed_for_none(catalogue: Catalogue) -> None:
    h100 = catalogue.gpu("H100")
    list_price = device_price(catalogue, h100, gpus=8)
    spot = device_price(catalogue, h100, gpus=8, term="spot")
    assert list_price is not None
    assert spot is not None
    assert spot.usd_h < list_price.usd_h
    assert list_price.spot_usd_h == spot.usd_h
    assert device_price(catalogue, h100, gpus=8, term="committed") is None


def test_a_spot_price_that_is_no_discount_is_no_offer(catalogue: Catalogue) -> None:
    for offer in catalogue.instances:
        if offer.spot_usd_h is not None and offer.on_demand_usd_h is not None:
            assert 0 < offer.spot_usd_h < offer.on_demand_usd_h
            assert offer.spot_usd_h <= (offer.spot_high_usd_h or offer.spot_usd_h)


def test_a_published_range_keeps_both_ends(catalogue: Catalogue) -> None:
    aws = next(o for o in catalogue.instances if o.name == "p5.48xlarge")
    assert (aws.spot_usd_h, aws.spot_high_usd_h) == (14.2, 22.7)


def test_a_site_states_any_term_and_the_others_stay_published(catalogue: Catalogue) -> None:
    ours = site(catalogue, prices={"H100": {"committed": 1.5}}, date="2026-12-01")
    h100 = ours.gpu("H100")
    committed = device_price(ours, h100, gpus=8, term="committed")
    assert committed is not None
    assert (committed.usd_h, committed.provider) == (1.5, "site")
    assert device_price(ours, h100, gpus=8) == msgspec.structs.replace(
        device_price(catalogue, h100, gpus=8), committed_usd_h=1.5
    )
    own = device_price(site(catalogue, prices={"H100": 2.0}), h100, gpus=8)
    assert own is not None
    assert (own.usd_h, own.high_usd_h) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({"prices": {"H100": -1.0}}, "prices.H100"),
        ({"prices": {"H100": {"spot": 0.0}}}, "prices.H100"),
        ({"prices": {"H100": float("nan")}}, "prices.H100"),
        ({"egress_usd_gb": -0.1}, "egress_usd_gb"),
        ({"gco2_per_kwh": -5.0}, "gco2_per_kwh"),
        ({"prices": {"H100": {"monthly": 1.0}}}, "site"),
    ],
)
def test_nonsense_prices_name_their_field(
    catalogue: Catalogue, stated: dict[str, object], field: str
) -> None:
    with pytest.raises(UserError) as caught:
        site(catalogue, **stated)
    assert caught.value.field == field


def test_unknown_terms_are_refused(catalogue: Catalogue) -> None:
    with pytest.raises(UserError, match="unknown price"):
        device_price(catalogue, catalogue.gpu("H100"), gpus=8, term="free")


def test_blanks_stay_blanks_and_a_site_fills_them(catalogue: Catalogue) -> None:
    def of(known: Catalogue, grid: str) -> cost.Footprint:
        return footprint(
            known, known.gpu("H100"), Terms(grid=grid), gpus=8, hours=304 * 2.4,
            checkpoint_bytes=100e9, weight_bytes=16e9,
        )  # fmt: skip

    bare = of(catalogue, "")
    assert (bare.carbon_kg, bare.storage_usd, bare.egress_usd) == (None, None, None)
    assert bare.energy_kwh is not None
    assert of(catalogue, "France").carbon_kg == pytest.approx(bare.energy_kwh * 0.04418)
    assert of(catalogue, "usa").grid == catalogue.grids["USA"]
    assert of(catalogue, "250").carbon_kg == pytest.approx(bare.energy_kwh / 4)
    ours = of(site(catalogue, storage_usd_gb_month=0.02, egress_usd_gb=0.1, gco2_per_kwh=100.0), "")
    # Two checkpoints of 100 GB for a month, 16 GB moved once.
    assert ours.storage_usd == pytest.approx(4.0)
    assert ours.egress_usd == pytest.approx(1.6)
    assert ours.carbon_kg == pytest.approx(bare.energy_kwh / 10)


def test_every_grid_has_a_year_a_source_and_a_sane_value(catalogue: Catalogue) -> None:
    assert len(catalogue.grids) > 40
    for grid in catalogue.grids.values():
        assert 2022 <= grid.year <= 2026
        assert grid.source
        assert 20 <= grid.gco2_per_kwh <= 950
    with pytest.raises(UserError, match="unknown grid") as caught:
        catalogue.grid("Frnace")
    assert "France" in (caught.value.hint or "")
