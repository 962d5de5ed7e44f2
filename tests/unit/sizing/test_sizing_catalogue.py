from __future__ import annotations

import pytest

from tercio.errors import UserError
from tercio.sizing.catalogue import Catalogue


def test_every_fact_has_a_source_and_a_date(catalogue: Catalogue) -> None:
    for gpu in catalogue.gpus.values():
        assert gpu.source, gpu.name
        assert gpu.date, gpu.name
    for network in catalogue.networks.values():
        assert network.source, network.name
        assert network.date, network.name
    for model in catalogue.models.values():
        assert model.source, model.name
        assert model.date, model.name
    for offer in catalogue.instances:
        if offer.on_demand_usd_h is not None:
            assert offer.price_source, offer.name
            assert offer.price_date, offer.name


def test_prices_are_no_placeholders_and_counts_no_errors(catalogue: Catalogue) -> None:
    for offer in catalogue.instances:
        assert 1 <= offer.gpus <= 16 or offer.gpu.startswith(("TPU", "GB")), offer.name
        if offer.on_demand_usd_h is not None:
            assert 0.1 < offer.on_demand_usd_h / offer.gpus < 20, offer.name
    aws = {o.name: o.on_demand_usd_h for o in catalogue.instances if o.provider == "AWS"}
    assert aws["p5.48xlarge"] == 55.04


def test_instances_name_catalogued_parts(catalogue: Catalogue) -> None:
    assert [o.name for o in catalogue.instances if o.gpu not in catalogue.gpus] == []


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
        ("zhipuai/GLM-5", "zai-org/GLM-5-FP8"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
    ],
)
def test_models_are_found_by_their_usual_names(catalogue: Catalogue, alias: str, name: str) -> None:
    assert catalogue.model(alias).name == name or catalogue.model(alias).hidden == (
        catalogue.model(name).hidden
    )


def test_unknown_names_come_with_the_nearest(catalogue: Catalogue) -> None:
    with pytest.raises(UserError, match="unknown model 'lama-3-8b'") as caught:
        catalogue.model("lama-3-8b")
    assert "Meta-Llama-3-8B" in (caught.value.hint or "")
    with pytest.raises(UserError, match="unknown GPU") as caught:
        catalogue.gpu("H10O")
    assert "h100" in (caught.value.hint or "").lower()
