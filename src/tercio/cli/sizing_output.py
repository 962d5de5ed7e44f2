"""How sizing answers are printed: tables for people, one JSON body for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tercio.sizing.architecture import ModelShape
    from tercio.sizing.catalogue import Catalogue
    from tercio.sizing.cost import Footprint, Price
    from tercio.sizing.finetune import FinetuneAnswer
    from tercio.sizing.fit import FitAnswer
    from tercio.sizing.kernels import GemmTable
    from tercio.sizing.lengths import Lengths
    from tercio.sizing.memory import MemoryParts
    from tercio.sizing.metrics import Metric
    from tercio.sizing.plan_serve import ServeAnswer, ServeGoal
    from tercio.sizing.search import Candidate, SearchResult, TrainGoal
    from tercio.sizing.validate import Report

GIB = 1024**3
SHOWN = 12


def as_json(kind: str, answer: object, stamp: tuple[str, str] | None = None, **more: object) -> str:
    """One JSON body with the schema, the kind and the versions it was made from."""
    body: dict[str, object] = {"schema": "tercio/v1", "kind": kind}
    if stamp is not None:
        body |= {
            "catalogue_date": stamp[0],
            "calibration_date": stamp[1] or None,
            "answers": answer,
        }
    else:
        body |= {"result": answer}
    body |= {name: value for name, value in more.items() if value is not None}
    return msgspec.json.encode(body).decode()


def table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """Columns aligned to the widest cell; numbers right, words left."""
    every = [list(headers), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in every) for i in range(len(headers))]
    lines = []
    for row in every:
        cells = [
            cell.rjust(width) if cell[:1].isdigit() or cell[:1] in "$-+" else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def usd(value: float | None) -> str:
    """Dollars in a short form; a dash for an unknown price."""
    if value is None:
        return "-"
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"${value / limit:.3g}{unit}"
    return f"${value:.2f}"


def ratio(value: float | None) -> str:
    """A fraction as a percentage; a dash for none."""
    return "-" if value is None else f"{100 * value:.1f}%"


def price_line(price: Price | None) -> str:
    """Where a price comes from."""
    if price is None:
        return "no published price on these terms"
    recalled = ", recalled: verify" if price.is_recalled else ""
    top = "" if price.high_usd_h <= price.usd_h else f" to {price.high_usd_h:.2f}"
    offered = f"{price.provider} {price.instance_type}, {price.date}{recalled}"
    others = [
        f"{name} {usd:.2f}"
        for name, usd in (("spot", price.spot_usd_h), ("committed", price.committed_usd_h))
        if usd is not None and name != price.term
    ]
    beside = f"; {', '.join(others)}" if others else ""
    return f"{price.usd_h:.2f}{top} $/device-hour {price.term} ({offered}){beside}"


def footprint_lines(found: Footprint | None) -> list[str]:
    """Energy, carbon, storage and egress of a run; what is not known is a dash."""
    if found is None:
        return []
    grid = found.grid
    where = (
        "no grid named: --grid USA"
        if grid is None
        else f"{grid.gco2_per_kwh:g} g/kWh, {grid.name}{f' {grid.year}' if grid.year else ''}"
    )
    energy = "-" if found.energy_kwh is None else f"{found.energy_kwh / 1000:,.2f} MWh"
    carbon = "-" if found.carbon_kg is None else f"{found.carbon_kg / 1000:,.2f} t CO2e"
    return [
        f"energy: {energy}; carbon {carbon} ({where})",
        f"beside: storage {usd(found.storage_usd)} (two checkpoints), "
        f"egress {usd(found.egress_usd)} (the weights once)",
    ]


def memory_lines(parts: MemoryParts) -> str:
    """Memory by part in GiB."""
    cells = [
        f"{name.removesuffix('_bytes')} {getattr(parts, name) / GIB:.1f}"
        for name in type(parts).__struct_fields__
        if getattr(parts, name) > 0.005 * GIB
    ]
    return ", ".join(cells) + " GiB"


def layout(candidate: Candidate) -> str:
    """A plan in one word: tp2 pp4 ep8 zero1 mb1x32 full."""
    plan = candidate.plan
    sizes = [
        (n, v)
        for n, v in (("tp", plan.tp), ("pp", plan.pp), ("cp", plan.cp), ("ep", plan.ep))
        if v > 1
    ]
    words = [f"{name}{size}" for name, size in sizes] + [f"dp{plan.dp}", plan.sharding]
    if plan.virtual_stages > 1:
        words.append(f"v{plan.virtual_stages}")
    words += [
        f"mb{plan.micro_batch:g}x{plan.microbatches}",
        f"recompute:{plan.recompute}",
        plan.precision,
    ]
    return " ".join(words)


def shares(parts: Mapping[str, float]) -> str:
    """Parts of a time as percentages, largest first, below 1 % left out."""
    total = sum(parts.values())
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(
        f"{name} {100 * value / total:.0f}%" for name, value in ordered if value > 0.01 * total
    )


def train_text(goal: TrainGoal, result: SearchResult) -> str:
    """The ranked layouts, the best one in full, and what was assumed."""
    rows = [
        [
            str(i + 1),
            f"{c.plan.gpus} x {c.gpu}",
            layout(c),
            f"{c.memory_total_bytes / GIB:.0f}/{c.usable_bytes / GIB:.0f}",
            f"{c.tokens_per_s / c.plan.gpus:,.0f}",
            ratio(c.mfu_ratio),
            f"{c.days:.1f}",
            f"{c.days_low:.1f}-{c.days_high:.1f}",
            usd(c.cost_usd),
            "-" if c.energy_kwh is None else f"{c.energy_kwh / 1000:,.1f}",
            c.basis,
        ]
        for i, c in enumerate(result.candidates[:SHOWN])
    ]
    headers = (
        "#",
        "devices",
        "layout",
        "GiB",
        "tok/s/dev",
        "MFU",
        "days",
        "80 %",
        "cost",
        "MWh",
        "basis",
    )
    best = result.candidates[0]
    lines = [
        f"{goal.shape.name}: {goal.tokens:.3g} tokens at {goal.seq} tokens a sequence",
        "",
        table(rows, headers),
        "",
        f"best: step {best.step_s:.2f} s ({best.step_low_s:.2f}-{best.step_high_s:.2f}): "
        f"{shares(best.parts_s)}",
        f"memory: {memory_lines(best.memory)}",
        f"cost: {usd(best.cost_low_usd)} to {usd(best.cost_high_usd)} at {price_line(best.price)}",
        *footprint_lines(best.footprint),
        f"goodput {ratio(best.goodput)}; {best.gpu_hours:,.0f} device-hours",
        f"binds: {best.change}",
        "",
        f"{result.tried} layouts tried, {result.dropped_memory} did not fit; "
        f"catalogue {result.catalogue_date}, calibration {result.calibration_date}",
        *[f"assumed: {text}" for text in result.assumptions],
    ]
    return "\n".join(lines)


def finetune_text(
    shape: ModelShape, answers: Sequence[FinetuneAnswer], stamp: tuple[str, str]
) -> str:
    """Where a fine-tune fits, cheapest first."""
    rows = [
        [
            f"{a.fit.gpus} x {a.fit.gpu}",
            f"{a.fit.needed_bytes / GIB:.1f}/{a.fit.usable_bytes / GIB:.0f}",
            a.fit.recompute,
            f"{a.tokens_per_s:,.0f}",
            f"{a.tokens_per_s_low:,.0f}-{a.tokens_per_s_high:,.0f}",
            "-" if a.hours is None else f"{a.hours:.1f}",
            usd(a.cost_usd),
            a.basis,
        ]
        for a in answers
    ]
    headers = ("devices", "GiB", "recompute", "tok/s", "80 %", "hours", "cost", "basis")
    first = answers[0]
    return "\n".join(
        [
            f"{first.method} of {shape.name}",
            "",
            table(rows, headers),
            "",
            f"memory on {first.fit.gpu}: {memory_lines(first.fit.memory)}",
            f"price: {price_line(first.price)}",
            *footprint_lines(first.footprint),
            *[
                f"{a.fit.gpus} x {a.fit.gpu} runs at {a.probe_ratio:.2f} of the prediction, "
                "as probes measured"
                for a in answers
                if a.probe_ratio != 1.0
            ],
            f"catalogue {stamp[0]}, calibration {stamp[1]}",
            *[f"assumed: {text}" for text in shape.assumed],
        ]
    )


def replica(answer: ServeAnswer) -> str:
    """The pools of an answer: `3 x tp2`, `2 x dp8 + 4 x tp1 for prompts`."""
    pool = answer.prefill
    size = f"dp{answer.attention_dp}" if answer.attention_dp > 1 else f"tp{answer.tp}"
    words = f"{answer.replicas} x {size}"
    if pool is None:
        return words
    size = f"dp{pool.attention_dp}" if pool.attention_dp > 1 else f"tp{pool.tp}"
    return f"{words} + {pool.replicas} x {size} for prompts"


def load_lines(goal: ServeGoal, first: ServeAnswer, recorded: Lengths | None) -> list[str]:
    """What the requests are like, as far as it is not the plain case."""
    lines = []
    if recorded is not None:
        hits = recorded.prefix_hit_ratio
        lines.append(
            f"trace: {recorded.requests:,} requests, {recorded.rps:.2f}/s "
            f"({recorded.peak_rps:.2f}/s in the busiest minute), in {recorded.isl:,.0f} "
            f"(half below {recorded.isl_p50:,.0f}, 95 % below {recorded.isl_p95:,.0f}), "
            f"out {recorded.osl:,.0f} ({recorded.osl_p50:,.0f}, {recorded.osl_p95:,.0f})"
            + ("" if hits is None else f", prefix hits of an endless cache {ratio(hits)}")
        )
    if goal.drafts:
        made = first.tokens_per_step
        lines.append(f"speculation: {made:.2f} tokens a step of {goal.drafts} drafts")
    if goal.prefix_hit_ratio:
        lines.append(f"prefix cache: {ratio(goal.prefix_hit_ratio)} of the prompt is not computed")
    if goal.is_disaggregated:
        lines.append("disaggregated: measured far less than shared pools; times per token of the")
        lines.append("  decode pool were off by 36 % in the median, and energy is not predicted")
    return lines


def carbon_line(grams: float | None) -> str:
    """Carbon of a million tokens."""
    if grams is None:
        return "carbon: - (no grid named, or no energy)"
    return f"carbon: {grams:,.0f} g CO2e per million tokens"


def serve_text(
    goal: ServeGoal,
    answers: Sequence[ServeAnswer],
    stamp: tuple[str, str],
    recorded: Lengths | None = None,
) -> str:
    """Replicas that carry the load, cheapest first."""
    rows = [
        [
            f"{a.gpus} x {a.gpu}",
            replica(a),
            a.precision,
            f"{a.batch:g}",
            f"{a.tpot_s * 1e3:.1f}",
            f"{a.tpot_low_s * 1e3:.1f}-{a.tpot_high_s * 1e3:.1f}",
            f"{a.ttft_compute_s * 1e3:.0f}+{a.ttft_wait_s * 1e3:.0f}",
            f"{a.goodput_rps:.1f}",
            f"{a.cache_pool_bytes / GIB:.0f}",
            usd(a.usd_per_million_tokens),
            "-" if a.joules_per_token is None else f"{a.joules_per_token:.2f}",
            a.basis,
        ]
        for a in answers
    ]
    headers = (
        "devices",
        "replicas",
        "format",
        "batch",
        "ms/token",
        "80 %",
        "first ms",
        "req/s",
        "cache GiB",
        "$/Mtok",
        "J/token",
        "basis",
    )
    first = answers[0]
    return "\n".join(
        [
            f"{goal.shape.name}: {goal.rps:.4g} requests/s of {goal.isl:.4g} in, "
            f"{goal.osl:.4g} out on {goal.backend}",
            "",
            table(rows, headers),
            "",
            f"time per token: {shares(first.parts_s)}",
            *load_lines(goal, first, recorded),
            f"price: {price_line(first.price)}; {usd(first.usd_h)} an hour",
            carbon_line(first.gco2_per_million_tokens),
            *[f"{a.gpu} {a.precision}: {a.change}" for a in answers if a.change],
            "first ms = prompt + mean wait; replicas are planned to 80 % load",
            f"catalogue {stamp[0]}, calibration {stamp[1]}",
            *[f"assumed: {text}" for text in goal.shape.assumed],
        ]
    )


def fit_text(shape: ModelShape, answers: Sequence[FitAnswer], stamp: tuple[str, str]) -> str:
    """Verdict per part."""
    rows = [
        [
            "yes" if a.fits else "no",
            f"{a.gpus} x {a.gpu}",
            f"{a.needed_bytes / GIB:.1f}",
            f"{a.usable_bytes / GIB:.1f}",
            a.recompute,
            "-" if a.smallest_gpus is None else str(a.smallest_gpus),
            a.change,
        ]
        for a in answers
    ]
    headers = ("fits", "devices", "needs GiB", "has GiB", "recompute", "smallest", "what to change")
    return "\n".join(
        [
            shape.name,
            "",
            table(rows, headers),
            "",
            f"memory: {memory_lines(answers[0].memory)}",
            f"catalogue {stamp[0]}",
            *[f"assumed: {text}" for text in shape.assumed],
        ]
    )


def gpu_rows(catalogue: Catalogue, kernels: GemmTable) -> list[dict[str, str | float | None]]:
    """Every part with the basis of its answers, or the field that is missing."""
    from tercio.errors import UserError
    from tercio.sizing.kernels import gemm_basis

    rows: list[dict[str, str | float | None]] = []
    for gpu in catalogue.gpus.values():
        missing = None
        try:
            gpu.bandwidth()
            gpu.flops("bf16")
        except UserError as error:
            missing = error.field
        rows.append(
            {
                "name": gpu.name,
                "memory_gib": gpu.usable_bytes / GIB,
                "basis": None if missing else gemm_basis(kernels, gpu, dtype="bfloat16"),
                "missing": missing,
                "source": gpu.source,
            }
        )
    return rows


def gpu_text(rows: Sequence[Mapping[str, str | float | None]]) -> str:
    """The catalogue as a table."""
    cells = [
        [
            str(row["name"]),
            f"{row['memory_gib']:.1f}",
            str(row["basis"] or "none"),
            str(row["missing"] or ""),
        ]
        for row in rows
    ]
    return table(cells, ("part", "usable GiB", "basis", "missing field"))


def _limits(metric: Metric) -> str:
    """The gate of a metric, and its goal."""
    texts = []
    if metric.gate is not None:
        names = {
            "mape_ratio": "MAPE",
            "median_ape_ratio": "median",
            "under_p95_ratio": "under p95",
            "share_ratio": "share",
            "coverage_80_ratio": "coverage",
        }
        texts += [f"{names[k]}<={100 * v:g}%" for k, v in metric.gate.at_most.items()]
        texts += [f"{names[k]}>={100 * v:.3g}%" for k, v in metric.gate.at_least.items()]
    if metric.goal:
        texts.append("goal " + "/".join(f"{100 * v:g}%" for v in metric.goal.values()))
    return " ".join(texts)


def report_text(report: Report) -> str:
    """A validation as a table with gates, goals and baselines."""
    rows = []
    for m in report.metrics:
        baseline = ", ".join(
            f"{key.removesuffix('_ratio').replace('_', ' ')} {100 * value:.1f}%"
            for key, value in m.baseline.items()
            if not key.endswith("rows")
        )
        verdict = {True: "pass", False: "FAIL", None: ""}[m.passes]
        rows.append(
            [
                m.table.replace("inference_", "").replace("train_", ""),
                m.target,
                m.holdout,
                f"{m.used}/{m.rows}",
                ratio(m.mape_ratio),
                ratio(m.median_ape_ratio),
                ratio(m.p90_ape_ratio),
                ratio(m.bias_ratio),
                ratio(m.coverage_80_ratio),
                ratio(m.share_ratio if m.share_ratio is not None else m.under_p95_ratio),
                verdict,
                _limits(m),
                baseline,
            ]
        )
    headers = (
        "table",
        "target",
        "held out",
        "rows",
        "MAPE",
        "median",
        "p90",
        "bias",
        "in 80 %",
        "share|under",
        "gate",
        "limits",
        "baselines",
    )
    lines = [
        table(rows, headers),
        "",
        f"calibration {report.calibration}; catalogue {report.catalogue_date}",
        *[f"{absent.table}: absent" for absent in report.absent],
        "all gates hold" if report.passes else "a gate is missed",
    ]
    return "\n".join(lines)
