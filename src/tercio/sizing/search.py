"""Search for training layouts: enumerate the legal ones, drop what does not fit, rank the rest.

Layouts are enumerated by divisors; memory prunes before any time is computed, and each layout takes
the least recompute that fits. The calibrated predictor then rates all survivors at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from tercio.errors import UserError
from tercio.sizing import architecture as arch
from tercio.sizing import cost
from tercio.sizing.advice import STATE_BYTES, advice_of
from tercio.sizing.architecture import ModelShape
from tercio.sizing.calibrate_train import StepParts, TrainModel, mechanism, nominal_work, tabulate
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.cost import Footprint, Price, Terms
from tercio.sizing.kernels import GemmTable, gemm_basis, range_half_width
from tercio.sizing.memory import MemoryParts, plan_memory, runtime_bytes
from tercio.sizing.tables_train import network_share, scale_up_domain
from tercio.sizing.train import gemm_dtype
from tercio.sizing.train_plan import Sizes, TrainCase, TrainPlan, check_sizes

# Sequence length of one device beyond which context parallelism is tried.
CONTEXT_SEQ = 16_384
DEFAULT_BATCH_TOKENS = 4_194_304.0

# Memory left unused: a plan that fits only to the last byte does not fit.
HEADROOM_RATIO = 0.95


class TrainGoal(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wants: a model trained on `tokens` at `seq`, within a time or a budget."""

    shape: ModelShape
    tokens: float
    seq: int
    batch_tokens: float = DEFAULT_BATCH_TOKENS
    gpus: tuple[Gpu, ...]
    counts: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    precision: str = ""
    deadline_s: float | None = None
    budget_usd: float | None = None
    framework: str = ""
    release_months: float = 18.0
    terms: Terms = Terms()
    fixed: Sizes = Sizes()
    expert_imbalance: float = 1.0


def default_framework(gpu: Gpu) -> str:
    """The software whose speeds are measured nearest to a part.

    Megatron-Core of 2025 and 2026 on Hopper and later, Megatron of 2021 and 2022 before.
    """
    return "megatron_papers" if gpu.year < 2022 else "megatron_bridge"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One ranked answer. Ranges are 80 %; None where the catalogue has no price or power."""

    gpu: str
    plan: TrainPlan
    memory: MemoryParts
    memory_total_bytes: float
    usable_bytes: float
    step_s: float
    step_low_s: float
    step_high_s: float
    parts_s: Mapping[str, float]
    tokens_per_s: float
    mfu_ratio: float
    days: float
    days_low: float
    days_high: float
    goodput: float
    gpu_hours: float
    cost_usd: float | None
    cost_low_usd: float | None
    cost_high_usd: float | None
    energy_kwh: float | None
    footprint: Footprint
    price: Price | None
    basis: str
    binds: str
    change: str


def divisors(number: int, limit: int) -> list[int]:
    """Divisors of `number` up to `limit`, ascending."""
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def precisions_of(gpu: Gpu, wanted: str) -> tuple[str, ...]:
    """Training precisions tried on a part: the asked one, or bf16 and the part's 8-bit format."""
    if wanted:
        return (wanted,)
    if gpu.fp8_flops is None:
        return ("bf16",)
    return ("bf16", "mxfp8" if gpu.architecture.startswith("Blackwell") else "fp8")


def layouts(goal: TrainGoal, gpu: Gpu, gpus: int) -> Iterator[TrainPlan]:
    """All legal layouts of a device count, before memory."""
    shape, domain = goal.shape, scale_up_domain(gpu)
    sequences = max(1, round(goal.batch_tokens / goal.seq))
    contexts = [1] if goal.seq <= CONTEXT_SEQ else [1, 2, 4, 8, 16]
    pipelines = [p for p in (1, 2, 4, 8, 16, 32) if p <= shape.layers]
    tensors = [t for t in (1, 2, 4, 8) if t <= max(domain, 1) and shape.heads % t == 0]
    experts = divisors(shape.experts, 64) if shape.is_moe else [1]
    experts = [e for e in experts if e == 1 or e in (2, 4, 8, 16, 32, 64)]
    fixed = goal.fixed
    tensors, pipelines = fixed.of("tp", tensors), fixed.of("pp", pipelines)
    contexts, experts = fixed.of("cp", contexts), fixed.of("ep", experts)
    for tp in tensors:
        for pp in pipelines:
            for cp in contexts:
                ranks, rest = divmod(gpus, tp * pp * cp)
                if rest or not ranks or ranks > sequences:
                    continue
                for ep in experts:
                    if gpus % (ep * pp):
                        continue
                    yield from _batches(goal, gpu, gpus, (tp, pp, cp, ep))


