from __future__ import annotations

import pytest

from tercio.sizing.catalogue import Catalogue
from tercio.sizing.families import family
from tercio.sizing.tables_memory import read_memory
from tercio.sizing.tables_papers import read_papers
from tercio.sizing.tables_serve import read_energy, read_inferencex, serve_family
from tercio.sizing.tables_train import read_llm_foundry, read_nemo, release_months
from tercio.sizing.validate import COLUMNS

FOUNDRY = {
    "model": "7b", "seq_len": "2048", "n_gpus": "8", "gpu": "a100_80gb", "precision": "amp_bf16",
    "mp_mode": "DEFAULT", "fsdp_sharding": "FULL_SHARD", "act_ckpt": "True",
    "microbatch_per_gpu": "4", "grad_accum": "2", "tokens_per_s": "30000", "mfu_flag": "ok",
}  # fmt: skip
NEMO = {
    "model": "LLAMA3_70B", "system": "DGX-H100", "n_gpus": "64", "precision": "FP8",
    "task": "pretrain", "gbs": "128", "mbs": "1", "seq_len": "8192", "tp": "4", "pp": "8",
    "cp": "1", "vp": "5", "ep": "1", "fsdp": "0", "tokens_per_s_per_gpu": "1600", "kernels": "",
    "release": "25.09", "source": "NVIDIA-NeMo/Megatron-Bridge",
}  # fmt: skip


def blank(table: str, **cells: str) -> dict[str, str]:
    return {column: "" for column in COLUMNS[table]} | cells


def test_failed_and_implausible_foundry_rows_are_left_out_with_reasons(
    catalogue: Catalogue,
) -> None:
    rows = [
        FOUNDRY,
        {**FOUNDRY, "tokens_per_s": "-1"},
        {**FOUNDRY, "mfu_flag": "implausible (>100% of peak), exclude"},
        {**FOUNDRY, "model": "9b"},
    ]
    read = read_llm_foundry(catalogue, rows)
    assert len(read.observations) == 1
    assert dict(read.excluded) == {
        "failed run or missing plan": 1,
        "flagged implausible upstream": 1,
        "unknown model or GPU": 1,
    }
    plan = read.observations[0].case.plan
    assert (plan.sharding, plan.recompute, plan.microbatches) == ("zero3", "full", 2)


def test_a_row_with_shifted_columns_is_left_out(catalogue: Catalogue) -> None:
    read = read_nemo(catalogue, [NEMO, {**NEMO, "mbs": "4096", "seq_len": "0"}])
    assert len(read.observations) == 1
    assert dict(read.excluded) == {"columns shifted upstream": 1}
    plan = read.observations[0].case.plan
    assert (plan.dp, plan.microbatches, plan.virtual_stages) == (2, 64, 5)


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (("DeepSeek V3 671B", "DeepSeekV3 (w/o MTP)", "DeepSeekV3"), "deepseek-v3"),
        (("GPT-OSS 120B", "GPT OSS 120B"), "gpt-oss-120b"),
        (("Qwen3 MoE 30B", "Qwen3_30B_a3B (tokendrop)"), "qwen3-30b-a3b"),
        (("LLAMA3_70B", "Llama 3.1 70B", "LLaMA v3.1 70B"), "llama-3-70b"),
    ],
)
def test_aliases_are_one_family(names: tuple[str, ...], merged: str) -> None:
    assert {family(name) for name in names} == {merged}


def test_serving_families_drop_precision_and_revision() -> None:
    assert serve_family("nvidia/DeepSeek-V3.1-NVFP4") == serve_family("deepseek-ai/DeepSeek-R1")
    assert serve_family("Qwen/Qwen3-235B-A22B-FP8") == "qwen3-235b-a22b"
    assert release_months("26.04.01") == 15
    assert release_months("") == 0


