"""Reads the measured serving and energy tables into cases and measured values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.serve import ServeCase
from tercio.sizing.tables_train import Row, count_of, network_share, number, scale_up_domain


class ServeObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One measured replica. `group` is its hold-out pair of model family and system.

    `is_precision_known` marks rows whose weight format is stated.
    """

    row_id: str
    model_group: str
    system_group: str
    case: ServeCase
    ttft_s: float | None
    tpot_s: float
    is_precision_known: bool

    @property
    def group(self) -> str:
        """Model family and system."""
        return f"{self.model_group} {self.system_group}"


def serve_family(name: str) -> str:
    """Model name without organisation, precision and revision: DeepSeek R1, V3 and V3.1 are one."""
    key = name.rsplit("/", 1)[-1].lower()
    key = re.sub(r"[-_](nvfp4|fp8|fp4|mxfp4|bf16|awq|int4)(-static-pertensor)?$", "", key)
    key = re.sub(r"^meta-", "", key)
    if re.match(r"deepseek-(r1|v3(\.1)?)(-.*)?$", key):
        return "deepseek-v3"
    if key.startswith("llama-3") and "70b" in key:
        return "llama-3-70b"
    return key.removesuffix("-instruct")


# Months after 2025-01 at which a major.minor release of each engine came out.
_ENGINE_MONTHS: Mapping[str, Sequence[tuple[float, float]]] = {
    "trtllm": ((0.17, 1), (0.2, 5), (1.0, 8), (1.1, 10), (1.2, 12), (1.3, 14)),
    "vllm": (
        (0.7, 0),
        (0.8, 2),
        (0.9, 4),
        (0.1, 6),
        (0.11, 9),
        (0.12, 11),
        (0.15, 13),
        (0.17, 14),
        (0.19, 15),
    ),
    "sglang": ((0.4, 0), (0.5, 8), (0.51, 8), (0.58, 13), (0.510, 15)),
}


def engine_months(measured: str, backend: str, version: str) -> float:
    """Age of the software: the month a row was measured in where stated, else its version's."""
    stated = re.match(r"(\d{4})-(\d\d)", measured)
    if stated:
        return 12.0 * (int(stated[1]) - 2025) + int(stated[2]) - 1
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        return 12.0
    if backend == "sglang":
        return {"0.5.1": 8.0, "0.5.8": 13.0, "0.5.10": 15.0}.get(
            ".".join(found.groups(default="0")), 12.0
        )
    minor = f"{found[1]}.{found[2]}"
    table = {f"{key:g}": month for key, month in _ENGINE_MONTHS.get(backend, ())}
    return float(table.get(minor, 12.0))


def _served_parallelism(row: Row, domain: int) -> tuple[int, int, int, int]:
    """(tp, attention dp, expert tp, expert ep) of a row, with one upstream fault undone.

    Aggregated rows with tp = ep inside one 8-GPU node are stored with tp x ep as both products
    (16 = 4 x 4, 64 = 8 x 8 on a domain of 8); such a replica has tp devices.
    """
    tp, dp = count_of(row["tp_size"]), count_of(row["attention_dp_size"])
    moe_tp, moe_ep = count_of(row["moe_tp_size"]), count_of(row["moe_ep_size"])
    if tp > domain and tp == moe_tp * moe_ep:
        return moe_tp, dp, 1, moe_ep
    if dp > 1 and tp * dp > domain and moe_tp * moe_ep == tp * dp and moe_tp == moe_ep:
        return 1, moe_tp, 1, moe_ep
    return tp, dp, moe_tp, moe_ep


def harness_of(origin: str) -> str:
    """Who drove the load: the dated InferenceX dumps, or single-model files of another client."""
    return "inferencex" if re.match(r"\d{4}-\d\d|InferenceX", origin) else "single-model"


def _serve_case(catalogue: Catalogue, row: Row, isl: float, osl: float) -> ServeCase | str:
    """The replica of a row, or why it has none."""
    batch = number(row["concurrency"])
    if not batch:
        batch = (number(row["batch_size"]) or 0) * count_of(row["attention_dp_size"])
    if not batch:
        return "no TPOT or load"
    try:
        shape, gpu = catalogue.model(row["model_path"]), catalogue.gpu(row["system"])
    except UserError:
        return "model or system unknown"
    domain = scale_up_domain(gpu)
    tp, dp, moe_tp, moe_ep = _served_parallelism(row, domain)
    if shape.heads % tp:
        return "heads not divisible by tp"
    precision = {"fp8": "fp8", "fp4": "fp4"}.get(row["precision"], "bf16")
    return ServeCase(
        shape=shape,
        gpu=gpu,
        isl=isl,
        osl=osl,
        concurrency=batch,
        tp=tp,
        attention_dp=dp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        precision=precision if row["precision"] else "fp8",
        kv_format="bf16" if precision == "bf16" else "fp8",
        backend=row["backend"],
        is_block_scaled="block" in row["gemm_quant_mode"]
        or "deepseek" in row["model_path"].lower(),
        release_months=engine_months(row["measured"], row["backend"], row["backend_version"]),
        harness=harness_of(row.get("origin") or ""),
        domain=domain,
        nic_bytes_per_s=network_share(gpu),
    )


