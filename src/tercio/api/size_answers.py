"""Answers sizing questions: from a body to what `tercio size` computes for the same options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

import msgspec

from tercio.api.size_bodies import (
    PartView,
    SizeBody,
    SizeFinetuneBody,
    SizeFitBody,
    SizeServeBody,
    SizeTrainBody,
    SizingCatalogueView,
    SizingView,
)
from tercio.api.sizing import tables_of
from tercio.core.sized import SizingTables
from tercio.errors import UserError
from tercio.sizing.architecture import ModelShape
from tercio.sizing.catalogue import Catalogue, Gpu
from tercio.sizing.config_files import Value, shape_from_config
from tercio.sizing.cost import device_price
from tercio.sizing.finetune import FinetuneGoal, answer_finetune
from tercio.sizing.fit import FitCase, answer_fit
from tercio.sizing.plan_serve import ServeGoal, plan_serve
from tercio.sizing.quantities import parse_count, parse_seconds
from tercio.sizing.search import TrainGoal, search_train

COUNTS_MAX: Final = 16
B = TypeVar("B", bound=SizeBody)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to the child: the body as JSON, and the site's file, empty for none."""

    body: msgspec.Raw
    site: str = ""


def train(body: SizeTrainBody, tables: SizingTables) -> SizingView:
    """Rank training layouts by cost, deadline or budget."""
    goal = TrainGoal(
        shape=shape_of(tables.catalogue, body),
        tokens=parse_count(body.tokens, field="tokens"),
        seq=int(parse_count(body.seq, field="seq")),
        gpus=parts_of(tables.catalogue, body.gpus),
        batch_tokens=parse_count(body.batch_tokens, field="batch_tokens"),
        counts=counts_of(body.counts),
        precision=body.precision or "",
        deadline_s=parse_seconds(body.deadline, field="deadline") if body.deadline else None,
        budget_usd=parse_count(body.budget, field="budget") if body.budget else None,
    )
    found = search_train(
        tables.catalogue, goal, kernels=tables.kernels, fits=tables.fits,
        model=tables.calibration.train, calibration_date=tables.calibration.date,
    )  # fmt: skip
    note = f"{found.tried} layouts tried, {found.dropped_memory} did not fit"
    return _view(
        "SizingTrain", goal.shape, found.candidates, tables, assumed=found.assumptions, note=note
    )


def finetune(body: SizeFinetuneBody, tables: SizingTables) -> SizingView:
    """Say on how few devices a fine-tune fits and how fast it runs."""
    goal = FinetuneGoal(
        shape=shape_of(tables.catalogue, body),
        method=body.method,
        gpus=parts_of(tables.catalogue, body.gpus),
        seq=int(parse_count(body.seq, field="seq")),
        micro_batch=body.micro_batch,
        lora_rank=body.rank,
        tokens=parse_count(body.tokens, field="tokens") if body.tokens else None,
    )
    answers = answer_finetune(
        tables.catalogue, goal, kernels=tables.kernels, fits=tables.fits,
        model=tables.calibration.train,
    )  # fmt: skip
    return _view("SizingFinetune", goal.shape, answers, tables)


def serve(body: SizeServeBody, tables: SizingTables) -> SizingView:
    """Size replicas for a load within latency limits."""
    goal = ServeGoal(
        shape=shape_of(tables.catalogue, body),
        isl=parse_count(body.in_tokens, field="in_tokens"),
        osl=parse_count(body.out_tokens, field="out_tokens"),
        rps=body.rps,
        ttft_s=parse_seconds(body.ttft, field="ttft"),
        tpot_s=parse_seconds(body.tpot, field="tpot"),
        gpus=parts_of(tables.catalogue, body.gpus),
        precision=body.precision or "",
        backend=body.backend,
    )
    answers = plan_serve(
        tables.catalogue, goal, kernels=tables.kernels, fits=tables.fits,
        model=tables.calibration.serve,
    )  # fmt: skip
    note = "first token = prompt + mean wait; replicas are planned to 80 % load"
    return _view("SizingServe", goal.shape, answers, tables, note=note)


