"""Reads the table of measured memory peaks and the tables of configurations known to run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import GIB, Catalogue, Gpu
from tercio.sizing.families import family, family_shape
from tercio.sizing.memory import METHODS, WEIGHT_BYTES, MemoryCase
from tercio.sizing.tables_train import Row, count_of, number, titan_gpu


class MemoryObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One measured peak. `peak_bytes` is None for a run that ran out of memory.

    `is_scored` marks rows whose sequence, micro-batch and recompute are known or fixed by the
    framework and whose reading is finer than a whole GB.
    """

    model_group: str
    framework: str
    case: MemoryCase
    gpu: Gpu
    gpus: int
    peak_bytes: float | None
    is_scored: bool


_MEMORY_MODELS: Mapping[tuple[str, str], str] = {
    ("llama 2", "7"): "meta-llama/Llama-2-7b",
    ("llama 2", "13"): "meta-llama/Llama-2-13b",
    ("llama 2", "70"): "meta-llama/Llama-2-70b",
    ("llama2-7b", "6.74"): "meta-llama/Llama-2-7b",
    ("llama 2 7b", "6.74"): "meta-llama/Llama-2-7b",
    ("llama2-13b", "13"): "meta-llama/Llama-2-13b",
    ("codellama", "34"): "codellama/CodeLlama-34b",
    ("codellama", "7"): "codellama/CodeLlama-7b",
    ("codellama", "13"): "codellama/CodeLlama-13b",
    ("falcon", "40"): "tiiuae/falcon-40b",
    ("falcon", "7"): "tiiuae/falcon-7b",
    ("falcon", "180"): "tiiuae/falcon-180B",
    ("stablelm alpha", "3"): "stabilityai/stablelm-base-alpha-3b",
    ("stablelm alpha", "7"): "stabilityai/stablelm-base-alpha-7b",
    ("phi-1.5", "1.3"): "microsoft/phi-1_5",
    ("pythia", "1"): "EleutherAI/pythia-1b",
    ("pythia", "6.9"): "EleutherAI/pythia-6.9b",
    ("redpajama", "3"): "togethercomputer/RedPajama-INCITE-Base-3B-v1",
    ("mistral", "7"): "mistralai/Mistral-7B-v0.1",
    ("llama2-70b", "70"): "meta-llama/Llama-2-70b",
    ("gpt-j-6b", "6.05"): "EleutherAI/gpt-j-6b",
}


def memory_shape(catalogue: Catalogue, name: str, billions: str) -> ModelShape | None:
    """The shape of a row's model by name and size, or by name alone."""
    key = (name.lower().strip(), billions.strip())
    if key in _MEMORY_MODELS:
        return catalogue.model(_MEMORY_MODELS[key])
    found = family_shape(catalogue, name)
    if found is not None:
        return found
    sized = f"{name}-{billions}b"
    try:
        return catalogue.model(sized)
    except UserError:
        return None


# What litgpt calls a weight format; fp4 stores as NF4 does.
_LITGPT_FORMATS: Mapping[str, str] = {
    "bf16-true": "bf16",
    "16-true": "fp16",
    "32-true": "fp32",
    "bf16-mixed": "fp32",
    "fp4": "nf4",
    "fp4-dq": "nf4-dq",
    "int8-training": "int8",
}


def _litgpt_case(row: Row, shape: ModelShape, gpus: int) -> MemoryCase:
    """Litgpt scripts: no checkpointing on one device, FSDP with checkpointing on several."""
    stated = row["precision"].removeprefix("bnb.") or "bf16"
    precision = _LITGPT_FORMATS.get(stated, stated)
    method = "inference" if row["method"].startswith("inference") else row["method"]
    many = gpus > 1
    return MemoryCase(
        shape=shape,
        method=method,
        profile="litgpt",
        weight_format=precision,
        seq=number(row["seq_len"]) or 0.0,
        micro_batch=number(row["micro_batch"]) or 1.0,
        shards=gpus,
        expert_shards=gpus,
        sharding="zero3" if many else "none",
        recompute="full" if many and method != "inference" else "none",
    )


def _torchtune_case(row: Row, shape: ModelShape, gpu: Gpu, gpus: int) -> MemoryCase:
    """Recipes of torchtune: checkpointing on several devices and on cards of up to 24 GB."""
    method = row["method"]
    small = gpu.memory_gb <= 24 or gpus > 1
    return MemoryCase(
        shape=shape,
        method=method,
        profile="torchtune",
        weight_format="nf4-dq" if method == "qlora" else "bf16",
        seq=number(row["seq_len"]) or 0.0,
        micro_batch=number(row["micro_batch"]) or 1.0,
        shards=gpus,
        expert_shards=gpus,
        sharding="zero3" if gpus > 1 else "none",
        recompute="full" if small else "none",
    )


def _titan_case(row: Row, shape: ModelShape, gpus: int) -> MemoryCase:
    """Rows of torchtitan in the memory table."""
    tp, pp = count_of(row["tp"]), count_of(row["pp"])
    note = row["note"]
    cp = int(found[1]) if (found := re.search(r"cp=(\d+)", note)) else 1
    compiled = "compile" in row["framework"]
    return titan_case(
        shape,
        gpus=gpus,
        tp=tp,
        pp=pp,
        cp=cp,
        seq=number(row["seq_len"]) or 0.0,
        batch=number(row["micro_batch"]) or 1.0,
        recompute=row["act_ckpt"],
        is_compiled=compiled,
        is_interleaved="Interleaved" in note,
    )