def read_inferencex(
    catalogue: Catalogue, rows: Sequence[Row]
) -> tuple[list[ServeObservation], dict[str, int]]:
    """Aggregated serving rows, the first of each group of repeats."""
    found: list[ServeObservation] = []
    excluded: dict[str, int] = {}
    seen: set[str] = set()

    def drop(reason: str) -> None:
        excluded[reason] = excluded.get(reason, 0) + 1

    for row in rows:
        tpot, isl, osl = number(row["tpot_ms"]), number(row["isl"]), number(row["osl"])
        if row["mode"] != "agg":
            drop("disaggregated")
            continue
        if row["dup_group"] and row["dup_group"] in seen:
            drop("repeat of an earlier row")
            continue
        seen.add(row["dup_group"])
        if not tpot or tpot <= 0 or not isl or not osl:
            drop("no TPOT or load")
            continue
        case = _serve_case(catalogue, row, isl, osl)
        if isinstance(case, str):
            drop(case)
            continue
        ttft = number(row["ttft_ms"])
        found.append(
            ServeObservation(
                row_id=row["id"],
                model_group=serve_family(row["model_path"]),
                system_group=row["system"],
                case=case,
                ttft_s=ttft / 1e3 if ttft and ttft > 0 else None,
                tpot_s=tpot / 1e3,
                is_precision_known=bool(row["precision"]),
            )
        )
    return found, excluded


def approximate_shape(name: str, billions: float, active_billions: float) -> ModelShape:
    """A shape of the stated size for a model whose configuration is not catalogued.

    Width grows as the 0.42th power of the active size, depth follows from it. The shape carries
    `assumed`, so that a user sees what was not known.
    """
    active = max(active_billions, 0.1)
    hidden = int(128 * round(1024 * active**0.42 / 128 * 1.75))
    layers = max(12, round(active * 1e9 / (11.0 * hidden * hidden)))
    heads = hidden // 128
    kv_heads = 8 if heads % 8 == 0 else (4 if heads % 4 == 0 else 1)
    is_moe = billions > active * 1.3
    if not is_moe:
        return ModelShape(
            name=name,
            hidden=hidden,
            layers=layers,
            vocab=150000,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=128,
            attention_layers=layers,
            ffn=3 * hidden,
            dense_layers=layers,
            assumed=("architecture from the parameter count",),
        )
    width = max(256, hidden // 4)
    top_k = 8
    layers = max(12, round(active * 1e9 / (2.5 * hidden * hidden + 3.0 * hidden * width * top_k)))
    experts = max(top_k, round((billions - active) * 1e9 / (3.0 * hidden * width * layers)) + top_k)
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        vocab=150000,
        heads=heads,
        kv_heads=min(kv_heads, 4),
        head_dim=128,
        attention_layers=layers,
        experts=experts,
        top_k=top_k,
        expert_ffn=width,
        moe_layers=layers,
        assumed=("architecture from the parameter counts",),
    )


class EnergyObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One measured energy per output token over all devices, and the case before the run."""

    model_group: str
    system_group: str
    task: str
    case: ServeCase
    joules_per_token: float


# Prompt and output tokens of each benchmark task, from the public data sets: chat turns, graduate
# questions with their reasoning, code to fill in. The observed lengths are a result, not an input.
TASK_TOKENS: Mapping[str, tuple[float, float]] = {
    "lm-arena-chat": (250.0, 500.0),
    "gpqa": (250.0, 7000.0),
    "sourcegraph-fim": (800.0, 250.0),
}


def _energy_case(
    catalogue: Catalogue, row: Row, lengths: tuple[float, float], batch: float
) -> ServeCase | str:
    """The replica of an energy row, or why it has none."""
    try:
        gpu = catalogue.gpu(row["gpu"])
    except UserError:
        return "GPU unknown"
    try:
        shape = catalogue.model(re.sub(r"-(Instruct|Thinking)(-2507)?(-FP8)?$", "", row["model"]))
    except UserError:
        total, active = number(row["params_b"]), number(row["active_params_b"])
        if not total:
            return "model unknown"
        shape = approximate_shape(row["model"], total, active or total)
    precision = "fp8" if "fp8" in row["weight_precision"].lower() else "bf16"
    if "mxfp4" in row["weight_precision"].lower() or "gpt-oss" in row["model"]:
        precision = "fp4"
    tp, ep, dp = count_of(row["tp"]), count_of(row["ep"]), count_of(row["dp"])
    gpus = count_of(row["n_gpus"])
    if tp * dp < gpus:
        # Expert-parallel rows state tp = 1: attention is sharded over all devices with them.
        tp = gpus // dp
    if shape.heads % tp:
        return "heads not divisible by tp"
    return ServeCase(
        shape=shape,
        gpu=gpu,
        isl=lengths[0],
        osl=lengths[1],
        concurrency=batch,
        tp=tp,
        attention_dp=dp,
        moe_tp=max(gpus // ep, 1),
        moe_ep=ep,
        precision=precision,
        kv_format="bf16",
        backend="vllm",
        release_months=9.0,
        is_block_scaled=precision == "fp8",
        nic_bytes_per_s=network_share(gpu),
    )


def read_energy(
    catalogue: Catalogue, rows: Sequence[Row]
) -> tuple[list[EnergyObservation], dict[str, int]]:
    """Text tasks of the ML.ENERGY table. Batch is the configured maximum, not the observed one."""
    found: list[EnergyObservation] = []
    excluded: dict[str, int] = {}

    def drop(reason: str) -> None:
        excluded[reason] = excluded.get(reason, 0) + 1

    for row in rows:
        energy, batch = number(row["energy_per_token_j"]), number(row["max_num_seqs"])
        lengths = TASK_TOKENS.get(row["task"])
        if lengths is None:
            drop("not a text task")
            continue
        if not energy or energy <= 0 or not batch:
            drop("no energy or load")
            continue
        case = _energy_case(catalogue, row, lengths, batch)
        if isinstance(case, str):
            drop(case)
            continue
        found.append(
            EnergyObservation(
                model_group=row["model"].split("/")[-1].removesuffix("-FP8").lower(),
                system_group=row["gpu"],
                task=row["task"],
                case=case,
                joules_per_token=energy,
            )
        )
    return found, excluded
