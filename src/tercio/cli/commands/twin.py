"""`tercio twin`: the digital twin. No server.

The twin is imported inside the functions: the other commands do not pay for it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from tercio.cli.session import Session
from tercio.cli.twin_compare import compare_command
from tercio.cli.twin_fit import fit_command
from tercio.cli.twin_fleet import fleet_command
from tercio.cli.twin_fuzz import fuzz_command
from tercio.cli.twin_run import run_command
from tercio.cli.twin_trace import (
    Drawing,
    TraceOptions,
    drawing_options,
    seconds,
    trace_options,
    workload,
)
from tercio.cli.verbs import Verb, Word, pass_session
from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.twin.estimates import EstimateKeeper
    from tercio.twin.policies import Discipline


@click.group("twin")
def command() -> None:
    """Run recorded or drawn workloads through the live scheduler in virtual time."""


command.add_command(compare_command)
command.add_command(fit_command)
command.add_command(fleet_command)
command.add_command(fuzz_command)
command.add_command(run_command)


@command.command(
    "replay",
    cls=Verb,
    examples="""
    tercio twin replay philly_jobs.csv.gz --cluster 8x8 --policy fifo --filter cluster=103959
    tercio twin replay jobs.csv --cluster cluster.yaml --policy policy.yaml --until 7d
    tercio twin replay jobs.csv --cluster 64x8 --policy easy --faults mean=60d,repair=20h
    tercio twin replay --model march.json --load 1.5 --cluster cluster.yaml
    """,
)
@click.argument("trace", metavar="[TRACE]", required=False)
@click.option("--cluster", metavar="FILE|8x8", required=True, help="Nodes, or NODESxDEVICES.")
@click.option(
    "--policy",
    metavar="NAME|FILE",
    default="default",
    show_default=True,
    help="default, fifo, easy, sjf, srtf, las2d, drf, fgd, bestfit, multifactor, or a file.",
)
@trace_options
@drawing_options
@click.option("--until", metavar="TIME", help="Stop so long after the first submit, such as 7d.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of every random stream.")
@click.option(
    "--faults",
    metavar="FILE|WORDS",
    help="A recorded fault trace, or a climate such as mean=60d,repair=20h,lemons=0.05.",
)
@click.option("--checkpoint-every", metavar="TIME", help="Work between checkpoints; 0: no loss.")
@click.option("--restart-cost", metavar="TIME", help="Time each further attempt needs first.")
@click.option("--launch-time", metavar="TIME", help="Time from the order to the running task.")
@click.option("--records", metavar="FILE", help="Write one CSV line per job there.")
@click.option("--estimates", is_flag=True,
              help="Tell waiting jobs when they start, and say how that came out.")  # fmt: skip
@click.option("-o", "output", type=Word("format", ("table", "json")), default="table",
              metavar="FORMAT", help="table or json.")  # fmt: skip
@pass_session
def replay(
    session: Session,
    *,
    trace: str | None,
    cluster: str,
    policy: str,
    reading: TraceOptions,
    drawing: Drawing,
    until: str | None,
    seed: int,
    faults: str | None,
    checkpoint_every: str | None,
    restart_cost: str | None,
    launch_time: str | None,
    records: str | None,
    estimates: bool,
    output: str,
) -> None:
    """Replay a trace under a policy and print waits, completion times, use and losses.

    The live driver, core and scheduler run unchanged; clock and engine are simulated. Run times
    are those recorded. Equal arguments and seed give equal output.
    """
    from tercio.cli import twin_input, twin_output
    from tercio.cli.long_run import seldom_collected
    from tercio.twin.replay import run
    from tercio.twin.world import World

    started_s = time.process_time()
    twin_input.check_target(records, "records")
    nodes = twin_input.load_cluster(cluster)
    with session.progress(f"reading {trace or drawing.model}"):
        jobs = workload(trace, reading, drawing, nodes, seed)
    world = World(
        checkpoint_every_s=seconds(checkpoint_every, "checkpoint-every") or 0.0,
        restart_s=seconds(restart_cost, "restart-cost") or 0.0,
        launch_s=seconds(launch_time, "launch-time") or 0.0,
    )
    discipline = twin_input.load_discipline(policy, jobs)
    keeper = _keeper(discipline) if estimates else None
    bar = _Bar(session)
    with bar.progress, seldom_collected():
        result = run(
            jobs,
            nodes,
            discipline,
            observers=() if keeper is None else (keeper,),
            estimates=estimates,
            seed=seed,
            world=world,
            profiles=None if trace is None else twin_input.load_pace(trace, jobs, reading.profiles),
            faults=twin_input.load_faults(faults, nodes, jobs, seed),
            until_s=seconds(until, "until"),
            tell=bar.tell if bar.is_shown else None,
        )
    cpu_s = time.process_time() - started_s
    if records is not None:
        twin_output.write_records(records, result)
    accuracy = None if keeper is None else keeper.accuracy()
    twin_output.tell_replay(session, result, cpu_s, accuracy, form=output)


def _keeper(discipline: Discipline) -> EstimateKeeper:
    """Return what keeps start estimates; only our scheduler makes any."""
    from tercio.sched.cycle import schedule
    from tercio.twin.estimates import EstimateKeeper

    if discipline.scheduler() is not schedule:
        raise UserError(
            f"estimates: {discipline.name} tells no starts",
            field="estimates",
            hint="take a policy of the scheduler: default, fifo, easy or a file",
        )
    return EstimateKeeper()


class _Bar:
    """How far a run is, on a terminal."""

    def __init__(self, session: Session) -> None:
        self.progress = session.progress("starting the twin")
        self.is_shown = not isinstance(self.progress, nullcontext)

    def tell(self, now_s: float, ended: int, jobs: int) -> None:
        """Show it."""
        from tercio.cli.human import bar, local_time
        from tercio.cli.progress import Progress

        if isinstance(self.progress, Progress):
            ratio = ended / max(jobs, 1)
            text = f"{bar(ratio, width=20)} {ended:,} of {jobs:,} jobs, {local_time(now_s)}"
            self.progress.say(text)
