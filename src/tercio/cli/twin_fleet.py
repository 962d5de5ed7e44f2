"""`tercio twin fleet`: what health policies cost and save on a fleet with known truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tercio.cli.session import Session
from tercio.cli.twin_trace import seconds
from tercio.cli.verbs import Verb, Word, pass_session
from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.health.policy import HealthPolicy
    from tercio.twin.health_compare import PolicyLoss
    from tercio.twin.health_fleet import Fleet

_DEFAULTS: Final = ("mode=shadow", "mode=act", "mode=act,repairs=command")
_RATIO: Final = click.FloatRange(0.0, 1.0)


@click.command(
    "fleet",
    cls=Verb,
    examples="""
    tercio twin fleet --nodes 1000 --months 20
    tercio twin fleet --nodes 100 --lemons 0.05 --lemon-factor 40
    tercio twin fleet --nodes 100 --days 8 --release-day 2 --policy mode=shadow --policy mode=act
    tercio twin fleet --nodes 200 --policy mode=act --policy mode=act,drain_budget_ratio=0.1 -o json
    """,
)
@click.option("--nodes", type=click.IntRange(1, 100_000), default=100, show_default=True,
              help="Of the fleet.")  # fmt: skip
@click.option("--devices", type=click.IntRange(1, 64), default=8, show_default=True,
              help="Of a node.")  # fmt: skip
@click.option("--months", type=click.IntRange(1, 1000), default=10, show_default=True,
              help="Lives of the fleet, each with troubles of its own.")  # fmt: skip
@click.option("--days", type=click.FloatRange(1.0, 366.0), default=30.0, show_default=True,
              help="Length of a life.")  # fmt: skip
@click.option("--policy", "policies", metavar="NAME=VALUE,...", multiple=True,
              help="Settings of a health policy; the first is the baseline. "
              f"Default: {'; '.join(_DEFAULTS)}.")  # fmt: skip
@click.option("--faults", type=click.FloatRange(0.001, 1000.0), default=6.5, show_default=True,
              help="Per 1,000 days of a healthy node.")  # fmt: skip
@click.option("--lemons", type=_RATIO, default=0.0, show_default=True,
              help="Part of the nodes that fail too often.")  # fmt: skip
@click.option("--lemon-factor", type=click.FloatRange(1.0, 1000.0), default=10.0,
              show_default=True, help="How often they do, beside a healthy one.")  # fmt: skip
@click.option("--release-day", type=click.FloatRange(0.0, 366.0), metavar="DAY",
              help="When a bad driver goes out; none without it.")  # fmt: skip
@click.option("--release-ratio", type=_RATIO, default=0.5, show_default=True,
              help="Part of the nodes that get it.")  # fmt: skip
@click.option("--release-for", metavar="TIME", default="6h", show_default=True,
              help="Until it is taken back.")  # fmt: skip
@click.option("--job-devices", type=click.IntRange(1, 100_000), default=64, show_default=True,
              help="Of the job that a fault ends.")  # fmt: skip
@click.option("--fall-back", metavar="TIME", default="25m", show_default=True,
              help="Work that such a job loses.")  # fmt: skip
@click.option("--notice", metavar="TIME", default="1d", show_default=True,
              help="Until a person looks at a node.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first life.")
@click.option("-o", "output", type=Word("format", ("table", "json")), default="table",
              metavar="FORMAT", help="table or json.")  # fmt: skip
@pass_session
def fleet_command(
    session: Session,
    *,
    nodes: int,
    devices: int,
    months: int,
    days: float,
    policies: tuple[str, ...],
    faults: float,
    lemons: float,
    lemon_factor: float,
    release_day: float | None,
    release_ratio: float,
    release_for: str,
    job_devices: int,
    fall_back: str,
    notice: str,
    seed: int,
    output: str,
) -> None:
    """Let a fleet live under health policies and compare the device hours that each lost.

    The live health book decides on faults, lemons and a bad driver release whose truth is known.
    Lost is what jobs fell back, and devices of nodes out of use. Policies meet equal troubles.
    """
    from tercio.cli.progress import Progress
    from tercio.twin.health_compare import compare_health
    from tercio.twin.health_fleet import Fleet

    fleet = Fleet(
        nodes=nodes, devices_per_node=devices, days=days, faults_per_node_day=faults / 1000,
        lemon_ratio=lemons, lemon_factor=lemon_factor, release_day=release_day,
        release_ratio=release_ratio, release_s=seconds(release_for, "release-for") or 0.0,
        job_devices=job_devices, fall_back_s=seconds(fall_back, "fall-back") or 0.0,
        notice_s=seconds(notice, "notice") or 0.0,
    )  # fmt: skip
    _check(fleet)
    chosen = {text: _policy(text) for text in policies or _DEFAULTS}
    with session.progress("letting the fleet live") as shown:
        rows = compare_health(
            fleet, chosen, lives=months, seed=seed,
            tell=lambda done, whole: (
                shown.say(f"life {done} of {whole}") if isinstance(shown, Progress) else None
            ),
        )  # fmt: skip
    _show(session, fleet, rows, months=months, seed=seed, output=output)


def _check(fleet: Fleet) -> None:
    if fleet.release_day is not None and fleet.release_day >= fleet.days:
        raise UserError(
            f"release-day: {fleet.release_day:g} is after the {fleet.days:g} days of a life",
            field="release-day",
            hint="give an earlier day, or more --days",
        )
    if fleet.notice_s <= 0:
        raise UserError("notice: a person needs some time", field="notice", hint="such as 1h")


def _policy(text: str) -> HealthPolicy:
    """Return the policy of `NAME=VALUE,...`."""
    from tercio.cli.commands.health import parse_settings
    from tercio.core.health_commands import check_settings

    return check_settings(parse_settings(tuple(part for part in text.split(",") if part)))


def _show(
    session: Session,
    fleet: Fleet,
    rows: tuple[PolicyLoss, ...],
    *,
    months: int,
    seed: int,
    output: str,
) -> None:
    import msgspec

    from tercio.cli.output import Column, print_table, write, write_body

    if output == "json":
        body = {
            "schema": "tercio/v1", "kind": "TwinFleet", "seed": seed, "lives": months,
            "fleet": fleet, "policies": rows,
        }  # fmt: skip
        write_body(msgspec.json.encode(body))
        return

    def hours(name: str) -> Column[PolicyLoss]:
        titles = {"lost_h": "LOST", "fallen_back_h": "FELL BACK", "out_h": "OUT OF USE"}
        return Column(titles[name], name, lambda row: f"{row.figures[name]:,.0f}", is_right=True)

    def count(title: str, name: str, spare: int) -> Column[PolicyLoss]:
        return Column(title, name, lambda row: f"{row.figures[name]:,.1f}", is_right=True,
                      spare=spare)  # fmt: skip

    columns: list[Column[PolicyLoss]] = [
        Column("POLICY", "policy", lambda row: row.policy),
        hours("lost_h"),
        Column("DIFFERENCE", "difference", _gap, is_right=True),
        hours("fallen_back_h"),
        hours("out_h"),
        count("STRIKES", "strikes", 4),
        count("TAKEN OUT", "quarantines", 0),
        count("OF SOUND NODES", "wrong_quarantines", 1),
        Column("LEMONS FOUND", "lemons_found", _lemons, is_right=True, spare=2),
        count("BREAKER", "breakers", 3),
    ]
    there_h = fleet.nodes * fleet.devices_per_node * fleet.days * 24
    print_table(session, columns, rows)
    write("")
    lives = "one life" if months == 1 else f"means of {months} lives"
    write(f"device hours of {there_h:,.0f} that a life has; {lives} of {fleet.days:g} days")


def _gap(row: PolicyLoss) -> str:
    found = row.difference
    if found is None:
        return "-"
    sure = ""
    if found.low is not None and found.high is not None:
        sure = f" ({found.low:+,.0f} to {found.high:+,.0f})"
    return f"{found.mean:+,.0f}{sure}"


def _lemons(row: PolicyLoss) -> str:
    there = row.figures["lemons"]
    return f"{row.figures['lemons_found']:,.1f} of {there:,.1f}" if there else "-"
