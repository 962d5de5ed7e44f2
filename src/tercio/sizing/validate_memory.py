"""Validation of memory peaks and of verdicts whether a configuration fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tercio.sizing import metrics
from tercio.sizing.catalogue import Catalogue
from tercio.sizing.memory import fits, memory_parts, states_bytes
from tercio.sizing.metrics import Gate, Metric, RowResult, Scored
from tercio.sizing.regression import Array
from tercio.sizing.tables_fit import FitObservation, read_fit_inference, read_fit_train
from tercio.sizing.tables_memory import MemoryObservation, read_memory
from tercio.sizing.tables_train import Row

PEAK_GATE = Gate(at_most={"mape_ratio": 0.10, "under_p95_ratio": 0.05})

# A quoted peak may be under the truth by at most this share in 95 of 100 cases.
ALLOWED_UNDER = 0.03


class MemoryMargin(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to a computed peak, as a log: per framework where it has enough readings.

    `half_width` is half of an 80 % range of the log, per framework.
    """

    shift: Mapping[str, float]
    half_width: Mapping[str, float]
    default_shift: float
    default_half_width: float

    def shift_of(self, framework: str) -> float:
        """Log margin of a framework."""
        return self.shift.get(framework, self.default_shift)

    def half_width_of(self, framework: str) -> float:
        """Half-width of a framework's range."""
        return self.half_width.get(framework, self.default_half_width)


def framework_kind(framework: str) -> str:
    """The framework of a row without its compile and version words."""
    return framework.split(" ", maxsplit=1)[0]


def computed_bytes(observations: Sequence[MemoryObservation]) -> Array:
    """Computed peaks, before any margin."""
    return np.array([memory_parts(o.case).total_bytes for o in observations])


def _margin(error: Array) -> float:
    """The log margin that leaves 5 % of readings more than the allowed share above the peak."""
    return max(float(np.quantile(error, 0.95)) + float(np.log1p(-ALLOWED_UNDER)), 0.0)


def learn_margin(errors: Array, frameworks: Sequence[str]) -> MemoryMargin:
    """Margins from log(measured / computed) of scored rows; a framework needs five readings."""
    kinds = np.array([framework_kind(f) for f in frameworks])
    shift: dict[str, float] = {}
    half: dict[str, float] = {}
    for kind in dict.fromkeys(kinds.tolist()):
        own = errors[kinds == kind]
        if own.size >= 5:
            shift[kind] = _margin(own)
            half[kind] = float(np.quantile(np.abs(own - shift[kind]), 0.8))
    if not errors.size:
        return MemoryMargin(shift={}, half_width={}, default_shift=0.05, default_half_width=0.1)
    pooled = _margin(errors)
    return MemoryMargin(
        shift=shift,
        half_width=half,
        default_shift=pooled,
        default_half_width=float(np.quantile(np.abs(errors - pooled), 0.8)),
    )


