"""`tercio twin run`: what happens next, from the state of the live server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tercio.cli.processes import processes_option
from tercio.cli.session import Session
from tercio.cli.twin_trace import seconds
from tercio.cli.verbs import Verb, Word, pass_session

if TYPE_CHECKING:
    from tercio.core.image import StateImage
    from tercio.twin.ahead import Change
    from tercio.twin.outlook import JobOutlook, Outlook

_SEEDS_MAX = 1000


@click.command(
    "run",
    cls=Verb,
    examples="""
    tercio snapshot save now.json && tercio twin run --from now.json
    tercio twin run --from now.json --policy new.yaml
    tercio twin run --from now.json --add 16xH100 --until 3d
    tercio twin run --from now.json --drain rack3 -o json
    """,
)
@click.option("--from", "source", metavar="FILE", required=True,
              help="Of 'tercio snapshot save'.")  # fmt: skip
@click.option("--policy", metavar="FILE", help="Compare with this policy in force from now on.")
@click.option("--add", "added", metavar="16xH100", multiple=True,
              help="Compare with so many devices more.")  # fmt: skip
@click.option("--drain", "drained", metavar="NAME", multiple=True,
              help="Compare with this node, rack or label drained.")  # fmt: skip
@click.option("--until", metavar="TIME", default="7d", show_default=True, help="How far to look.")
@click.option("--seeds", type=click.IntRange(1, _SEEDS_MAX), default=20, show_default=True,
              help="Courses to draw, for the band.")  # fmt: skip
@click.option("--unknown", metavar="TIME",
              help="Run time of jobs that name none; else they do not end.")  # fmt: skip
@processes_option
@click.option("-o", "output", type=Word("format", ("table", "json")), default="table",
              metavar="FORMAT", help="table or json.")  # fmt: skip
@pass_session
def run_command(
    session: Session,
    *,
    source: str,
    policy: str | None,
    added: tuple[str, ...],
    drained: tuple[str, ...],
    until: str,
    seeds: int,
    unknown: str | None,
    processes: int | None,
    output: str,
) -> None:
    """Play the live queue forward from now: when does each waiting job start and end?

    Run times are drawn from what jobs say of themselves and from what recent jobs made of
    theirs; the band is over the draws. No new jobs come and no node fails. With --policy, --add
    or --drain the change is made at once and told beside the course as it is.

    A change doubles the work, as both are played. With some thousand waiting jobs a course takes
    ten seconds of CPU: fewer --seeds or a shorter --until are the quick answer.
    """
    import msgspec

    from tercio.cli.long_run import seldom_collected
    from tercio.cli.output import write_body
    from tercio.cli.processes import in_processes
    from tercio.cli.twin_input import cannot_read
    from tercio.core.snapshots import load_state
    from tercio.twin.outlook import Ahead, play_one, sum_up

    try:
        saved = load_state(Path(source).read_bytes(), source)
    except OSError as error:
        raise cannot_read(source, error, "from") from error
    ahead = Ahead(
        image=saved.state,
        changes=_changes(saved.state, policy, added, drained),
        now_s=saved.saved_s,
        until_s=saved.saved_s + (seconds(until, "until") or 0.0),
        seeds=seeds,
        unknown_s=seconds(unknown, "unknown"),
    )
    progress = session.progress("playing the queue forward")
    with progress, seldom_collected():
        courses = in_processes(
            play_one, ahead, ahead.courses(), processes=processes,
            tell=lambda _, done, whole: _tell(progress, done, whole),
        )  # fmt: skip
        outlook = sum_up(ahead, courses)
    if output == "json":
        fields = msgspec.to_builtins(outlook)
        write_body(msgspec.json.encode({"schema": "tercio/v1", "kind": "TwinOutlook", **fields}))
    else:
        _print(session, outlook)


def _tell(progress: object, done: int, whole: int) -> None:
    from tercio.cli.human import bar
    from tercio.cli.progress import Progress

    if isinstance(progress, Progress):
        progress.say(f"{bar(done / whole, width=20)} course {done} of {whole}")


def _changes(
    state: StateImage, policy: str | None, added: tuple[str, ...], drained: tuple[str, ...]
) -> dict[str, Change]:
    from tercio.cli.twin_input import read_text
    from tercio.formats.policy import read_policy
    from tercio.twin.ahead import Change
    from tercio.twin.change import add_devices, drain_nodes

    found = {"as it is": Change()}
    if policy is None and not added and not drained:
        return found
    specs = tuple(node.spec for node in state.nodes)
    left, more = specs, specs
    for name in drained:
        left = drain_nodes(left, name)
    for text in added:
        more = add_devices(more, text)
    kept = {spec.name for spec in left}
    words = [*(f"+{text}" for text in added), *(f"without {name}" for name in drained)]
    if policy is not None:
        words.insert(0, Path(policy).name.removesuffix(".yaml"))
    found[" ".join(words)] = Change(
        policy=None if policy is None else read_policy(read_text(policy, "policy"), source=policy),
        added=more[len(specs) :],
        drained=tuple(spec.name for spec in specs if spec.name not in kept),
    )
    return found


def _print(session: Session, outlook: Outlook) -> None:
    from tercio.cli.human import local_time
    from tercio.cli.output import Column, print_facts, print_table, write
    from tercio.model.units import format_duration

    now_s = outlook.now_s

    def after(at_s: float | None) -> str:
        return "-" if at_s is None else "now" if at_s <= now_s else format_duration(at_s - now_s)

    def band(number: int, what: str, job: JobOutlook) -> str:
        found = (job.start if what == "start" else job.end)[number]
        if found.p10_s is None:
            return "held" if job.is_held else "not in that time"
        if found.p10_s == found.p90_s:
            return after(found.p50_s)
        return f"{after(found.p50_s)} ({after(found.p10_s)} to {after(found.p90_s)})"

    columns: list[Column[JobOutlook]] = [
        Column("JOB", "job", lambda job: job.job),
        Column("NAME", "name", lambda job: job.name, is_flexible=True),
        Column("QUEUE", "queue", lambda job: job.queue, spare=1),
        Column("DEVICES", "devices", _devices_text, is_right=True),
    ]
    for what, spare in (("start", 0), ("end", 2)):
        for number, arm in enumerate(outlook.arms):
            title = f"{what.upper()}S IN{'' if len(outlook.arms) == 1 else f' {arm}'}"
            text = partial(band, number, what)
            columns.append(Column(title, f"{what}{number}", text, spare=spare))
    if outlook.jobs:
        print_table(session, columns, outlook.jobs)
        write("")
    else:
        write("no job waits\n")
    facts = [
        ("from", local_time(now_s)),
        ("looked at", f"{format_duration(outlook.until_s - now_s)}, {outlook.seeds} courses"),
    ]
    for number, arm in enumerate(outlook.arms):
        started, used = outlook.started_ratio[number], outlook.utilization_ratio[number]
        facts.append((arm, f"{started:.0%} of the waiting jobs start, devices {used:.0%} in use"))
    print_facts(session, facts)
    write("each time is the median; in brackets 8 of 10 courses. No new jobs, no faults.")


def _devices_text(job: JobOutlook) -> str:
    each = f"{job.devices:g}"
    return each if job.elements is None else f"{job.elements}x{each}"
