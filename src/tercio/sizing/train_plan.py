"""The plan of a training step: how it is laid on devices, and the rules a plan must keep."""

from __future__ import annotations

import math

import msgspec

from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Gpu

PRECISIONS = ("bf16", "fp8", "mxfp8", "nvfp4")
RECOMPUTE = ("none", "selective", "full")
SHARDING = ("none", "zero1", "zero2", "zero3")


class TrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One way to lay a training step on `gpus` devices.

    `micro_batch` is sequences per device and microbatch, `microbatches` the microbatches each
    pipeline runs per step, `virtual_stages` the model chunks per device, `expert_imbalance` the
    tokens of the busiest expert-parallel device over their mean.
    """

    gpus: int
    seq: int
    micro_batch: float
    microbatches: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    precision: str = "bf16"
    recompute: str = "none"
    sharding: str = "zero1"
    gradient_bytes: float = 4.0
    is_lora: bool = False
    has_async_tp: bool = False
    has_fused_attention: bool = True
    clock_ratio: float = 1.0
    expert_imbalance: float = 1.0
    domain: int = 8
    nic_bytes_per_s: float = 50e9

    @property
    def dp(self) -> int:
        """Data-parallel size: what TP, PP and CP leave."""
        return max(1, self.gpus // (self.tp * self.pp * self.cp))

    @property
    def tokens_per_step(self) -> float:
        """Tokens of one optimizer step over all devices."""
        return self.micro_batch * self.microbatches * self.dp * self.seq


class TrainCase(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known before a run: model, device, plan, software.

    `framework` names the software stack (see FRAMEWORKS), `release_months` its age in months after
    2025-01, 0 where not stated.
    """

    shape: ModelShape
    gpu: Gpu
    plan: TrainPlan
    framework: str = "megatron_bridge"
    release_months: float = 18.0


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a layout that are fixed beforehand; None where the search chooses."""

    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None

    def of(self, name: str, tried: list[int]) -> list[int]:
        """The sizes to try of one kind: the fixed one, or those given."""
        fixed: int | None = getattr(self, name)
        return tried if fixed is None else [fixed]


def check_sizes(shape: ModelShape, sizes: Sizes, counts: tuple[int, ...]) -> None:
    """Raise UserError naming the rule that fixed sizes break on every device count."""
    tp, pp, cp, ep = (getattr(sizes, name) or 1 for name in ("tp", "pp", "cp", "ep"))
    product = tp * pp * cp
    if ep > 1 and not shape.is_moe:
        raise UserError(
            f"ep = {ep}, but {shape.name} has no experts", field="ep", hint="leave ep out"
        )
    check_plan(
        shape,
        TrainPlan(
            gpus=math.lcm(product, ep * pp), seq=1, micro_batch=1.0, tp=tp, pp=pp, cp=cp, ep=ep
        ),
    )
    if not any(count % product == 0 and count % (ep * pp) == 0 for count in counts):
        raise UserError(
            f"no device count of {', '.join(map(str, counts))} is a multiple of "
            f"tp x pp x cp = {product}" + (f" and of ep x pp = {ep * pp}" if ep > 1 else ""),
            field="counts",
            hint=f"choose a multiple, such as --counts {math.lcm(product, ep * pp)}",
        )


def check_plan(shape: ModelShape, plan: TrainPlan) -> None:
    """Raise UserError naming the rule that an impossible plan breaks."""
    if plan.gpus % (plan.tp * plan.pp * plan.cp):
        raise UserError(
            f"{plan.gpus} GPUs are not divisible by tp x pp x cp = {plan.tp * plan.pp * plan.cp}",
            field="gpus",
            hint="choose a GPU count that is a multiple of the product",
        )
    if shape.heads % plan.tp:
        raise UserError(
            f"{shape.heads} attention heads are not divisible by tp = {plan.tp}",
            field="tp",
            hint=f"tp must divide {shape.heads}",
        )
    if shape.layers < plan.pp:
        raise UserError(
            f"{shape.layers} layers cannot fill pp = {plan.pp} stages",
            field="pp",
            hint=f"pp must be at most {shape.layers}",
        )
    if shape.is_moe and shape.experts % plan.ep:
        raise UserError(f"{shape.experts} experts are not divisible by ep = {plan.ep}", field="ep")
    if plan.precision not in PRECISIONS:
        raise UserError(
            f"unknown precision {plan.precision!r}",
            field="precision",
            hint="one of " + ", ".join(PRECISIONS),
        )