def _batches(
    goal: TrainGoal, gpu: Gpu, gpus: int, sizes: tuple[int, int, int, int]
) -> Iterator[TrainPlan]:
    """Micro-batches, interleaving and sharding of one split."""
    tp, pp, cp, ep = sizes
    ranks = gpus // (tp * pp * cp)
    sequences = max(1, round(goal.batch_tokens / goal.seq))
    per_rank = max(1, sequences // ranks)
    layers = goal.shape.layers
    virtual = 1
    if pp > 1:
        chunks = [v for v in (2, 4, 5, 6, 8) if layers // pp >= v]
        virtual = max(chunks, default=1)
    for micro in (1, 2, 4, 8):
        if micro > per_rank or (pp > 1 and (micro > 2 or per_rank // micro < pp)):
            continue
        for sharding in ("zero1", "zero3") if pp == 1 and ranks > 1 and tp <= 2 else ("zero1",):
            yield TrainPlan(
                gpus=gpus,
                seq=goal.seq,
                micro_batch=float(micro),
                microbatches=max(1, per_rank // micro),
                tp=tp,
                pp=pp,
                cp=cp,
                ep=ep,
                virtual_stages=virtual,
                sharding=sharding,
                expert_imbalance=goal.expert_imbalance,
                domain=scale_up_domain(gpu),
                nic_bytes_per_s=network_share(gpu),
            )


def fitting(shape: ModelShape, gpu: Gpu, plan: TrainPlan) -> tuple[TrainPlan, MemoryParts] | None:
    """The plan with the least recompute that fits, and its memory; None when none does."""
    room = HEADROOM_RATIO * gpu.usable_bytes - runtime_bytes(plan.gpus)
    for recompute in ("none", "selective", "full"):
        tried = msgspec.structs.replace(plan, recompute=recompute)
        parts = plan_memory(shape, tried)
        if parts.total_bytes <= room:
            return tried, parts
        held = (
            parts.weights_bytes
            + parts.gradients_bytes
            + parts.optimizer_bytes
            + parts.gathered_bytes
        )
        if held > room:
            return None
    return None


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Ranked candidates, and what was tried and dropped."""

    candidates: tuple[Candidate, ...]
    tried: int
    dropped_memory: int
    smallest_gap_bytes: float | None
    catalogue_date: str
    calibration_date: str
    assumptions: tuple[str, ...]


def search_train(
    catalogue: Catalogue,
    goal: TrainGoal,
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: TrainModel,
    calibration_date: str,
) -> SearchResult:
    """Ranks the best layout of every device type and count.

    Order: with a deadline the cheapest that meets it, with a budget the fastest within it, else the
    cheapest; without prices, device-hours stand for cost. Raises UserError `never_fits` when no
    layout of any count fits, with the gap.
    """
    _check_goal(goal)
    cases: list[TrainCase] = []
    memories: list[MemoryParts] = []
    tried = dropped = 0
    for gpu in goal.gpus:
        gpu.bandwidth()
        for gpus in goal.counts:
            for plan in layouts(goal, gpu, gpus):
                tried += 1
                found = fitting(goal.shape, gpu, plan)
                if found is None:
                    dropped += 1
                    continue
                for precision in precisions_of(gpu, goal.precision):
                    cases.append(
                        TrainCase(
                            shape=goal.shape,
                            gpu=gpu,
                            framework=goal.framework or default_framework(gpu),
                            plan=msgspec.structs.replace(found[0], precision=precision),
                            release_months=goal.release_months,
                        )
                    )
                    memories.append(found[1])
    if not tried:
        raise UserError(
            "no layout is legal with that batch, count and layout",
            code="infeasible",
            field="batch-tokens",
            hint="a larger batch fills more ranks and pipeline stages; or fix fewer sizes",
        )
    if not cases:
        raise _never_fits(goal)
    ranked = _rate(catalogue, goal, cases, memories, kernels=kernels, fits=fits, model=model)
    return SearchResult(
        candidates=tuple(_order(goal, ranked)),
        tried=tried,
        dropped_memory=dropped,
        smallest_gap_bytes=None,
        catalogue_date=catalogue.date,
        calibration_date=calibration_date,
        assumptions=_assumptions(catalogue, goal),
    )


def _check_goal(goal: TrainGoal) -> None:
    """Raise UserError naming what makes a goal impossible before anything is tried."""
    if goal.tokens <= 0 or goal.seq < 1:
        raise UserError("tokens and seq must be positive", field="tokens")
    if not goal.counts or min(goal.counts) < 1:
        raise UserError("no device count, or one below 1", field="counts", hint="write 8,16,32")
    if not goal.expert_imbalance >= 1.0:
        raise UserError(
            f"moe-imbalance is {goal.expert_imbalance:g}",
            field="moe-imbalance",
            hint="it is the most loaded device over the mean, 1 and more",
        )
    check_sizes(goal.shape, goal.fixed, goal.counts)


def _assumptions(catalogue: Catalogue, goal: TrainGoal) -> tuple[str, ...]:
    sequences = goal.batch_tokens / goal.seq
    listed = [
        f"global batch {goal.batch_tokens / 1e6:.1f} M tokens ({sequences:.0f} sequences)"
        + _guard(goal),
        f"software {goal.framework or 'Megatron as measured nearest to each part'}",
        "Adam with fp32 master weights and fp32 gradients, distributed optimizer",
        f"one interruption per {cost.INTERRUPTION_HOURS:,.0f} device-hours, "
        f"restart {cost.RESTART_S / 60:.0f} min, checkpoint {cost.CHECKPOINT_S:.0f} s",
        f"node power 1.45 x boards at {cost.TRAINING_POWER_RATIO:.0%} of limit, PUE {cost.PUE}",
    ]
    size = cost.checkpoint_bytes(float(arch.parameter_count(goal.shape)))
    apart = cost.checkpoint_interval_s(max(goal.counts)) / 60.0
    listed.append(
        f"a checkpoint of {size / 1e9:,.0f} GB every {apart:.0f} min on {max(goal.counts)} devices"
    )
    if goal.terms.price == "spot":
        listed.append("spot devices that are taken away cost more: that is not in the goodput")
    if goal.expert_imbalance != 1.0 and goal.shape.is_moe:
        listed.append(f"the busiest expert device has {goal.expert_imbalance:g} of the mean tokens")
    for gpu in goal.gpus:
        ratio = catalogue.speed_ratio(goal.shape.name, "pretrain", gpu.name)
        if ratio != 1.0:
            listed.append(f"{gpu.name} runs at {ratio:.2f} of the prediction, as probes measured")
    listed += [f"model: {text}" for text in goal.shape.assumed]
    return tuple(listed)


def _guard(goal: TrainGoal) -> str:
    """A warning where the batch is past the one that the budget of compute can use."""
    flops = goal.tokens * arch.training_flops_per_token(goal.shape, tokens=float(goal.seq))
    useful = cost.batch_guard_tokens(flops)
    if goal.batch_tokens <= 2.0 * useful:
        return ""
    return f"; past the useful batch of about {useful / 1e6:.1f} M"


def _never_fits(goal: TrainGoal) -> UserError:
    """The refusal, with the floor of memory that sharded states alone need."""
    count = max(goal.counts)
    gpu = max(goal.gpus, key=lambda g: g.usable_bytes)
    states = STATE_BYTES * arch.parameter_count(goal.shape)
    room = count * gpu.usable_bytes
    least = math.ceil(states / (0.8 * gpu.usable_bytes))
    return UserError(
        f"no layout of {goal.shape.name} fits on up to {count} x {gpu.name}: states alone take "
        f"{states / 1e12:.2f} TB of {room / 1e12:.2f} TB",
        code="never_fits",
        field="gpus",
        hint=f"about {least} x {gpu.name} would hold them; a narrower optimizer needs less",
    )


def _rate(
    catalogue: Catalogue,
    goal: TrainGoal,
    cases: Sequence[TrainCase],
    memories: Sequence[MemoryParts],
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    model: TrainModel,
) -> list[Candidate]:
    """The fastest layout of each device type and count, as candidates."""
    works = nominal_work(cases, kernels, fits)
    table = tabulate(cases, works)
    prediction = model.log_seconds(table)
    parts = mechanism(model.theta, table)
    per_token = prediction.log_value - np.log([w.tokens for w in works])
    best: dict[tuple[str, int], int] = {}
    for i, case in enumerate(cases):
        key = (case.gpu.name, case.plan.gpus)
        if key not in best or per_token[i] < per_token[best[key]]:
            best[key] = i
    halves = model.half_width(table, prediction)
    found = []
    for i in best.values():
        ratio = catalogue.speed_ratio(goal.shape.name, "pretrain", cases[i].gpu.name)
        seconds = float(np.exp(prediction.log_value[i])) / ratio
        basis = gemm_basis(kernels, cases[i].gpu, dtype=gemm_dtype(cases[i].plan.precision))
        half = range_half_width(float(halves[i]), basis)
        found.append(
            _candidate(
                catalogue,
                goal,
                cases[i],
                memories[i],
                seconds=seconds,
                half=half,
                parts=_shares(parts, i, seconds),
                tokens=works[i].tokens,
                flops=works[i].model_flops,
                basis=basis,
            )
        )
    return found


def _shares(parts: StepParts, row: int, seconds: float) -> dict[str, float]:
    """Seconds by part of one row, scaled to the predicted step."""
    scale = seconds / float(parts.total_s[row])
    return {
        name.removesuffix("_s"): float(getattr(parts, name)[row]) * scale
        for name in StepParts.__struct_fields__
        if name != "total_s"
    }


def _candidate(
    catalogue: Catalogue,
    goal: TrainGoal,
    case: TrainCase,
    memory: MemoryParts,
    *,
    seconds: float,
    half: float,
    parts: Mapping[str, float],
    tokens: float,
    flops: float,
    basis: str,
) -> Candidate:
    plan, gpu = case.plan, case.gpu
    goodput = cost.goodput_ratio(plan.gpus)
    days = goal.tokens / tokens * seconds / goodput / 86_400.0
    low, high = days * math.exp(-half), days * math.exp(half)
    hours = days * 24.0 * plan.gpus
    price = cost.device_price(catalogue, gpu, gpus=plan.gpus, term=goal.terms.price)
    usd = None if price is None else hours * price.usd_h
    parameters = float(arch.parameter_count(goal.shape))
    beside = cost.footprint(
        catalogue,
        gpu,
        goal.terms,
        gpus=plan.gpus,
        hours=days * 24.0,
        checkpoint_bytes=cost.checkpoint_bytes(parameters),
        weight_bytes=2.0 * parameters,
    )
    binds, change = advice_of(goal.shape, case, parts, seconds)
    return Candidate(
        gpu=gpu.name,
        plan=plan,
        memory=memory,
        memory_total_bytes=memory.total_bytes + runtime_bytes(plan.gpus),
        usable_bytes=gpu.usable_bytes,
        step_s=seconds,
        step_low_s=seconds * math.exp(-half),
        step_high_s=seconds * math.exp(half),
        parts_s=dict(parts),
        tokens_per_s=tokens / seconds,
        mfu_ratio=flops / (seconds * plan.gpus * gpu.flops(plan.precision)),
        days=days,
        days_low=low,
        days_high=high,
        goodput=goodput,
        gpu_hours=hours,
        cost_usd=usd,
        cost_low_usd=None if usd is None else usd * math.exp(-half),
        cost_high_usd=None if usd is None else usd * math.exp(half),
        energy_kwh=beside.energy_kwh,
        footprint=beside,
        price=price,
        basis=basis,
        binds=binds,
        change=change,
    )


def _order(goal: TrainGoal, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by the goal: those that meet deadline and budget first, then cheap or fast."""

    def misses(c: Candidate) -> int:
        late = goal.deadline_s is not None and c.days * 86_400.0 > goal.deadline_s
        dear = goal.budget_usd is not None and (c.cost_usd is None or c.cost_usd > goal.budget_usd)
        return int(late) + int(dear)

    def price(c: Candidate) -> float:
        return c.cost_usd if c.cost_usd is not None else c.gpu_hours * 1e3

    fast_first = goal.budget_usd is not None and goal.deadline_s is None
    return sorted(
        candidates,
        key=lambda c: (misses(c), c.days if fast_first else price(c), c.days, c.gpu, c.plan.gpus),
    )
