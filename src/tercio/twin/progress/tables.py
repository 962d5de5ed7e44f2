"""Reads profiles: the CSV folders of Sia and Pollux, the throughput tables of Gavel.

Sources: Jayaram Subramanya et al., Sia (SOSP 2023), siasosp23/artifacts sia-simulator/traces;
Narayanan et al., Gavel (OSDI 2020), stanford-futuredata/gavel scheduler/*_throughputs.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from tercio.errors import UserError
from tercio.twin.progress.application import Application, Epoch, Points, Steps, normal_placement
from tercio.twin.progress.book import Rates
from tercio.twin.traces.source import Row, RowFault, Source, Tally, table_rows

Value = TypeVar("Value")

CLUSTERS: Final = {
    "aws": "T4",
    "azure": "V100",
    "dgx-ext": "A100",
    "rtx": "RTX2080Ti",
    "quad": "RTX6000",
}
"""Name of a measured cluster to device type. `dgx` is a smaller measurement of `dgx-ext`."""
GAVEL_TYPES: Final = {"v100": "V100", "p100": "P100", "k80": "K80"}
# Epochs and restart times are those of the published simulators.
EPOCHS: Final = {
    "bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50,
}  # fmt: skip
RESTART_S: Final = {
    "bert": 120.0, "cifar10": 50.0, "deepspeech2": 25.0, "imagenet": 250.0, "ncf": 15.0,
    "yolov3": 80.0,
}  # fmt: skip
# Training beside bare steps, fitted by the authors of Sia to runs on real machines.
SLOWDOWNS: Final = {
    "bert": 1.2, "cifar10": 1.8, "deepspeech2": 1.2, "imagenet": 1.2, "ncf": 1.5, "yolov3": 1.2,
}  # fmt: skip
_RESTART_S: Final = 30.0
_PLACEMENTS: Final = ("placement", "local_bsz", "step_time", "sync_time")
_SCALES: Final = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
_EPOCHS: Final = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
_JOB_TYPE: Final = re.compile(r"^\('(.*)', (\d{1,6})\)$")


def read_application(name: str, files: Mapping[str, Source]) -> Application:
    """Read one model's folder.

    Args:
        name: of the model.
        files: by name without `.gz`, such as `placements-aws.csv`.

    Raises:
        UserError: naming file, line, column and value; or the folder has no training runs.
    """
    runs: dict[int, tuple[Epoch, ...]] = {}
    for file in files:
        if match := re.fullmatch(r"validation-(\d{1,9})\.csv", file):
            runs[int(match[1])] = _epochs(files[file])
    if not runs:
        raise UserError(f"profile {name}: no validation-*.csv", field="profiles")
    steps = {
        kind: _steps(files[f"placements-{cluster}.csv"], files.get(f"scalability-{cluster}.csv"))
        for cluster, kind in CLUSTERS.items()
        if f"placements-{cluster}.csv" in files
    }
    shortest = min(len(run) for run in runs.values())
    return Application(
        name=name,
        steps_by_type=steps,
        runs=dict(sorted(runs.items())),
        epochs=min(EPOCHS.get(name, shortest), shortest),
        restart_s=RESTART_S.get(name, _RESTART_S),
        slowdown=SLOWDOWNS.get(name, 1.0),
    )


def _epochs(source: Source) -> tuple[Epoch, ...]:
    def read(row: Row) -> Epoch:
        return Epoch(
            progress=row.number("progress"),
            steps=row.number("iteration"),
            metric=row.number("metric", low=float("-inf")),
            # Squares of gradients of a large model reach 1e16.
            grad_sqr=_positive(row, "grad_sqr"),
            grad_var=_positive(row, "grad_var"),
        )

    epochs = tuple(_strict(read, row) for row in _rows(source, _EPOCHS))
    if not epochs:
        raise UserError(f"{source.name} holds no epoch", field="profiles")
    return epochs


def _positive(row: Row, field: str) -> float:
    try:
        value = float(row.text(field))
    except ValueError:
        raise row.fault(field, "a number") from None
    if not 0 <= value < 1e30:
        raise row.fault(field, "a number that is not negative")
    return value


def _steps(placements: Source, scales: Source | None) -> Steps:
    exact: dict[tuple[int, ...], dict[float, tuple[float, float]]] = {}
    shapes: dict[tuple[int, int], dict[float, list[tuple[float, float]]]] = {}
    for row in _rows(placements, _PLACEMENTS):
        digits = row.text("placement").removesuffix(".0")
        if not (digits.isascii() and digits.isdigit()):
            _strict(lambda at: _refuse(at, "placement", "digits, one a node"), row)
        placement = normal_placement([int(digit) for digit in digits])
        batch, times = _strict(_times, row)
        exact.setdefault(placement, {})[batch] = times
        shape = (len(placement), sum(placement))
        shapes.setdefault(shape, {}).setdefault(batch, []).append(times)
    for row in [] if scales is None else _rows(scales, _SCALES):
        batch, times = _strict(_times, row)
        nodes, replicas = _strict(_shape, row)
        shapes.setdefault((nodes, replicas), {}).setdefault(batch, []).append(times)
    return Steps(
        by_placement={
            placement: tuple((batch, *times) for batch, times in sorted(points.items()))
            for placement, points in sorted(exact.items())
        },
        by_shape={shape: _mean(points) for shape, points in sorted(shapes.items())},
    )


def _mean(points: Mapping[float, list[tuple[float, float]]]) -> Points:
    return tuple(
        (batch, sum(t[0] for t in times) / len(times), sum(t[1] for t in times) / len(times))
        for batch, times in sorted(points.items())
    )


def _times(row: Row) -> tuple[float, tuple[float, float]]:
    return row.number("local_bsz"), (row.number("step_time"), row.number("sync_time"))


def _shape(row: Row) -> tuple[int, int]:
    return row.whole("num_nodes", low=1), row.whole("num_replicas", low=1)


def _refuse(row: Row, field: str, expected: str) -> None:
    raise row.fault(field, expected)


def read_gavel_rates(source: Source) -> dict[str, dict[str, Rates]]:
    """Read a table `{type: {"('Model', devices)": {"null": steps per second, …}}}`.

    Raises:
        UserError: the text is no such table.
    """
    try:
        table = msgspec.json.decode(
            source.text, type=dict[str, dict[str, dict[str, float | list[float]]]]
        )
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{source.name}: not a throughput table: {error}", field="profiles"
        ) from None
    rates: dict[str, dict[str, tuple[dict[int, float], dict[int, float]]]] = {}
    for column, jobs in table.items():
        kind = GAVEL_TYPES.get(column.removesuffix("_unconsolidated"))
        if kind is None:
            continue
        for text, pairs in jobs.items():
            match = _JOB_TYPE.match(text)
            alone = pairs.get("null")
            if match is None or not isinstance(alone, float):
                raise UserError(
                    f"{source.name}: {column}: {text!r} is no job type", field="profiles"
                )
            by_type = rates.setdefault(match[1], {}).setdefault(kind, ({}, {}))
            by_type[column.endswith("_unconsolidated")][int(match[2])] = alone
    return {
        model: {kind: Rates(together=pair[0], apart=pair[1]) for kind, pair in by_type.items()}
        for model, by_type in rates.items()
    }


def _rows(source: Source, needed: tuple[str, ...]) -> list[Row]:
    return list(table_rows(source, Tally(), needed=needed))


def _strict(read: Callable[[Row], Value], row: Row) -> Value:
    try:
        return read(row)
    except RowFault as fault:
        Tally().fault(fault)
        raise
