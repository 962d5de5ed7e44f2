"""Reads the table of Megatron papers and pages, whose speeds come in five units.

SC21 rows count recomputed work: their TFLOP/s divide by 96 B s L h^2 (1 + s/(6h) + V/(16 L h)).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.families import family, family_shape
from tercio.sizing.tables_train import (
    Reader,
    ReadResult,
    Row,
    TrainObservation,
    count_of,
    network_share,
    number,
    precision_of,
)
from tercio.sizing.train_plan import TrainCase, TrainPlan


def paper_shape(catalogue: Catalogue, row: Row, seq: int) -> ModelShape | None:
    """The GPT shape that a row's own columns state, or the catalogued model of that name."""
    hidden, layers = count_of(row["hidden"], default=0), count_of(row["layers"], default=0)
    heads = count_of(row["heads"], default=0)
    if not hidden or not layers or not heads:
        return family_shape(catalogue, row["model"])
    gated = "Nemotron-4" in row["model"]
    vocab = count_of(row["vocab"], default=51200)
    return ModelShape(
        name=row["model"],
        hidden=hidden,
        layers=layers,
        vocab=vocab,
        heads=heads,
        kv_heads=8 if gated else heads,
        head_dim=hidden // heads,
        attention_layers=layers,
        ffn=4 * hidden,
        is_gated=False,
        dense_layers=layers,
        is_tied=not gated,
        has_biases=not gated,
        positions=0 if gated else seq,
    )


def hardware_flops_per_token(shape: ModelShape, seq: int) -> float:
    """SC21 equation 3 per token, full recompute: 96 L h^2 (1 + s/(6h) + V/(16 L h))."""
    hidden, layers = float(shape.hidden), float(shape.layers)
    return (
        96.0 * layers * hidden**2 * (1 + seq / (6 * hidden) + shape.vocab / (16 * layers * hidden))
    )


def paper_speed(row: Row, shape: ModelShape, gpus: int, seq: int) -> float | None:
    """Tokens per second and GPU from whichever unit the row has, in order of directness."""
    stated = re.search(r"tokens/s/GPU=([\d.]+)", row["extra"])
    if stated:
        return float(stated[1])
    batch, step = number(row["global_batch"]), number(row["iter_time_s"])
    if batch and step:
        return batch * seq / step / gpus
    tflops = number(row["tflops_per_gpu"])
    if tflops:
        per_token = (
            hardware_flops_per_token(shape, seq)
            if row["act_recompute"] == "full"
            else arch.training_flops_per_token(shape, tokens=float(seq))
        )
        return tflops * 1e12 / per_token
    mfu = number(row["mfu_pct"])
    if mfu:
        peak = 989e12 if "H100" in row["gpu"] else 312e12
        return mfu / 100 * peak / arch.training_flops_per_token(shape, tokens=float(seq))
    return None


def _paper_plan(row: Row, gpus: int, seq: int, precision: str, nic: float) -> TrainPlan | str:
    tp, pp = count_of(row["tp"]), count_of(row["pp"])
    cp = int(m[1]) if (m := re.search(r"cp=(\d+)", row["extra"])) else 1
    if gpus % (tp * pp * cp):
        return "GPU count not divisible by tp x pp"
    dp = gpus // (tp * pp * cp)
    batch = number(row["global_batch"])
    micro = number(row["micro_batch"]) or 1.0
    if not batch:
        return "global batch not stated"
    recompute = row["act_recompute"] or "selective"
    return TrainPlan(
        gpus=gpus,
        seq=seq,
        micro_batch=micro,
        microbatches=max(1, round(batch / (micro * dp))),
        tp=tp,
        pp=pp,
        cp=cp,
        virtual_stages=count_of(row["interleave"]),
        precision=precision,
        recompute=recompute if recompute in ("none", "selective", "full") else "selective",
        sharding="zero3" if row["zero"] == "3" else "zero1",
        nic_bytes_per_s=nic,
    )


def read_papers(catalogue: Catalogue, rows: Sequence[Row]) -> ReadResult:
    """Megatron papers, MT-NLG, Nemotron-4 and NeMo pages."""
    reader = Reader()
    for row in rows:
        seq, gpus = count_of(row["seq_len"], default=0), count_of(row["n_gpus"], default=0)
        if "one layer" in row["model"]:
            reader.drop("time of one layer, not of a step")
            continue
        shape = paper_shape(catalogue, row, seq) if seq and gpus else None
        if shape is None:
            reader.drop("model shape unknown")
            continue
        name = row["gpu"].replace("-80GB-SXM", "").replace("-SXM", "").split(" ")[0]
        try:
            gpu = catalogue.gpu(name)
        except UserError:
            reader.drop("unknown GPU")
            continue
        plan = _paper_plan(row, gpus, seq, precision_of(row["precision"], gpu), network_share(gpu))
        speed = paper_speed(row, shape, gpus, seq)
        if isinstance(plan, str):
            reader.drop(plan)
            continue
        if speed is None or speed <= 0:
            reader.drop("no speed")
            continue
        reader.observations.append(
            TrainObservation(
                table="train_megatron_and_papers",
                model_group=paper_group(row["model"]),
                system_group=gpu.name,
                rank_group="|".join(
                    (row["model"], gpu.name, str(gpus), row["precision"], str(seq))
                ),
                case=TrainCase(
                    shape=shape,
                    gpu=gpu,
                    plan=plan,
                    framework=paper_framework(row),
                    release_months=0.0,
                ),
                tokens_per_s_per_gpu=speed,
            )
        )
    return reader.result()


def paper_framework(row: Row) -> str:
    """The software of a row: ZeRO-3 of 2021, Megatron of 2020 to 2022, Megatron-Core on Hopper."""
    if row["zero"] == "3":
        return "zero_papers"
    if row["precision"] == "fp8":
        return "nemo_recipe"
    return "megatron_core" if row["gpu"].startswith("H") else "megatron_papers"


def paper_group(name: str) -> str:
    """The hold-out group of a paper row: sizes named with and without a prefix are one model."""
    size = re.fullmatch(r"(?:GPT-|MT-NLG-)?(\d+(?:\.\d+)?)(B|T)", name)
    if size is None:
        return family(name)
    billions = float(size[1]) * (1000 if size[2] == "T" else 1)
    return f"gpt-{round(billions / 10) * 10 if billions > 100 else billions:g}b"
