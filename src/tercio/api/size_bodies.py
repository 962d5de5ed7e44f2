"""Bodies of sizing questions: the options of `tercio size`, by the same names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tercio.api.bodies import Body
from tercio.model.views import View

Word = Annotated[str, Meta(max_length=200)]
Quantity = Annotated[str, Meta(max_length=40, description="such as 4096, 4M, 1T, 14d")]
Number = Annotated[float, Meta(gt=0)]


class SizeBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model on which parts.

    Attributes:
        model: name in the catalogue, or the name of `config`.
        config: the model's own configuration (config.json), instead of the catalogue's.
        gpus: device types, comma-separated, or `any`.
    """

    model: Word | None = None
    config: dict[str, Any] | None = None
    gpus: Word = "H100,H200,B200"


class SizeTrainBody(SizeBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tercio size train`."""

    tokens: Quantity
    seq: Quantity = "4096"
    batch_tokens: Quantity = "4M"
    counts: Word = "8,16,32,64,128,256,512,1024"
    precision: Literal["bf16", "fp8", "mxfp8", "nvfp4"] | None = None
    deadline: Quantity | None = None
    budget: Quantity | None = None


class SizeFinetuneBody(SizeBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tercio size finetune`."""

    method: Literal["full", "lora", "qlora"] = "lora"
    seq: Quantity = "2048"
    micro_batch: Number = 1.0
    rank: Annotated[int, Meta(ge=1, le=4096)] = 16
    tokens: Quantity | None = None


class SizeServeBody(SizeBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tercio size serve`; `in_tokens` and `out_tokens` are its `--in` and `--out`."""

    in_tokens: Quantity = "2k"
    out_tokens: Quantity = "500"
    rps: Number
    ttft: Quantity = "1s"
    tpot: Quantity = "50ms"
    precision: Literal["bf16", "fp8", "fp4"] | None = None
    backend: Literal["vllm", "trtllm", "sglang"] = "vllm"


class SizeFitBody(SizeBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tercio size fit`."""

    method: Literal["pretrain", "full", "lora", "qlora", "inference"] = "full"
    count: Annotated[int, Meta(ge=1, le=16_384)] = 1
    seq: Quantity = "2048"
    micro_batch: Number = 1.0
    rank: Annotated[int, Meta(ge=1, le=4096)] = 16


class SizingView(View, frozen=True, kw_only=True):
    """An answer of sizing, with what it was made from.

    Attributes:
        answers: best first, as `tercio size` tells them.
        assumed: what was assumed, a sentence each.
        note: what was tried and dropped, empty for nothing.
    """

    kind: str
    model: str
    answers: tuple[dict[str, Any], ...]
    assumed: tuple[str, ...] = ()
    note: str = ""
    catalogue_date: str
    calibration_date: str


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """A catalogued part. `usd_h` is the lowest published price of a device for an hour."""

    name: str
    memory_bytes: float
    year: int
    status: str
    source: str
    usd_h: float | None = None
    price_source: str = ""


class SizingCatalogueView(View, frozen=True, kw_only=True):
    """What can be sized: models and parts, with where each is from."""

    kind: str = "SizingCatalogue"
    models: tuple[str, ...]
    parts: tuple[PartView, ...]
    catalogue_date: str
    calibration_date: str
