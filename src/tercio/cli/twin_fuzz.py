"""`tercio twin fuzz`: the hunt for faults of Tercio itself. No server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from tercio.cli.processes import processes_option
from tercio.cli.session import Session
from tercio.cli.verbs import Verb, Word, pass_session

if TYPE_CHECKING:
    from tercio.twin.fuzz import Finding


@click.command(
    "fuzz",
    cls=Verb,
    examples="""
    tercio twin fuzz --seeds 100
    tercio twin fuzz --seeds 1 --seed 4711      # one seed again
    tercio twin fuzz --seeds 1 --seed 4711 --commit 434faf0   # with the code of then
    tercio twin fuzz --seeds 100 --healthy      # nodes get lost, and nothing else befalls them
    tercio twin fuzz --seeds 100 --plain        # worlds without the rarer features
    """,
)
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first one.")
@click.option("--commit", metavar="COMMIT", help="Play them with the code of this commit of the "
              "git checkout that tercio runs from.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=12, show_default=True, help="In each.")
@click.option("--healthy", "is_healthy", is_flag=True, help="Worlds without faults found, hangs, "
              "power limits and other ailments.")  # fmt: skip
@click.option("--plain", "is_plain", is_flag=True, help="Worlds of whole devices and one queue "
              "level, as in the first hunts.")  # fmt: skip
@processes_option
@click.option("-o", "output", type=Word("format", ("table", "json")), default="table",
              metavar="FORMAT", help="table or json.")  # fmt: skip
@pass_session
def fuzz_command(
    session: Session, *, seeds: int, seed: int, commit: str | None, jobs: int, is_healthy: bool,
    is_plain: bool, processes: int | None, output: str,
) -> int:  # fmt: skip
    """Hunt for faults of Tercio itself: drawn worlds full of trouble, checked at every event.

    Each seed is a small cluster whose messages get lost, whose nodes fail and whose server is
    killed; then all trouble stops, and every job must come to its end. What the worlds held and
    never held is told at the end: a hunt says nothing about what it did not see.

    A seed names a run together with the code that plays it: what one commit found is found again
    with --commit.

    Exit code: 0 nothing found, 1 a seed found a fault.
    """
    import msgspec

    from tercio.cli.output import write_body
    from tercio.cli.source_commit import run_with_commit, source_commit
    from tercio.twin.coverage import never

    worlds = "plain" if is_plain else "healthy" if is_healthy else ""
    if commit is not None:
        options = ["--seeds", str(seeds), "--seed", str(seed), "--jobs", str(jobs), "-o", output]
        return run_with_commit(
            commit, ["twin", "fuzz", *options, *([f"--{worlds}"] if worlds else [])]
        )
    found, covered = _hunted(
        session, range(seed, seed + seeds), jobs, is_plain=is_plain, is_healthy=is_healthy,
        processes=processes,
    )  # fmt: skip
    faults = [finding for finding in found if finding.fault is not None]
    entries = sum(finding.entries for finding in found)
    code = source_commit()
    if output == "json":
        body = {
            "schema": "tercio/v1", "kind": "TwinFuzz", "first": seed, "seeds": seeds,
            "jobs": jobs, "worlds": worlds or "wide",
            "commit": None if code is None else code.name,
            "has_changes": None if code is None else code.has_changes,
            "entries": entries, "covered": dict(sorted(covered.items())),
            "never": never(covered), "faults": faults,
        }  # fmt: skip
        write_body(msgspec.json.encode(body))
    else:
        again = f"--jobs {jobs}{f' --{worlds}' if worlds else ''}"
        if code is not None and not code.has_changes:
            again += f" --commit {code.name}"
        _tell(found, faults, entries, again)
        _tell_covered(covered)
    return 1 if faults else 0


def _hunted(
    session: Session,
    numbers: range,
    jobs: int,
    *,
    is_plain: bool,
    is_healthy: bool,
    processes: int | None,
) -> tuple[list[Finding], Mapping[str, int]]:
    """What each seed came to, and how often all of them together saw what."""
    from collections import Counter

    import msgspec

    from tercio.cli.processes import in_processes
    from tercio.cli.progress import Progress

    covered: Counter[str] = Counter()
    how = _How(jobs=jobs, is_wide=not is_plain, has_ailments=not is_healthy)
    with session.progress("hunting") as shown:
        tell = counter(shown.say if isinstance(shown, Progress) else None)
        findings = in_processes(_hunt, how, numbers, processes=processes, tell=tell)
    for finding in findings:
        covered.update(finding.covered)
    return [msgspec.structs.replace(finding, covered={}) for finding in findings], covered


def counter(say: Callable[[str], None] | None) -> Callable[[Finding, int, int], None]:
    """Return what is told each seed as it is done, and says how many of them found a fault."""
    faults = 0

    def tell(finding: Finding, done: int, whole: int) -> None:
        nonlocal faults
        faults += finding.fault is not None
        if say is not None:
            say(f"{done:,} of {whole:,} seeds, {faults} found a fault")

    return tell


class _How(NamedTuple):
    """Which worlds are drawn."""

    jobs: int
    is_wide: bool
    has_ailments: bool


def _hunt(how: _How, seed: int) -> Finding:
    from tercio.twin.fuzz import hunt

    return hunt(seed, jobs=how.jobs, is_wide=how.is_wide, has_ailments=how.has_ailments)


def _tell(found: Sequence[Finding], faults: Sequence[Finding], entries: int, again: str) -> None:
    """Say what was found and how to see it again, or that nothing was."""
    from tercio.cli.output import write

    if not faults:
        first, last = found[0].seed, found[-1].seed
        which = f"seed {first}" if first == last else f"seeds {first} to {last}"
        write(f"{which}: no fault in {entries:,} journal entries")
    for finding in faults:
        write(f"seed {finding.seed} at {finding.at_s:.0f} s: {finding.fault}")
        write(f"  again: tercio twin fuzz --seeds 1 --seed {finding.seed} {again}")


def _tell_covered(covered: Mapping[str, int]) -> None:
    """Say what a hunt went through, a paragraph for each group of names."""
    from tercio.cli.output import write
    from tercio.twin.coverage import never

    groups: dict[str, list[str]] = {}
    for name, count in sorted(covered.items()):
        group, _, rest = name.partition(" ")
        groups.setdefault(group, []).append(f"{rest} {count:,}")
    for group, names in groups.items():
        write(f"{group}: {', '.join(names)}")
    missed = never(covered)
    if missed:
        write(f"never seen: {', '.join(missed)}")
