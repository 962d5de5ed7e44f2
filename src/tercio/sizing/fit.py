"""Does a model fit on some devices, and on how few does it?

Memory follows `memory.py` with the torchtune profile (compiled blocks, chunked loss). Nothing here
needs numpy, so that the question is answered as fast as the program starts.
"""

from __future__ import annotations

import msgspec

from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Gpu
from tercio.sizing.memory import MemoryCase, MemoryParts, memory_parts, runtime_bytes

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class FitCase(msgspec.Struct, frozen=True, kw_only=True):
    """One question: this model, this way, on these devices.

    `shard_group` is how many devices split the states; 0 stands for all.
    """

    shape: ModelShape
    method: str
    gpu: Gpu
    gpus: int
    seq: int
    micro_batch: float = 1.0
    lora_rank: int = 16
    optimizer: str = ""
    shard_group: int = 0

    @property
    def shards(self) -> int:
        """Devices that split the states: all of them unless a smaller group is asked for."""
        return self.shard_group or self.gpus


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict with its reasons. `smallest_gpus` is None when no count up to 1,024 fits."""

    gpu: str
    gpus: int
    fits: bool
    recompute: str
    memory: MemoryParts
    needed_bytes: float
    usable_bytes: float
    smallest_gpus: int | None
    change: str


def memory_of(case: FitCase, recompute: str) -> MemoryParts:
    """Memory of the question under one recompute mode, with states sharded over the devices."""
    many = case.shards > 1
    method = "inference" if case.method == "inference" else case.method
    optimizer = case.optimizer or ("adamw" if method in ("full", "pretrain") else "adamw_bf16")
    split = case.shards
    parts = memory_parts(
        MemoryCase(
            shape=case.shape,
            method=method,
            profile="torchtune",
            weight_format="nf4-dq" if method == "qlora" else "bf16",
            optimizer=optimizer,
            seq=float(case.seq),
            micro_batch=case.micro_batch,
            shards=split,
            expert_shards=split,
            sharding="zero3" if many and method != "inference" else "none",
            recompute=recompute,
            lora_rank=case.lora_rank,
            tp=case.gpus if method == "inference" else 1,
        )
    )
    return parts


def answer_once(case: FitCase) -> tuple[bool, str, MemoryParts]:
    """(fits, recompute, memory) with the least recompute that fits, or with the last mode."""
    room = case.gpu.usable_bytes - runtime_bytes(case.gpus)
    modes = ("none",) if case.method == "inference" else ("none", "selective", "full")
    for recompute in modes:
        parts = memory_of(case, recompute)
        if parts.total_bytes <= room:
            return True, recompute, parts
    return False, modes[-1], memory_of(case, modes[-1])


def smallest_count(case: FitCase) -> int | None:
    """The fewest devices of the part on which the question fits."""
    for count in COUNTS:
        if case.method == "inference" and case.shape.heads % count:
            continue
        if answer_once(msgspec.structs.replace(case, gpus=count, shard_group=0))[0]:
            return count
    return None


def answer_fit(case: FitCase) -> FitAnswer:
    """Would it fit, and what is the smallest that does."""
    if case.gpus < 1 or case.seq < 1 or case.micro_batch <= 0:
        raise UserError("gpus, seq and micro-batch must be positive", field="gpus")
    verdict, recompute, parts = answer_once(case)
    smallest = smallest_count(case)
    needed = parts.total_bytes + runtime_bytes(case.gpus)
    return FitAnswer(
        gpu=case.gpu.name,
        gpus=case.gpus,
        fits=verdict,
        recompute=recompute,
        memory=parts,
        needed_bytes=needed,
        usable_bytes=case.gpu.usable_bytes,
        smallest_gpus=smallest,
        change=_advice(case, verdict, smallest, parts),
    )


def _advice(case: FitCase, verdict: bool, smallest: int | None, parts: MemoryParts) -> str:
    if verdict:
        return "fits" if smallest == case.gpus else f"fits; {smallest} x {case.gpu.name} would do"
    largest = max(
        (name for name in MemoryParts.__struct_fields__),
        key=lambda name: float(getattr(parts, name)),
    )
    words = largest.removesuffix("_bytes")
    verb = "take" if words.endswith("s") else "takes"
    if smallest is not None:
        return f"{words} {verb} most; it fits on {smallest} x {case.gpu.name}"
    lighter = "; LoRA or QLoRA needs far less" if case.method == "full" else ""
    return f"{words} {verb} most; it fits on no count up to {COUNTS[-1]}{lighter}"