def serving(**cells: str) -> dict[str, str]:
    base = blank(
        "inference_serving_inferencex", id="x", model_path="deepseek-ai/DeepSeek-V3",
        system="b300_sxm", backend="sglang", precision="fp4", mode="agg", isl="1024", osl="1024",
        concurrency="16", tp_size="8", attention_dp_size="1", moe_tp_size="8", moe_ep_size="1",
        tpot_ms="10", ttft_ms="300", dup_group="1",
    )  # fmt: skip
    return base | cells


def test_repeats_and_disaggregated_rows_are_left_out(catalogue: Catalogue) -> None:
    rows = [serving(), serving(id="y"), serving(mode="disagg", dup_group="2")]
    found, excluded = read_inferencex(catalogue, rows)
    assert [o.row_id for o in found] == ["x"]
    assert excluded == {"repeat of an earlier row": 1, "disaggregated": 1}


def test_a_replica_stored_with_tp_times_ep_is_undone(catalogue: Catalogue) -> None:
    row = serving(tp_size="64", moe_tp_size="8", moe_ep_size="8")
    case = read_inferencex(catalogue, [row])[0][0].case
    assert (case.gpus, case.tp, case.moe_ep) == (8, 8, 8)


def test_energy_reads_no_observed_batch_or_length(catalogue: Catalogue) -> None:
    row = blank(
        "inference_energy_mlenergy_llm", model="Qwen/Qwen3-14B", task="gpqa", params_b="14",
        active_params_b="14", weight_precision="bfloat16", gpu="H100", n_gpus="1", tp="1", ep="1",
        dp="1", max_num_seqs="32", energy_per_token_j="0.35",
    )  # fmt: skip
    plain, _ = read_energy(catalogue, [row])
    observed, _ = read_energy(
        catalogue, [{**row, "avg_batch_size": "3", "avg_output_len": "17", "output_tok_per_s": "9"}]
    )
    assert plain == observed


def test_unknown_models_take_an_approximate_shape_that_says_so(catalogue: Catalogue) -> None:
    row = blank(
        "inference_energy_mlenergy_llm", model="some/NewMoE-100B", task="gpqa", params_b="100",
        active_params_b="10", weight_precision="bfloat16", gpu="H100", n_gpus="8", tp="8", ep="1",
        dp="1", max_num_seqs="32", energy_per_token_j="1",
    )  # fmt: skip
    found, excluded = read_energy(catalogue, [row])
    if found:
        assert found[0].case.shape.assumed
    else:
        assert excluded == {"heads not divisible by tp": 1}


def test_memory_rows_keep_out_of_memory_runs_apart(catalogue: Catalogue) -> None:
    row = blank(
        "memory_measured", kind="measured", model="Llama 2", params_b="7", method="lora",
        precision="bf16", gpu="A100-40GB", n_gpus="1", seq_len="1304", micro_batch="1",
        framework="litgpt", peak_mem="21.30", unit="GB",
    )  # fmt: skip
    found, excluded = read_memory(
        catalogue,
        [row, {**row, "peak_mem": "OOM"}, {**row, "precision": "nf9"}, {**row, "kind": "estimate"}],
    )
    assert [o.peak_bytes for o in found] == [21.3e9, None]
    assert [o.is_scored for o in found] == [True, False]
    assert excluded == {"format or method unknown": 1, "estimate, plot or constant": 1}


def test_sc21_speeds_are_read_from_hardware_flops(catalogue: Catalogue) -> None:
    row = blank(
        "train_megatron_and_papers", model="GPT-18.4B", heads="48", hidden="6144", layers="40",
        vocab="51200", seq_len="2048", gpu="A100-80GB-SXM (Selene)", n_gpus="256", tp="8", pp="1",
        global_batch="1024", precision="fp16", act_recompute="full", tflops_per_gpu="135",
    )  # fmt: skip
    read = read_papers(catalogue, [row])
    # 96 L h^2 (1 + s/(6h) + V/(16 L h)) FLOPs per token, SC21 equation 3.
    per_token = 96 * 40 * 6144**2 * (1 + 2048 / (6 * 6144) + 51200 / (16 * 40 * 6144))
    assert read.observations[0].tokens_per_s_per_gpu == pytest.approx(135e12 / per_token)
