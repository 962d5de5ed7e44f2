"""`tercio size`: will it fit, how many devices, how long, how much. No server.

The sizing package is imported inside the functions: the other commands do not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tercio.cli.size_fleet import fleet_command
from tercio.cli.sizing_input import (
    counts_of,
    fit_cases,
    gpus_of,
    load_calibration,
    load_catalogue,
    load_speeds,
    read_tables,
    shape_of,
    write_file,
)
from tercio.cli.sizing_options import (
    cost_options,
    layout_options,
    load_of,
    load_options,
)
from tercio.cli.sizing_probe import probe
from tercio.cli.verbs import Verb

Function = TypeVar("Function", bound=Callable[..., object])

DEFAULT_GPUS: Final = ("H100", "H200", "B200")
METHODS: Final = ("pretrain", "full", "lora", "qlora", "inference")


@click.group("size")
def command() -> None:
    """Predict memory, speed, time, money and energy of a model.

    Every answer names its catalogue and calibration; ranges are 80 %.
    """


command.add_command(probe)
command.add_command(fleet_command)


def model_options(function: Function) -> Function:
    """Add the options that name a model, parts, a site file and the output."""
    for option in (
        click.option(
            "-o",
            "output",
            type=click.Choice(["table", "json"]),
            default="table",
            show_default=True,
            help="Output format.",
        ),
        click.option("--site", metavar="FILE", help="The site's own prices and parts (YAML)."),
        click.option(
            "--gpus",
            metavar="LIST",
            default=",".join(DEFAULT_GPUS),
            show_default=True,
            help="Device types, comma-separated, or 'any'.",
        ),
        click.option(
            "--config", metavar="FILE", help="The model's configuration file (JSON or YAML)."
        ),
        click.option("--model", metavar="NAME", help="A catalogued model, such as llama-3-70b."),
    ):
        function = option(function)
    return function


@command.command(
    "train",
    cls=Verb,
    examples="tercio size train --model llama-3-70b --tokens 1T --seq 8192 --gpus H100",
)
@model_options
@click.option("--tokens", metavar="N", required=True, help="Tokens to train on, such as 1T.")
@click.option("--seq", metavar="N", default="4096", show_default=True, help="Sequence length.")
@click.option(
    "--batch-tokens", metavar="N", default="4M", show_default=True, help="Tokens per step."
)
@click.option("--counts", metavar="LIST", default="8,16,32,64,128,256,512,1024", show_default=True)
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp8", "mxfp8", "nvfp4"]),
    help="Default: each part's best.",
)
@click.option("--deadline", metavar="TIME", help="Such as 14d.")
@click.option("--budget", metavar="USD", help="Such as 500k.")
@click.option(
    "--moe-imbalance",
    type=float,
    default=1.0,
    show_default=True,
    help="Tokens of the busiest expert-parallel device over their mean.",
)
@layout_options
@cost_options
def train(
    *,
    model: str | None,
    config: str | None,
    gpus: str,
    site: str | None,
    output: str,
    tokens: str,
    seq: str,
    batch_tokens: str,
    counts: str,
    precision: str | None,
    deadline: str | None,
    budget: str | None,
    moe_imbalance: float,
    price: str,
    grid: str,
    **fixed: int | None,
) -> None:
    """Rank training layouts by cost, deadline or budget."""
    from tercio.cli import sizing_output as text
    from tercio.sizing.cost import Terms
    from tercio.sizing.quantities import parse_count, parse_seconds
    from tercio.sizing.search import TrainGoal, search_train
    from tercio.sizing.train_plan import Sizes

    catalogue, calibration = load_catalogue(site), load_calibration()
    goal = TrainGoal(
        shape=shape_of(catalogue, model, config),
        tokens=parse_count(tokens, field="tokens"),
        seq=int(parse_count(seq, field="seq")),
        gpus=gpus_of(catalogue, gpus),
        batch_tokens=parse_count(batch_tokens, field="batch-tokens"),
        counts=counts_of(counts),
        precision=precision or "",
        deadline_s=parse_seconds(deadline, field="deadline") if deadline else None,
        budget_usd=parse_count(budget, field="budget") if budget else None,
        terms=Terms(price=price, grid=grid),
        fixed=Sizes(**fixed),
        expert_imbalance=moe_imbalance,
    )
    result = search_train(
        catalogue,
        goal,
        **load_speeds(),
        model=calibration.train,
        calibration_date=calibration.date,
    )
    click.echo(
        text.as_json("SizingTrain", result) if output == "json" else text.train_text(goal, result)
    )


@command.command(
    "finetune", cls=Verb, examples="tercio size finetune --model llama-3-8b --method lora"
)
@model_options
@click.option(
    "--method", type=click.Choice(["full", "lora", "qlora"]), default="lora", show_default=True
)
@click.option("--seq", metavar="N", default="2048", show_default=True, help="Sequence length.")
@click.option("--micro-batch", type=float, default=1.0, show_default=True)
@click.option("--rank", type=int, default=16, show_default=True, help="LoRA rank.")
@click.option("--tokens", metavar="N", help="Tokens to train on; without it no time or cost.")
@cost_options
def finetune(
    *,
    model: str | None,
    config: str | None,
    gpus: str,
    site: str | None,
    output: str,
    method: str,
    seq: str,
    micro_batch: float,
    rank: int,
    tokens: str | None,
    price: str,
    grid: str,
) -> None:
    """Say on how few devices a fine-tune fits and how fast it runs."""
    from tercio.cli import sizing_output as text
    from tercio.sizing.cost import Terms
    from tercio.sizing.finetune import FinetuneGoal, answer_finetune
    from tercio.sizing.quantities import parse_count

    catalogue, calibration = load_catalogue(site), load_calibration()
    goal = FinetuneGoal(
        shape=shape_of(catalogue, model, config),
        method=method,
        gpus=gpus_of(catalogue, gpus),
        seq=int(parse_count(seq, field="seq")),
        micro_batch=micro_batch,
        lora_rank=rank,
        tokens=parse_count(tokens, field="tokens") if tokens else None,
        terms=Terms(price=price, grid=grid),
    )
    answers = answer_finetune(
        catalogue,
        goal,
        **load_speeds(),
        model=calibration.train,
    )
    stamp = (catalogue.date, calibration.date)
    body = (
        text.as_json("SizingFinetune", answers, stamp)
        if output == "json"
        else text.finetune_text(goal.shape, answers, stamp)
    )
    click.echo(body)


@command.command(
    "serve", cls=Verb, examples="tercio size serve --model llama-3-70b --in 2k --out 500 --rps 20"
)
@model_options
@click.option("--in", "isl", metavar="N", help="Prompt tokens; default: the trace's, or 2k.")
@click.option("--out", "osl", metavar="N", help="Output tokens; default: the trace's, or 500.")
@click.option("--rps", type=float, help="Requests per second; default: the trace's busiest minute.")
@click.option(
    "--ttft", metavar="TIME", default="1s", show_default=True, help="Limit to the first token."
)
@click.option(
    "--tpot", metavar="TIME", default="50ms", show_default=True, help="Limit per further token."
)
@click.option(
    "--precision", type=click.Choice(["bf16", "fp8", "fp4"]), help="Default: all the part has."
)
@click.option(
    "--backend", type=click.Choice(["vllm", "trtllm", "sglang"]), default="vllm", show_default=True
)
@load_options
@cost_options
def serve(
    *,
    model: str | None,
    config: str | None,
    gpus: str,
    site: str | None,
    output: str,
    isl: str | None,
    osl: str | None,
    rps: float | None,
    ttft: str,
    tpot: str,
    precision: str | None,
    backend: str,
    price: str,
    grid: str,
    **requests: Any,
) -> None:
    """Size replicas for a load within latency limits."""
    from tercio.cli import sizing_output as text
    from tercio.sizing.cost import Terms
    from tercio.sizing.plan_serve import ServeGoal, plan_serve
    from tercio.sizing.quantities import parse_seconds

    catalogue, calibration = load_catalogue(site), load_calibration()
    recorded, load = load_of(isl=isl, osl=osl, rps=rps, **requests)
    goal = ServeGoal(
        shape=shape_of(catalogue, model, config),
        **load,
        ttft_s=parse_seconds(ttft, field="ttft"),
        tpot_s=parse_seconds(tpot, field="tpot"),
        gpus=gpus_of(catalogue, gpus),
        precision=precision or "",
        backend=backend,
        terms=Terms(price=price, grid=grid),
    )
    answers = plan_serve(
        catalogue,
        goal,
        **load_speeds(),
        model=calibration.serve,
    )
    stamp = (catalogue.date, calibration.date)
    click.echo(
        text.as_json("SizingServe", answers, stamp, load=recorded)
        if output == "json"
        else text.serve_text(goal, answers, stamp, recorded)
    )


@command.command(
    "fit",
    cls=Verb,
    examples="""
    tercio size fit --model llama-3-8b --gpus A100 --count 8
    tercio size fit job.yaml
    """,
)
@click.argument("job", required=False)
@model_options
@click.option("--method", type=click.Choice(METHODS), default="full", show_default=True)
@click.option("--count", type=int, default=1, show_default=True, help="Devices.")
@click.option("--seq", metavar="N", default="2048", show_default=True, help="Sequence length.")
@click.option("--micro-batch", type=float, default=1.0, show_default=True)
@click.option("--rank", type=int, default=16, show_default=True, help="LoRA rank.")
@click.pass_context
def fit(
    context: click.Context,
    *,
    job: str | None,
    model: str | None,
    config: str | None,
    gpus: str,
    site: str | None,
    output: str,
    method: str,
    count: int,
    seq: str,
    micro_batch: float,
    rank: int,
) -> None:
    """Say whether a model fits, and the smallest count that holds it.

    With a job file, its `model:` block and its devices are the question; for `devices: auto`
    the device types are those of --gpus.

    Exit code: 0 it fits on one of the given parts, 8 it fits on none.
    """
    from tercio.cli import sizing_output as text
    from tercio.sizing.fit import FitCase, answer_fit
    from tercio.sizing.quantities import parse_count

    catalogue = load_catalogue(site)
    if job is not None:
        cases = fit_cases(job, catalogue, gpus)
    else:
        shape = shape_of(catalogue, model, config)
        cases = [
            FitCase(
                shape=shape,
                method=method,
                gpu=gpu,
                gpus=count,
                lora_rank=rank,
                seq=int(parse_count(seq, field="seq")),
                micro_batch=micro_batch,
            )
            for gpu in gpus_of(catalogue, gpus)
        ]
    shape = cases[0].shape
    answers = [answer_fit(case) for case in cases]
    stamp = (catalogue.date, "")
    click.echo(
        text.as_json("SizingFit", answers, stamp)
        if output == "json"
        else text.fit_text(shape, answers, stamp)
    )
    context.exit(0 if any(answer.fits for answer in answers) else 8)


@command.command("gpus", cls=Verb, examples="tercio size gpus")
@click.option("--site", metavar="FILE", help="The site's own prices and parts (YAML).")
@click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def list_gpus(site: str | None, output: str) -> None:
    """List the catalogued parts with the basis of an answer for each."""
    from tercio.assets import load_table
    from tercio.cli import sizing_output as text
    from tercio.sizing.packaged import build_gemm_table

    catalogue = load_catalogue(site)
    rows = text.gpu_rows(catalogue, build_gemm_table(load_table))
    click.echo(
        text.as_json("SizingGpus", rows, (catalogue.date, ""))
        if output == "json"
        else text.gpu_text(rows)
    )


def table_options(function: Function) -> Function:
    """Add the option that names the directory of measured tables."""
    return click.option(
        "--data",
        "directory",
        metavar="DIR",
        help="Measured tables; default: $TERCIO_SHARED/data/sizing.",
    )(function)


@command.command("validate", cls=Verb, examples="tercio size validate")
@table_options
@click.option(
    "--calibrate", type=click.Choice(["folds", "packaged"]), default="folds", show_default=True
)
@click.option(
    "--rows", "rows_file", metavar="FILE", help="Write every predicted row here, one JSON a line."
)
@click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.pass_context
def validate(
    context: click.Context,
    *,
    directory: str | None,
    calibrate: str,
    rows_file: str | None,
    output: str,
) -> None:
    """Predict every measured row and judge the errors.

    folds learns from the tables without the group it predicts; packaged learns nothing from them.

    Exit code: 0 all gates hold, 1 a gate is missed, 2 bad input.
    """
    import msgspec

    from tercio.assets import load_table
    from tercio.cli import sizing_output as text
    from tercio.sizing.packaged import build_catalogue
    from tercio.sizing.validate import validate as judge

    report, rows = judge(
        build_catalogue(load_table),
        read_tables(directory),
        **load_speeds(),
        calibration=load_calibration() if calibrate == "packaged" else None,
    )
    if rows_file:
        lines = b"\n".join(msgspec.json.encode(row) for row in rows) + b"\n"
        write_file(rows_file, lines)
    if output == "json":
        click.echo(msgspec.json.encode(report).decode())
    else:
        click.echo(text.report_text(report))
    context.exit(0 if report.passes else 1)


@command.command("calibrate", cls=Verb, examples="tercio size calibrate --out calibration.json.gz")
@table_options
@click.option(
    "--out", metavar="FILE", required=True, help="Where the calibration goes (.json or .json.gz)."
)
@click.option(
    "--date", metavar="DATE", required=True, help="Version stamp of the file, such as 2026-11-30."
)
def calibrate_tables(directory: str | None, out: str, date: str) -> None:
    """Fit the predictors on measured tables and write the calibration."""
    import gzip

    from tercio.assets import load_table
    from tercio.sizing.calibration import encode, fit_calibration
    from tercio.sizing.packaged import build_catalogue

    fitted = fit_calibration(
        build_catalogue(load_table),
        read_tables(directory),
        **load_speeds(),
        date=date,
    )
    raw = encode(fitted)
    write_file(out, gzip.compress(raw, mtime=0) if out.endswith(".gz") else raw)