def peak_metric(
    observations: Sequence[MemoryObservation],
    *,
    rows: int,
    excluded: Mapping[str, int],
    margin: MemoryMargin | None,
) -> tuple[Metric, list[RowResult]]:
    """Peaks of the scored rows; held out by model and framework unless a margin is given."""
    scored_rows = [o for o in observations if o.is_scored]
    measured = np.array([o.peak_bytes or 0.0 for o in scored_rows])
    computed = computed_bytes(scored_rows)
    states = np.array([states_bytes(memory_parts(o.case)) for o in scored_rows])
    frameworks = [o.framework for o in scored_rows]
    groups = [f"{o.model_group} {framework_kind(o.framework)}" for o in scored_rows]
    error = np.log(measured / computed) if measured.size else np.zeros(0)
    shift, half = np.zeros(measured.size), np.zeros(measured.size)
    labels = np.array(groups)
    for i, framework in enumerate(frameworks):
        used = margin
        if used is None:
            others = labels != labels[i]
            used = learn_margin(
                error[others], [f for f, keep in zip(frameworks, others, strict=True) if keep]
            )
        shift[i] = used.shift_of(framework_kind(framework))
        half[i] = used.half_width_of(framework_kind(framework))
    predicted = computed * np.exp(shift)
    scored = Scored(
        measured=measured,
        predicted=predicted,
        low=predicted * np.exp(-half),
        high=predicted * np.exp(half),
    )
    holdout = "model" if margin is None else "none"
    dropped = {**excluded, "layout not known or whole GB": len(observations) - len(scored_rows)}
    metric = metrics.metric_of(
        scored,
        table="memory_measured",
        target="peak_bytes",
        holdout=holdout,
        rows=rows,
        excluded=dropped,
        groups=groups,
        baseline={f"states_only_{k}": v for k, v in metrics.summary(states, measured).items()},
        gate=PEAK_GATE,
        goal={"mape_ratio": 0.07},
    )
    names = [
        f"{o.case.method} {o.case.weight_format} micro-batch {o.case.micro_batch:g}"
        for o in scored_rows
    ]
    return metric, metrics.results_of(
        scored,
        table="memory_measured",
        target="peak_bytes",
        holdout=holdout,
        groups=groups,
        names=names,
    )


def verdict_metric(
    target: str,
    right: Sequence[bool],
    *,
    table: str,
    excluded: Mapping[str, int],
    limit: float,
    groups: int,
) -> Metric:
    """Share of right verdicts."""
    metric = Metric(
        table=table,
        target=target,
        holdout="none",
        rows=len(right) + sum(excluded.values()),
        used=len(right),
        excluded=dict(excluded),
        groups=groups,
        baseline={},
        share_ratio=float(np.mean(np.array(right, dtype=float))) if right else None,
    )
    return metrics.judge(metric, Gate(at_least={"share_ratio": limit})) if right else metric


def validate_memory(
    catalogue: Catalogue, tables: Mapping[str, Sequence[Row]], *, margin: MemoryMargin | None
) -> tuple[list[Metric], list[RowResult]]:
    """Metrics of peaks and verdicts from the tables that are present."""
    found: list[Metric] = []
    rows: list[RowResult] = []
    if "memory_measured" in tables:
        observations, excluded = read_memory(catalogue, tables["memory_measured"])
        metric, rows = peak_metric(
            observations, rows=len(tables["memory_measured"]), excluded=excluded, margin=margin
        )
        found.append(metric)
        failed = [o for o in observations if o.peak_bytes is None]
        verdicts = [not fits(memory_parts(o.case), o.gpu, gpus=o.gpus) for o in failed]
        found.append(
            verdict_metric(
                "out_of_memory_is_refused",
                verdicts,
                table="memory_measured",
                excluded={},
                limit=12.0 / 14.0,
                groups=len({o.model_group for o in failed}),
            )
        )
    known: list[FitObservation] = []
    dropped: dict[str, int] = {}
    for name, reader in (
        ("fit_train_configs_nvidia_dgxc", read_fit_train),
        ("fit_inference_configs_nvidia_dgxc", read_fit_inference),
    ):
        if name in tables:
            read, excluded = reader(catalogue, tables[name])
            known += read
            for reason, count in excluded.items():
                dropped[reason] = dropped.get(reason, 0) + count
    if known:
        running = [o for o in known if o.is_known_running]
        misfits = [o for o in known if not o.is_known_running]
        found.append(
            verdict_metric(
                "known_running_fits",
                [o.has_fit for o in running],
                table="fit_*_configs",
                excluded=dropped,
                limit=0.98,
                groups=len({o.name for o in running}),
            )
        )
        found.append(
            verdict_metric(
                "misfit_is_refused",
                [not o.has_fit for o in misfits],
                table="fit_*_configs",
                excluded={},
                limit=0.95,
                groups=len({o.name for o in misfits}),
            )
        )
    return found, rows