def titan_case(
    shape: ModelShape,
    *,
    gpus: int,
    tp: int,
    pp: int,
    cp: int,
    seq: float,
    batch: float,
    recompute: str,
    is_compiled: bool,
    is_interleaved: bool,
) -> MemoryCase:
    """A torchtitan run; its pipeline splits the local batch into single sequences."""
    in_flight = 1.0
    if pp > 1:
        in_flight = min(batch, float(pp)) * (1.5 if is_interleaved else 1.0)
    return MemoryCase(
        shape=shape,
        method="pretrain",
        profile="titan" if is_compiled else "titan_eager",
        seq=seq,
        micro_batch=1.0 if pp > 1 else batch,
        tp=tp,
        pp=pp,
        cp=cp,
        shards=max(gpus // (tp * pp), 1),
        expert_shards=max(gpus // (tp * pp), 1),
        sharding="zero3",
        recompute="full" if recompute == "full" else "selective",
        in_flight=in_flight,
        kept_outputs=int(batch) if pp > 1 else 1,
    )


def read_memory(
    catalogue: Catalogue, rows: Sequence[Row]
) -> tuple[list[MemoryObservation], dict[str, int]]:
    """Measured peaks and out-of-memory runs; estimates, plots and constants are left out."""
    found: list[MemoryObservation] = []
    excluded: dict[str, int] = {}

    def drop(reason: str) -> None:
        excluded[reason] = excluded.get(reason, 0) + 1

    for row in rows:
        if row["kind"] != "measured":
            drop("estimate, plot or constant")
            continue
        shape = memory_shape(catalogue, row["model"], row["params_b"])
        if shape is None:
            drop("model shape unknown")
            continue
        gpus = count_of(row["n_gpus"])
        framework = row["framework"]
        try:
            gpu = (
                titan_gpu(catalogue, row["gpu"])
                if "titan" in framework
                else catalogue.gpu(row["gpu"])
            )
        except UserError:
            gpu = catalogue.gpu("A100-40GB")
        case = _case_of(row, framework, shape, gpu, gpus)
        if case is None:
            drop("framework not modelled")
            continue
        if case.weight_format not in WEIGHT_BYTES or case.method not in METHODS:
            drop("format or method unknown")
            continue
        observation = _observe(row, case, gpu, gpus)
        if observation is None:
            drop("no reading")
            continue
        found.append(observation)
    return found, excluded


def _case_of(row: Row, framework: str, shape: ModelShape, gpu: Gpu, gpus: int) -> MemoryCase | None:
    if framework == "litgpt":
        return _litgpt_case(row, shape, gpus)
    if framework == "torchtune":
        return _torchtune_case(row, shape, gpu, gpus)
    if framework.startswith("torchtitan"):
        return _titan_case(row, shape, gpus)
    if row["method"] == "inference bs1" or row["method"] not in (
        "full",
        "lora",
        "qlora",
        "pretrain",
    ):
        return None
    wide = {"PyTorch": "fp32", "PEFT PyTorch": "fp32"}.get(framework, "bf16")
    quantised = row["method"] == "qlora"
    return MemoryCase(
        shape=shape,
        method=row["method"],
        profile=_profile_of(framework),
        weight_format="nf4" if quantised else wide,
        seq=number(row["seq_len"]) or (4096.0 if "Megatron" in framework else 128.0),
        micro_batch=number(row["micro_batch"]) or 1.0,
        tp=count_of(row["tp"]),
        pp=count_of(row["pp"]),
        shards=max(gpus // (count_of(row["tp"]) * count_of(row["pp"])), 1),
        sharding="zero3"
        if "3" in row["zero_or_fsdp"]
        else ("zero2" if "2" in row["zero_or_fsdp"] else "none"),
        recompute="full" if row["act_ckpt"] == "True" or quantised else "none",
        has_offload=row["offload"] == "cpu",
    )


def _profile_of(framework: str) -> str:
    if "Megatron" in framework:
        return "megatron"
    return "unsloth" if framework.startswith("Unsloth") else "hf"


def _observe(row: Row, case: MemoryCase, gpu: Gpu, gpus: int) -> MemoryObservation | None:
    """The observation of a row, with its peak in bytes."""
    text = row["peak_mem"].strip()
    peak: float | None = None
    if text.upper() != "OOM":
        value = number(text)
        scale = {"GiB": GIB, "GB": 1e9, "MiB": 1024**2, "MB": 1e6}.get(
            row["unit"].split(" ")[0].split("/")[0]
        )
        if value is None or value <= 0 or scale is None:
            return None
        peak = value * scale
    framework = row["framework"]
    known = framework in ("litgpt", "torchtune") or framework.startswith("torchtitan")
    known = known or bool(row["seq_len"] and row["micro_batch"] and row["act_ckpt"])
    return MemoryObservation(
        model_group=f"{family(row['model'])} {row['params_b']}".strip(),
        framework=framework,
        case=case,
        gpu=gpu,
        gpus=gpus,
        peak_bytes=peak,
        is_scored=known and peak is not None and "." in text,
    )
