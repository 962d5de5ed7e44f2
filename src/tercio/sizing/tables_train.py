"""Reads the published training tables into observations: one plan and one measured speed a row.

A row that cannot be read is excluded with a stated reason and never guessed at. The measured
columns (tokens/s, TFLOP/s, MFU, step time) enter `TrainObservation.tokens_per_s_per_gpu` only;
nothing else is derived from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.families import family, family_shape
from tercio.sizing.train_plan import TrainCase, TrainPlan

Row = Mapping[str, str]


class TrainObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One measured training speed, and the case that was known before the run."""

    table: str
    model_group: str
    system_group: str
    rank_group: str
    case: TrainCase
    tokens_per_s_per_gpu: float


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The observations of one table and the rows left out, counted by reason."""

    observations: tuple[TrainObservation, ...]
    excluded: Mapping[str, int]


NETWORK_BYTES_PER_S: Mapping[str, float] = {
    "A100": 25e9,
    "A800": 25e9,
    "H100": 50e9,
    "H200": 50e9,
    "B200": 50e9,
    "B300": 100e9,
    "GB200": 50e9,
    "GB300": 100e9,
    "V100": 12.5e9,
    "MI300X": 50e9,
}
"""Bytes per second of one device's share of its node's network (see networks.csv)."""


def network_share(gpu: Gpu) -> float:
    """Network bytes per second that one device of a usual node has, one direction."""
    for prefix in sorted(NETWORK_BYTES_PER_S, key=len, reverse=True):
        if gpu.name.startswith(prefix):
            return NETWORK_BYTES_PER_S[prefix]
    return 12.5e9


def number(text: str | None) -> float | None:
    """A finite number, or None for blanks, n/a and words."""
    try:
        value = float(str(text).strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def count_of(text: str | None, *, default: int = 1) -> int:
    """A positive integer, or the default for blanks and n/a."""
    value = number(text)
    return int(value) if value is not None and value >= 1 else default


def release_months(text: str) -> float:
    """Months of a yy.mm release after 2025-01; 0 where the text is no release."""
    found = re.match(r"(?:support/)?(\d\d)\.(\d\d)", text)
    if found is None:
        return 0.0
    return 12.0 * (int(found[1]) - 25) + int(found[2]) - 1.0


def with_mtp(shape: ModelShape) -> ModelShape:
    """DeepSeek-V3 trained with its multi-token-prediction module: one more layer."""
    return msgspec.structs.replace(
        shape,
        layers=shape.layers + 1,
        attention_layers=shape.attention_layers + 1,
        moe_layers=shape.moe_layers + 1,
    )


class Reader:
    """Collects observations and reasons for exclusion while a table is read."""

    __slots__ = ("excluded", "observations")

    def __init__(self) -> None:
        self.observations: list[TrainObservation] = []
        self.excluded: dict[str, int] = {}

    def drop(self, reason: str) -> None:
        """Counts one excluded row."""
        self.excluded[reason] = self.excluded.get(reason, 0) + 1

    def result(self) -> ReadResult:
        """What was read."""
        return ReadResult(observations=tuple(self.observations), excluded=dict(self.excluded))


def read_llm_foundry(catalogue: Catalogue, rows: Sequence[Row]) -> ReadResult:
    """MosaicML llm-foundry throughput tables. Rows flagged implausible or failed are left out."""
    reader = Reader()
    for row in rows:
        speed, gpus = number(row["tokens_per_s"]), count_of(row["n_gpus"], default=0)
        if "implausible" in row["mfu_flag"]:
            reader.drop("flagged implausible upstream")
            continue
        micro, seq = number(row["microbatch_per_gpu"]), count_of(row["seq_len"], default=0)
        if speed is None or speed <= 0 or gpus < 1 or seq < 1 or not micro or micro <= 0:
            reader.drop("failed run or missing plan")
            continue
        try:
            gpu = catalogue.gpu(row["gpu"])
            base = catalogue.model("mpt-" + row["model"])
        except UserError:
            reader.drop("unknown model or GPU")
            continue
        shape = msgspec.structs.replace(base, positions=seq)
        precision = "fp8" if "fp8" in row["precision"] else "bf16"
        sharding = "zero2" if row["fsdp_sharding"] == "SHARD_GRAD_OP" else "zero3"
        plan = TrainPlan(
            gpus=gpus,
            seq=seq,
            micro_batch=micro,
            microbatches=count_of(row["grad_accum"]),
            precision=precision,
            recompute="full" if row["act_ckpt"] == "True" else "none",
            sharding=sharding,
            gradient_bytes=2.0 if row["mp_mode"] == "PURE" else 4.0,
            nic_bytes_per_s=network_share(gpu),
        )
        reader.observations.append(
            TrainObservation(
                table="train_llm_foundry",
                model_group=row["model"],
                system_group=row["gpu"],
                rank_group="|".join(
                    (row["model"], row["gpu"], str(gpus), row["precision"], str(seq))
                ),
                case=TrainCase(
                    shape=shape,
                    gpu=gpu,
                    plan=plan,
                    release_months=0.0,
                    framework="foundry_pure" if row["precision"] == "bf16" else "foundry_amp",
                ),
                tokens_per_s_per_gpu=speed / gpus,
            )
        )
    return reader.result()


def scale_up_domain(gpu: Gpu) -> int:
    """Devices joined by scale-up links in the usual node or rack of the part."""
    return max(gpu.domain, 1)


def precision_of(text: str, gpu: Gpu) -> str:
    """The training precision that a table cell means on this part."""
    word = text.upper()
    if "NVFP4" in word:
        return "nvfp4"
    if "MX" in word:
        return "mxfp8"
    if "FP8" in word or "FLOAT8" in word:
        return "fp8" if gpu.fp8_flops else "bf16"
    return "bf16"


def _parallel_plan(row: Row, gpu: Gpu, gpus: int, seq: int) -> TrainPlan | str:
    """The plan of a Megatron-style row, or why it has none."""
    tp, pp, cp, ep = (count_of(row.get(key)) for key in ("tp", "pp", "cp", "ep"))
    if gpus % (tp * pp * cp):
        return "GPU count not divisible by tp x pp x cp"
    micro = number(row.get("mbs"))
    batch = number(row.get("gbs"))
    if micro is None or not 1 <= micro <= 64:
        return "micro-batch not stated"
    dp = gpus // (tp * pp * cp)
    if batch is None or batch < dp:
        return "global batch not stated"
    fsdp = number(row.get("fsdp")) or 0
    automodel = "Automodel" in (row.get("source") or "")
    return TrainPlan(
        gpus=gpus,
        seq=seq,
        micro_batch=micro,
        microbatches=max(1, round(batch / (micro * dp))),
        tp=tp,
        pp=pp,
        cp=cp,
        ep=min(ep, gpus),
        virtual_stages=count_of(row.get("vp")),
        precision=precision_of(row["precision"], gpu),
        sharding="zero3" if fsdp > 1 or (fsdp == 1 and automodel) else "zero1",
        is_lora=(row.get("task") or "") == "lora",
        domain=scale_up_domain(gpu),
        nic_bytes_per_s=network_share(gpu),
    )


def read_nemo(catalogue: Catalogue, rows: Sequence[Row]) -> ReadResult:
    """NVIDIA Megatron-Bridge and Automodel summary tables."""
    reader = Reader()
    for row in rows:
        speed = number(row["tokens_per_s_per_gpu"])
        gpus, seq = count_of(row["n_gpus"], default=0), count_of(row["seq_len"], default=0)
        shape = family_shape(catalogue, row["model"])
        if speed is None or speed <= 0:
            reader.drop("no tokens/s")
            continue
        if shape is None:
            reader.drop("model shape unknown")
            continue
        try:
            gpu = catalogue.gpu(row["system"].removeprefix("DGX-"))
        except UserError:
            reader.drop("unknown system")
            continue
        plan = _parallel_plan(row, gpu, gpus, seq) if seq >= 128 else "columns shifted upstream"
        if isinstance(plan, str):
            reader.drop(plan)
            continue
        if family(row["model"]) == "deepseek-v3" and "w/o MTP" not in row["model"]:
            shape = with_mtp(shape)
        if shape.is_moe and "DeepEP" in row["kernels"] and number(row["ep"]) is None:
            # DeepEP is an expert-parallel exchange; a blank degree spans the gang up to 64.
            plan = msgspec.structs.replace(plan, ep=min(64, gpus))
        if shape.has_sinks and "Flex" not in row["kernels"]:
            plan = msgspec.structs.replace(plan, has_fused_attention=False)
        reader.observations.append(
            TrainObservation(
                table="train_nvidia_nemo",
                model_group=family(row["model"]),
                system_group=row["system"],
                rank_group="|".join(
                    (
                        family(row["model"]),
                        row["system"],
                        str(gpus),
                        row["precision"],
                        str(seq),
                        row["gbs"],
                    )
                ),
                case=TrainCase(
                    shape=shape,
                    gpu=gpu,
                    plan=plan,
                    release_months=release_months(row["release"]),
                    framework="automodel" if "Automodel" in row["source"] else "megatron_bridge",
                ),
                tokens_per_s_per_gpu=speed,
            )
        )
    return reader.result()


# Parallel layouts that NVIDIA's recipe pages state for rows whose own columns are blank: the
# recipe's default for that device. (tp, pp, cp, ep, vp, sequence).
_RECIPE_DEFAULTS: Mapping[tuple[str, str], tuple[int, int, int, int, int, int]] = {
    ("grok-1", "H100"): (4, 8, 2, 8, 8, 8192),
    ("grok-1", "GB200"): (4, 1, 1, 8, 1, 8192),
    ("nemotron-4-340b", "GB200"): (8, 4, 1, 1, 12, 4096),
    ("nemotron-4-340b", "H100"): (8, 8, 1, 1, 12, 4096),
}


def read_dgxc(catalogue: Catalogue, rows: Sequence[Row]) -> ReadResult:
    """NVIDIA DGX Cloud recipe results. Blank layouts take the recipe's default.

    A blank global batch is known only as tokens per step = speed x step time; such rows are read
    with the recipe's documented scaling (one sequence per two GPUs, or four per GPU) and never from
    the measured step.
    """
    reader = Reader()
    for row in rows:
        speed, gpus = number(row["tokens_per_s"]), count_of(row["n_gpus"], default=0)
        name = re.sub(
            r"(?i)\b(bf16|fp8|gb200|h100|b200|gb300|strong scaling)\b", "", row["workload"]
        )
        shape = family_shape(catalogue, name)
        try:
            gpu = catalogue.gpu(row["gpu"])
        except UserError:
            gpu = None
        if speed is None or speed <= 0 or gpus < 1:
            reader.drop("no tokens/s")
            continue
        if shape is None or gpu is None:
            reader.drop("model shape or GPU unknown")
            continue
        cells = dict(row)
        layout = _RECIPE_DEFAULTS.get((family(name), row["gpu"]))
        if not number(row["tp"]):
            if layout is None:
                reader.drop("layout not stated")
                continue
            for key, value in zip(("tp", "pp", "cp", "ep", "vp", "seq_len"), layout, strict=True):
                cells[key] = str(value)
        if not number(cells["gbs"]):
            strong = "Strong" in row["workload"]
            cells["gbs"] = "512" if strong else str(max(gpus // 4, 1))
            if family(name) == "grok-1":
                cells["gbs"] = str(gpus * 2)
        cells["mbs"] = cells["mbs"] or "1"
        plan = _parallel_plan(cells, gpu, gpus, count_of(cells["seq_len"], default=8192))
        if isinstance(plan, str):
            reader.drop(plan)
            continue
        if family(name) == "deepseek-v3":
            shape = with_mtp(shape)
        reader.observations.append(
            TrainObservation(
                table="train_nvidia_dgxc_recipes",
                model_group=row["recipe"].split("/")[0],
                system_group=row["gpu"],
                rank_group="|".join(
                    (family(name), row["gpu"], str(gpus), row["precision"], row["seq_len"])
                ),
                case=TrainCase(
                    shape=shape, gpu=gpu, plan=plan, framework="nemo_recipe", release_months=0.0
                ),
                tokens_per_s_per_gpu=speed / gpus,
            )
        )
    return reader.result()


def read_torchtitan(catalogue: Catalogue, rows: Sequence[Row]) -> ReadResult:
    """Torchtitan benchmark pages. `local_batch` is sequences per data-parallel rank and step."""
    reader = Reader()
    for row in rows:
        speed, gpus = number(row["tokens_per_s_per_gpu"]), count_of(row["n_gpus"], default=0)
        seq, batch = count_of(row["seq_len"], default=0), number(row["local_batch"])
        shape = family_shape(catalogue, row["model"])
        if speed is None or not batch or gpus < 1 or seq < 1 or shape is None:
            reader.drop("plan or model unknown")
            continue
        try:
            gpu = titan_gpu(catalogue, row["gpu"])
        except UserError:
            reader.drop("unknown GPU")
            continue
        pp = count_of(row["pp"])
        # The pipeline splits the local batch into single sequences.
        micro, count = (1.0, int(batch)) if pp > 1 else (batch, 1)
        virtual = 2 if "Interleaved" in (row["pp_schedule"] or "") else 1
        recompute = "full" if row["act_ckpt"] == "full" else "selective"
        framework = "titan_compile" if row["torch_compile"] == "True" else "titan_eager"
        plan = TrainPlan(
            gpus=gpus,
            seq=seq,
            micro_batch=micro,
            microbatches=count,
            tp=count_of(row["tp"]),
            pp=pp,
            cp=count_of(row["cp"]),
            virtual_stages=virtual,
            precision=precision_of(row["precision"], gpu),
            recompute=recompute,
            sharding="zero3",
            gradient_bytes=4.0,
            has_async_tp=row["async_tp"] == "True",
            nic_bytes_per_s=network_share(gpu),
            clock_ratio=power_clock_ratio(catalogue, gpu),
        )
        reader.observations.append(
            TrainObservation(
                table="train_torchtitan",
                model_group=family(row["model"]),
                system_group=row["gpu"],
                rank_group="|".join(
                    (row["model"], row["gpu"], str(gpus), row["precision"], str(seq))
                ),
                case=TrainCase(
                    shape=shape, gpu=gpu, plan=plan, framework=framework, release_months=0.0
                ),
                tokens_per_s_per_gpu=speed,
            )
        )
    return reader.result()


def power_clock_ratio(catalogue: Catalogue, gpu: Gpu) -> float:
    """Clock of a part held below its usual power, over its usual clock.

    Dynamic power grows with clock and voltage; clock follows the square root of power.
    """
    usual = catalogue.gpu(gpu.name).tdp_w
    if not usual or not gpu.tdp_w or gpu.tdp_w >= usual:
        return 1.0
    return math.sqrt(gpu.tdp_w / usual)


def titan_gpu(catalogue: Catalogue, name: str) -> Gpu:
    """The part of a torchtitan row: their H100 is a 96 GB HBM2e part held to 500 W."""
    if name.startswith("H100-96GB"):
        base = catalogue.gpu("H100")
        return msgspec.structs.replace(
            base, memory_gb=96.0, memory_gib_usable=95.0, memory_bytes_per_s=2.4e12, tdp_w=500.0
        )
    if name.startswith("H200"):
        return catalogue.gpu("H200")
    return catalogue.gpu(name.split("-", maxsplit=1)[0])
