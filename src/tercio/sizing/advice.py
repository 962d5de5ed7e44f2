"""What binds a training step and what to change, in words."""

from __future__ import annotations

from collections.abc import Mapping

from tercio.sizing import architecture as arch
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Gpu
from tercio.sizing.train_plan import TrainCase, TrainPlan

# Weights, gradients and Adam's states of one parameter.
STATE_BYTES = 18.0

ADVICE: Mapping[str, str] = {
    "compute": "arithmetic binds: a faster device or a narrower precision shortens the step",
    "launch": "kernel launches bind: raise the micro-batch or capture CUDA graphs",
    "tensor": "tensor-parallel traffic binds: lower tp, or overlap it (async TP)",
    "expert": "expert exchange binds: keep ep inside the scale-up domain",
    "context": "context-parallel traffic binds: lower cp",
    "bubble": "the pipeline bubble binds: raise the global batch, interleave more or lower pp",
    "pipeline": "pipeline transfers bind: lower pp or the number of chunks",
    "sync": "gradient and weight traffic binds: raise the batch per device or use a faster network",
    "optimizer": "the optimizer step binds: raise the global batch",
}


def advice_of(
    shape: ModelShape, case: TrainCase, parts: Mapping[str, float], seconds: float
) -> tuple[str, str]:
    """(what binds, what to change)."""
    others = {name: value for name, value in parts.items() if name != "compute"}
    worst = max(others, key=lambda name: others[name])
    binds = worst if others[worst] > 0.2 * seconds else "compute"
    change = ADVICE[binds]
    if case.plan.recompute == "full":
        change += "; memory forces full recompute: more devices or a larger part would drop it"
    return binds, change + _domain_words(shape, case.gpu, case.plan)


def _domain_words(shape: ModelShape, gpu: Gpu, plan: TrainPlan) -> str:
    """Say what of a layout leaves its scale-up domain, and whether the states had to."""
    if plan.domain == 1:
        return f"; {gpu.name} has no NVLink domain" if plan.tp * plan.cp * plan.ep > 1 else ""
    words = ""
    for name, ranks in (("tp x cp", plan.tp * plan.cp), ("ep", plan.ep)):
        if ranks > plan.domain:
            words += f"; {name} = {ranks} is too big for one NVLink domain of {plan.domain}"
    states = STATE_BYTES * arch.parameter_count(shape)
    if states > plan.domain * gpu.usable_bytes:
        words += (
            f"; the states ({states / 1e12:.2f} TB) are too big for one NVLink domain of "
            f"{plan.domain}, so they are split across the network"
        )
    return words
