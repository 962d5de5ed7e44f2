"""What marks say of a run, and how a site's probes enter the next prediction."""

from __future__ import annotations

import msgspec
import pytest

from tercio.cli.sizing_probe import with_probe
from tercio.errors import UserError
from tercio.model.readings import Marks
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.devices import ModelBlock, choose_devices
from tercio.sizing.kernels import GemmTable
from tercio.sizing.probe import foretell, measure
from tercio.sizing.site import parse_site, with_site

# Nine steps: the first two slow, then 2 s each; a checkpoint of 5 s within the fifth.
ENDS = (0.0, 30.0, 40.0, 42.0, 49.0, 51.0, 53.0, 55.5, 57.0)
MARKS = Marks(
    step_count=9, first_step_s=0.0, last_step_s=57.0, early_s=ENDS, checkpoints=((43.0, 48.0),),
    step_tokens=1000.0, checkpoint_bytes=7e9,
)  # fmt: skip


def test_warm_up_and_checkpoints_do_not_count() -> None:
    found = measure(MARKS)
    assert (found.steps, found.warm_up_steps) == (9, 2)
    assert (found.step_low_s, found.step_s, found.step_high_s) == (1.5, 2.0, 2.5)
    assert found.tokens_per_s == 500.0
    assert (found.checkpoint_s, found.checkpoint_bytes) == (5.0, 7e9)
    assert measure(MARKS, step_tokens=4000.0).tokens_per_s == 2000.0


def test_without_marks_of_tokens_or_checkpoints_none_is_made_up() -> None:
    found = measure(Marks(step_count=9, early_s=ENDS))
    assert (found.tokens_per_s, found.checkpoint_s, found.checkpoint_bytes) == (None, None, None)


@pytest.mark.parametrize("marks", [None, Marks(step_count=3, early_s=(1.0, 2.0, 3.0))])
def test_too_few_steps_are_refused_with_the_way_to_mark(marks: Marks | None) -> None:
    with pytest.raises(UserError, match="too few") as caught:
        measure(marks)
    assert "TERCIO_MARKS" in (caught.value.hint or "")


def test_steps_without_time_are_refused() -> None:
    with pytest.raises(UserError, match="no time"):
        measure(Marks(step_count=5, early_s=(7.0,) * 5))


def site(catalogue: Catalogue, *rows: tuple[str, str, str, float]) -> Catalogue:
    probes = [{"model": m, "method": how, "gpu": g, "ratio": r} for m, how, g, r in rows]
    return with_site(catalogue, parse_site({"probes": probes}))


def test_the_last_probe_of_a_model_decides_and_others_stand_in(catalogue: Catalogue) -> None:
    found = site(
        catalogue, ("llama-3-8b", "full", "H100", 0.5), ("llama-3-8b", "full", "h100", 0.8),
        ("qwen3-8b", "full", "H100", 1.2), ("llama-3-8b", "full", "B200", 2.0),
    )  # fmt: skip
    h100 = catalogue.gpu("H100").name
    assert found.speed_ratio("meta-llama/Llama-3-8B", "full", h100) == 0.8
    assert found.speed_ratio("gpt-oss-20b", "full", h100) == 0.8
    assert found.speed_ratio("llama-3-8b", "lora", h100) == 1.0
    assert catalogue.speed_ratio("llama-3-8b", "full", h100) == 1.0


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1000.0])
def test_an_absurd_ratio_is_refused_by_its_field(catalogue: Catalogue, ratio: float) -> None:
    with pytest.raises(UserError, match="ratio is") as caught:
        site(catalogue, ("llama-3-8b", "full", "H100", ratio))
    assert caught.value.field == "probes.0.ratio"


@pytest.mark.parametrize("method", ["full", "pretrain"])
def test_a_probe_moves_every_prediction_of_its_method_and_part(
    catalogue: Catalogue, kernels: GemmTable, fits: CollectiveFits, calibration: Calibration,
    method: str,
) -> None:  # fmt: skip
    shape, gpu = catalogue.model("llama-3-8b"), catalogue.gpu("H100")
    block = ModelBlock(shape=shape, method=method, tokens=1e9, seq=4096, batch_tokens=262_144.0)
    probed = site(catalogue, ("llama-3-8b", method, "H100", 0.5))
    one, two = (
        foretell(c, block, gpu, 8, kernels=kernels, fits=fits, calibration=calibration)
        for c in (catalogue, probed)
    )
    assert two.tokens_per_s == pytest.approx(0.5 * one.tokens_per_s)
    assert one.tokens_per_s_low < one.tokens_per_s < one.tokens_per_s_high
    first, *_ = choose_devices(
        probed, block, [gpu], counts=(8,), kernels=kernels, fits=fits, calibration=calibration
    )
    assert first.probe_ratio == 0.5


ROW = '{"ratio": 1}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"probes:\n  - {ROW}\n"),
        ("prices: {H100: 2}  # ours\n", f"prices: {{H100: 2}}  # ours\nprobes:\n  - {ROW}\n"),
        (
            "probes:\n- {a: 1}\n\ndate: x\n",
            f"probes:\n- {{a: 1}}\n- {ROW}\n\ndate: x\n",
        ),
    ],
)
def test_a_saved_probe_leaves_the_file_as_it_was(before: str, after: str) -> None:
    assert with_probe(before, ROW) == after


@pytest.mark.parametrize("body", ["probes: [{a: 1}]\n", "probes:\n  - a: 1\n    b: 2\n"])
def test_a_list_in_another_form_is_left_to_its_owner(body: str) -> None:
    with pytest.raises(UserError, match="not a list") as caught:
        with_probe(body, ROW)
    assert ROW in (caught.value.hint or "")


def test_marks_survive_their_journal() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MARKS), type=Marks) == MARKS
