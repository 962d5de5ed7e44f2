"""Reads the tables of configurations known to run, and builds configurations that cannot.

Recompute and offload are not stated there: a row fits when the plan fits with full recompute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from tercio.errors import UserError
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.families import family, family_shape
from tercio.sizing.memory import MemoryParts, plan_memory, states_bytes
from tercio.sizing.serve import ServeCase, cache_bytes_per_sequence, device_weight_bytes
from tercio.sizing.tables_train import (
    Row,
    count_of,
    network_share,
    number,
    precision_of,
    scale_up_domain,
)
from tercio.sizing.train_plan import TrainPlan


class FitObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration and the verdict that is right for it."""

    table: str
    name: str
    gpu: Gpu
    gpus: int
    needed_bytes: float
    states_bytes: float
    is_known_running: bool

    @property
    def has_fit(self) -> bool:
        """Our verdict."""
        return self.needed_bytes <= self.gpu.usable_bytes


_RECIPE_FAMILIES = {
    "llama3": {"8b": "llama-3-8b", "70b": "llama-3-70b", "405b": "llama-3.1-405b"},
    "llama3.1": {"8b": "llama-3-8b", "70b": "llama-3-70b", "405b": "llama-3.1-405b"},
    "llama4": {"400b": "llama-4-maverick", "": "llama-4-maverick"},
    "nemotron4-340b": {"340b": "nemotron-4-340b"},
    "nemotron4-15b": {"15b": "nemotron-4-15b"},
    "nemotron-h": {"": "nemotron-h-56b", "56b": "nemotron-h-56b"},
    "nemotronh": {"": "nemotron-h-56b", "56b": "nemotron-h-56b"},
    "nemotron": {"340b": "nemotron-4-340b", "15b": "nemotron-4-15b"},
    "gpt-oss": {"": "gpt-oss-120b"},
    "kimi-k2": {"": "kimi-k2"},
    "grok1": {"": "grok-1", "314b": "grok-1"},
    "deepseek_v3": {"": "deepseek-v3", "671b": "deepseek-v3"},
    "mixtral": {"8x7b": "mixtral-8x7b", "8x22b": "mixtral-8x22b"},
    "llama2": {"7b": "llama-2-7b", "70b": "llama-2-70b"},
    "gpt3": {"175b": "gpt3-175b", "": "gpt3-175b"},
}

# Layer counts tell the models of a recipe apart where the size column is blank.
_LAYER_FAMILIES = {
    "llama3.1": {32: "llama-3-8b", 80: "llama-3-70b", 126: "llama-3.1-405b"},
    "qwen3": {48: "qwen3-30b-a3b", 94: "qwen3-235b-a22b"},
    "nemotron3": {52: "nemotron-3-nano", 88: "nemotron-3-super", 108: "nemotron-3-ultra"},
}


def recipe_family(row: Row) -> str | None:
    """The model family of a DGX Cloud recipe row."""
    recipe, size = row["recipe"].split("/")[0], row["model_size"].lower()
    found = _RECIPE_FAMILIES.get(recipe, {}).get(size)
    if found is None:
        layers = count_of(row["layers"], default=0)
        found = _LAYER_FAMILIES.get(recipe, {}).get(layers)
    return found


def first_count(text: str) -> int:
    """The smallest count of a cell such as `64-512`; 0 where there is none."""
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) if found else 0