def fit(body: SizeFitBody, tables: SizingTables) -> SizingView:
    """Say whether a model fits, and the smallest count that holds it."""
    shape = shape_of(tables.catalogue, body)
    answers = [
        answer_fit(
            FitCase(
                shape=shape, method=body.method, gpu=gpu, gpus=body.count, lora_rank=body.rank,
                seq=int(parse_count(body.seq, field="seq")), micro_batch=body.micro_batch,
            )
        )
        for gpu in parts_of(tables.catalogue, body.gpus)
    ]  # fmt: skip
    return _view("SizingFit", shape, answers, tables)


def catalogue_view(tables: SizingTables) -> SizingCatalogueView:
    """Return what can be sized, and where each entry is from."""
    parts = []
    for gpu in parts_of(tables.catalogue, "any"):
        price = device_price(tables.catalogue, gpu, gpus=8)
        parts.append(
            PartView(
                name=gpu.name, memory_bytes=gpu.usable_bytes, year=gpu.year, status=gpu.status,
                source=gpu.source, usd_h=price.usd_h if price else None,
                price_source=f"{price.provider} {price.instance_type}, {price.date}"
                if price
                else "",
            )
        )  # fmt: skip
    return SizingCatalogueView(
        models=tuple(tables.catalogue.models),
        parts=tuple(parts),
        catalogue_date=tables.catalogue.date,
        calibration_date=tables.calibration.date,
    )


def shape_of(catalogue: Catalogue, body: SizeBody) -> ModelShape:
    """The model that a body names, from the catalogue or from its own configuration."""
    if body.config is not None:
        mapping = cast("Mapping[str, Value]", body.config)
        return shape_from_config(mapping, name=body.model or "the model")
    if not body.model:
        raise UserError("no model given", field="model", hint="name one, such as llama-3-70b")
    return catalogue.model(body.model)


def parts_of(catalogue: Catalogue, names: str) -> tuple[Gpu, ...]:
    """The parts that a comma-separated list names; `any` stands for all that can be sized."""
    if names.strip().lower() == "any":
        return tuple(
            gpu
            for gpu in catalogue.gpus.values()
            if gpu.memory_bytes_per_s
            and (gpu.bf16_flops or gpu.fp16_flops)
            and gpu.status == "shipping"
        )
    found = tuple(catalogue.gpu(name) for name in names.split(",") if name.strip())
    if not found:
        raise UserError("no device type given", field="gpus", hint="H100,H200, or any")
    return found


def counts_of(text: str) -> tuple[int, ...]:
    """Device counts of a comma-separated list, ascending."""
    found = tuple(sorted({int(parse_count(part, field="counts")) for part in text.split(",")}))
    if len(found) > COUNTS_MAX:
        raise UserError(
            f"counts: {len(found)} are more than {COUNTS_MAX}", field="counts", hint="ask for fewer"
        )
    return found


def _view(
    kind: str,
    shape: ModelShape,
    answers: Sequence[msgspec.Struct],
    tables: SizingTables,
    *,
    assumed: Sequence[str] = (),
    note: str = "",
) -> SizingView:
    return SizingView(
        kind=kind,
        model=shape.name,
        answers=tuple(msgspec.to_builtins(answer) for answer in answers),
        assumed=tuple(dict.fromkeys((*assumed, *shape.assumed))),
        note=note,
        catalogue_date=tables.catalogue.date,
        calibration_date=tables.calibration.date,
    )


def _task(
    kind: type[B], answer: Callable[[B, SizingTables], SizingView]
) -> Callable[..., SizingView]:
    def perform(raw: bytes) -> SizingView:
        question = msgspec.json.decode(raw, type=Question)
        return answer(msgspec.json.decode(question.body, type=kind), tables_of(question.site))

    return perform


TASKS: Final[Mapping[str, Callable[[bytes], msgspec.Struct]]] = {
    "size_train": _task(SizeTrainBody, train),
    "size_finetune": _task(SizeFinetuneBody, finetune),
    "size_serve": _task(SizeServeBody, serve),
    "size_fit": _task(SizeFitBody, fit),
}
"""Sizing questions by name."""
