"""A probe: what the first steps of a real run say, beside what was predicted of them.

Steps are timed between marks. The first quarter of them is left out (compilation, caches, the
allocator), and time that a checkpoint took in between does not count.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import msgspec

from tercio.errors import UserError
from tercio.model.readings import Marks
from tercio.sizing import architecture as arch
from tercio.sizing import cost
from tercio.sizing.architecture import ModelShape
from tercio.sizing.calibration import Calibration
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.collectives import CollectiveFits
from tercio.sizing.devices import ModelBlock
from tercio.sizing.finetune import FinetuneGoal, answer_finetune
from tercio.sizing.kernels import GemmTable
from tercio.sizing.search import TrainGoal, search_train

LEAST_STEPS = 4
"""Marked steps without which nothing is measured."""
WARM_UP_RATIO = 0.25


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the marks of a run say. A step is told with its quickest and slowest.

    `tokens_per_s` and the checkpoint's figures are None where no mark says them.
    """

    steps: int
    warm_up_steps: int
    step_s: float
    step_low_s: float
    step_high_s: float
    step_tokens: float | None
    tokens_per_s: float | None
    checkpoints: int
    checkpoint_s: float | None
    checkpoint_bytes: float | None


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for the same devices; ranges are 80 %. `checkpoint_bytes` is None for LoRA."""

    gpu: str
    gpus: int
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    checkpoint_bytes: float | None


def measure(marks: Marks | None, *, step_tokens: float | None = None) -> Measured:
    """Return what marks say; `step_tokens` goes before what they say of the tokens of a step.

    Raises:
        UserError: there are too few marked steps.
    """
    ends = marks.early_s if marks is not None else ()
    if marks is None or len(ends) < LEAST_STEPS:
        raise UserError(
            f"the job marked {len(ends)} steps, too few to measure (at least {LEAST_STEPS})",
            code="infeasible",
            field="job",
            hint="append a line `SECONDS step N` to the file that TERCIO_MARKS names after every "
            "step; a longer --limit gives it more time",
        )
    saved = marks.checkpoints
    spans = [
        end - begin - sum(_overlap(begin, end, *save) for save in saved)
        for begin, end in pairwise(ends)
    ]
    warm_up = max(1, math.floor(WARM_UP_RATIO * len(spans)))
    kept = spans[warm_up:]
    step_s = median(kept)
    if step_s <= 0:
        raise UserError(
            "the marks give the steps no time", code="infeasible", field="job",
            hint="mark each step with the time at its end, in seconds with decimals",
        )  # fmt: skip
    tokens = step_tokens or marks.step_tokens
    return Measured(
        steps=marks.step_count,
        warm_up_steps=warm_up,
        step_s=step_s,
        step_low_s=min(kept),
        step_high_s=max(kept),
        step_tokens=tokens,
        tokens_per_s=None if tokens is None else tokens / step_s,
        checkpoints=len(saved),
        checkpoint_s=median(end - begin for begin, end in saved) if saved else None,
        checkpoint_bytes=marks.checkpoint_bytes,
    )


def _overlap(begin: float, end: float, low: float, high: float) -> float:
    return max(0.0, min(end, high) - max(begin, low))


def foretell(
    catalogue: Catalogue,
    block: ModelBlock,
    gpu: Gpu,
    gpus: int,
    *,
    kernels: GemmTable,
    fits: CollectiveFits,
    calibration: Calibration,
) -> Foretold:
    """Return the predicted speed of a job's model on the devices it ran on.

    For pre-training it is that of the best layout. Raises UserError where nothing fits.
    """
    if block.method == "pretrain":
        goal = TrainGoal(
            shape=block.shape,
            tokens=block.tokens or block.batch_tokens,
            seq=block.seq,
            batch_tokens=block.batch_tokens,
            gpus=(gpu,),
            counts=(gpus,),
        )
        found = search_train(
            catalogue, goal, kernels=kernels, fits=fits, model=calibration.train,
            calibration_date=calibration.date,
        )  # fmt: skip
        best = found.candidates[0]
        low, speed, high = (
            best.tokens_per_s * best.step_s / s
            for s in (best.step_high_s, best.step_s, best.step_low_s)
        )
    else:
        (answer,) = answer_finetune(
            catalogue,
            FinetuneGoal(
                shape=block.shape, method=block.method, gpus=(gpu,), seq=block.seq,
                micro_batch=block.micro_batch, counts=(gpus,),
            ),
            kernels=kernels, fits=fits, model=calibration.train,
        )  # fmt: skip
        low, speed, high = answer.tokens_per_s_low, answer.tokens_per_s, answer.tokens_per_s_high
    return Foretold(
        gpu=gpu.name,
        gpus=gpus,
        tokens_per_s=speed,
        tokens_per_s_low=low,
        tokens_per_s_high=high,
        checkpoint_bytes=_checkpoint_bytes(block.shape, block.method),
    )


def _checkpoint_bytes(shape: ModelShape, method: str) -> float | None:
    if method not in ("pretrain", "full"):
        return None
    return cost.checkpoint_bytes(float(arch.parameter_count(shape)))


def checkpoint_every_s(gpus: int, checkpoint_s: float) -> float:
    """Young's interval for a measured write time: sqrt(2 x write time x MTBF)."""
    return cost.checkpoint_interval_s(gpus, checkpoint_s=checkpoint_s)


def block_tokens(block: ModelBlock, gpus: int) -> float:
    """Tokens of one step as the block states it: a global batch, or a micro-batch per device."""
    if block.method == "pretrain":
        return block.batch_tokens
    return block.seq * block.micro_batch * gpus