def _recipe_plan(row: Row, gpu: Gpu, gpus: int) -> TrainPlan | None:
    tp, pp, cp, ep = (count_of(row[key]) for key in ("tp", "pp", "cp", "ep"))
    if gpus % (tp * pp * cp):
        gpus = tp * pp * cp * max(1, gpus // (tp * pp * cp))
    micro = number(row["mbs"])
    if micro is None or micro < 1:
        return None
    sharded = row["fsdp"] == "True" or (number(row["fsdp"]) or 0) > 0
    return TrainPlan(
        gpus=gpus,
        seq=count_of(row["seq_len"], default=4096),
        micro_batch=micro,
        microbatches=64,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=min(ep, gpus),
        virtual_stages=count_of(row["vp"]),
        precision=precision_of(row["precision"], gpu),
        recompute="full",
        sharding="zero3" if sharded else "zero1",
        is_lora="finetune" in row["recipe"],
        domain=scale_up_domain(gpu),
        nic_bytes_per_s=network_share(gpu),
    )


def runs_bytes(parts: MemoryParts) -> float:
    """Bytes a known-running plan needs at least: no fragmentation, and the CUDA context."""
    return parts.total_bytes - parts.fragmentation_bytes + 0.6 * 1024**3


def read_fit_train(
    catalogue: Catalogue, rows: Sequence[Row]
) -> tuple[list[FitObservation], dict[str, int]]:
    """Training configurations that NVIDIA ships, and misfits built from them."""
    found: list[FitObservation] = []
    excluded: dict[str, int] = {}
    for row in rows:
        name = recipe_family(row)
        shape = family_shape(catalogue, name) if name else None
        gpus = first_count(row["n_gpus"])
        try:
            gpu = catalogue.gpu(row["gpu"])
        except UserError:
            gpu = None
        plan = _recipe_plan(row, gpu, gpus) if gpu and gpus else None
        if shape is None or gpu is None or plan is None:
            reason = "model or layout not stated"
            excluded[reason] = excluded.get(reason, 0) + 1
            continue
        parts = plan_memory(shape, plan)
        # Where 16-bit gradients are the recipe's default the plan needs two bytes less a parameter.
        needed = runs_bytes(parts) - parts.gradients_bytes / 2
        found.append(
            FitObservation(
                table="fit_train_configs_nvidia_dgxc",
                name=shape.name,
                gpu=gpu,
                gpus=plan.gpus,
                needed_bytes=needed,
                states_bytes=states_bytes(parts),
                is_known_running=True,
            )
        )
        alone = msgspec.structs.replace(plan, gpus=1, tp=1, pp=1, cp=1, ep=1, sharding="none")
        held = plan_memory(shape, alone)
        if states_bytes(held) > 1.1 * gpu.usable_bytes:
            found.append(
                FitObservation(
                    table="constructed misfits",
                    name=shape.name,
                    gpu=gpu,
                    gpus=1,
                    needed_bytes=runs_bytes(held) - held.gradients_bytes / 2,
                    states_bytes=states_bytes(held),
                    is_known_running=False,
                )
            )
    return found, excluded


_SERVED_FAMILIES = {
    "deepseek_r1": "deepseek-v3",
    "llama3.3": "llama-3-70b",
    "llama4": "llama-4-maverick",
    "gpt-oss": "gpt-oss-120b",
}


def _served_case(catalogue: Catalogue, row: Row) -> ServeCase | None:
    """The replica that a recipe describes, one sequence in flight."""
    name = _SERVED_FAMILIES.get(row["recipe"].split("/")[0])
    shape = family_shape(catalogue, name or family(row["recipe"]))
    try:
        gpu = catalogue.gpu(row["gpu"])
    except UserError:
        return None
    if shape is None:
        return None
    tp, ep = count_of(row["tp"]), count_of(row["ep"])
    repeats_attention = row["attn_dp"].lower() == "yes"
    return ServeCase(
        shape=shape,
        gpu=gpu,
        isl=number(row["isl"]) or 1000.0,
        osl=number(row["osl"]) or 1000.0,
        concurrency=1.0,
        tp=1 if repeats_attention else tp,
        attention_dp=tp if repeats_attention else 1,
        moe_tp=max(tp // ep, 1),
        moe_ep=ep,
        precision="fp4" if "FP4" in row["quant"] else "fp8",
        kv_format="fp8",
        backend="trtllm",
    )


def read_fit_inference(
    catalogue: Catalogue, rows: Sequence[Row]
) -> tuple[list[FitObservation], dict[str, int]]:
    """Serving configurations that NVIDIA ships: they fit when weights and one sequence do."""
    found: list[FitObservation] = []
    excluded: dict[str, int] = {}
    for row in rows:
        case = _served_case(catalogue, row)
        if case is None:
            excluded["model or GPU unknown"] = excluded.get("model or GPU unknown", 0) + 1
            continue
        shape, gpu, pp = case.shape, case.gpu, count_of(row["pp"])
        weights = device_weight_bytes(case) / pp
        tokens = number(row["max_num_tokens"]) or 8192.0
        activations = tokens * (8.0 * shape.hidden + 2.0 * shape.ffn / case.gpus) * 2.0
        needed = weights + activations + cache_bytes_per_sequence(case, case.isl + case.osl) / pp
        found.append(
            FitObservation(
                table="fit_inference_configs_nvidia_dgxc",
                name=shape.name,
                gpu=gpu,
                gpus=case.gpus * pp,
                needed_bytes=needed + 0.6 * 1024**3,
                states_bytes=weights,
                is_known_running=True,
            )
        )
        single = msgspec.structs.replace(case, tp=1, attention_dp=1, moe_tp=1, moe_ep=1)
        alone = device_weight_bytes(single)
        if alone > 1.1 * gpu.usable_bytes:
            found.append(
                FitObservation(
                    table="constructed misfits",
                    name=shape.name,
                    gpu=gpu,
                    gpus=1,
                    needed_bytes=alone,
                    states_bytes=alone,
                    is_known_running=False,
                )
            )
    return found, excluded
