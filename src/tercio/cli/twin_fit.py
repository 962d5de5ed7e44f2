"""`tercio twin fit`: learn a workload model from a log, to draw other workloads from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tercio.cli.session import Session
from tercio.cli.twin_trace import Drawing, TraceOptions, read_trace_file, seconds, trace_options
from tercio.cli.verbs import Verb, Word, pass_session
from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.twin.fit import WorkloadModel
    from tercio.twin.trace import Trace


@click.command(
    "fit",
    cls=Verb,
    examples="""
    tercio twin fit march.txt --to march.json
    tercio twin replay --model march.json --load 1.5 --cluster cluster.yaml
    tercio twin fit /var/lib/tercio/journal.db -o json
    """,
)
@click.argument("trace", metavar="TRACE")
@trace_options
@click.option("--to", "target", metavar="FILE", help="Write the model there as JSON.")
@click.option("-o", "output", type=Word("format", ("table", "json")), default="table",
              metavar="FORMAT", help="table, or json: the model itself.")  # fmt: skip
@pass_session
def fit_command(
    session: Session, *, trace: str, reading: TraceOptions, target: str | None, output: str
) -> None:
    """Learn arrivals by hour, sizes, run times and failures of a log.

    TRACE is a Slurm dump, our journal or any other trace. The model draws workloads of any load
    and length: 'tercio twin replay --model FILE --load 1.5'.
    """
    import msgspec

    from tercio.cli.output import write_body
    from tercio.cli.twin_input import check_target
    from tercio.twin.fit import fit

    check_target(target, "to")
    with session.progress(f"reading {trace}"):
        jobs = read_trace_file(trace, reading)
        model = fit(jobs)
    body = msgspec.json.encode(model)
    if target is not None:
        try:
            Path(target).write_bytes(body + b"\n")
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror}", field="to") from error
    if output == "json":
        write_body(body)
    else:
        _print(session, model)
        if target is None:
            session.note("nothing was written; give --to FILE to keep the model")
    for warning in jobs.warnings:
        session.warn(warning)


def _print(session: Session, model: WorkloadModel) -> None:
    from tercio.cli.human import span
    from tercio.cli.output import print_facts

    hours = model.arrivals_per_h
    busiest = max(range(len(hours)), key=hours.__getitem__)
    ran = sum(kind.jobs * kind.run_s[len(kind.run_s) // 2] for kind in model.kinds) / model.jobs
    failed = sum(kind.jobs * kind.failed_ratio for kind in model.kinds) / model.jobs
    cancelled = sum(kind.jobs * kind.cancelled_ratio for kind in model.kinds) / model.jobs
    sizes = ", ".join(
        f"{kind.devices:g} devices {kind.jobs / model.jobs:.0%}" for kind in model.kinds[:4]
    )
    print_facts(
        session,
        [
            ("source", model.source),
            ("jobs", f"{model.jobs:,} in {span(model.span_s)}"),
            ("arrivals", f"{sum(hours) / len(hours):,.1f} an hour, at most {hours[busiest]:,.1f}"),
            ("uneven", f"{model.unevenness:.2f} (0: as a Poisson process)"),
            ("kinds", f"{len(model.kinds):,} of queue and shape; most: {sizes}"),
            ("run time", f"{span(ran)}, mean of the medians"),
            ("ends", f"{failed:.1%} failed, {cancelled:.1%} cancelled"),
        ],
    )


def draw_from(path: str, seed: int, drawing: Drawing) -> Trace:
    """Draw a workload from the model in a file.

    Raises:
        UserError: the file is no model, or an option is out of range.
    """
    from tercio.cli.twin_files import read_source
    from tercio.twin.fit import draw, parse_team, read_model

    load, duration = drawing.load, drawing.duration
    if not 0 < load <= 1000:
        raise UserError(f"--load {load:g} is not above 0 and at most 1000", field="load")
    span_s = seconds(duration, "duration")
    model = read_model(read_source(Path(path)).text, path)
    teams = [parse_team(text) for text in drawing.teams]
    return draw(model, seed=seed, load=load, span_s=span_s, teams=teams)
