"""`tercio health`."""

from __future__ import annotations

import click
import msgspec

from tercio.cli import health, human
from tercio.cli.commands.logs import parse_since_s
from tercio.cli.output import (
    Column,
    Output,
    output_options,
    print_facts,
    print_table,
    show_list,
    write,
    write_body,
)
from tercio.cli.policy_shadow import read_text_file
from tercio.cli.session import Session
from tercio.cli.verbs import Noun, Word, pass_session
from tercio.errors import UserError
from tercio.model.health_views import (
    HealthDecision,
    HealthPlanView,
    HealthPolicyView,
    PowerReport,
)

_FORM = click.option(
    "-o", "--output", "form", type=Word("format", ("table", "json")), default="table",
    help="For people, or the API body.",
)  # fmt: skip


@click.group(cls=Noun, default="show")
def command() -> None:
    """Show, plan and set what health does about faults; shadow mode first."""


@command.group("policy", cls=Noun, default="show")
def policy() -> None:
    """Show, plan and set the health policy. Alone it shows it."""


def _show(session: Session, form: str) -> None:
    body = session.fetch("/v1/health-policy")
    if form == "json":
        write_body(body)
        return
    view = msgspec.json.decode(body, type=HealthPolicyView)
    mode = view.effective.get("mode", "shadow")
    said = "decides and says so; nothing is done" if mode == "shadow" else "decides and acts"
    write(f"{session.paint('health policy', 'bold')} version {view.version}, {mode}: {said}")
    facts = []
    for name, value in view.effective.items():
        if name == "mode":
            continue
        mark = "" if name in view.settings else "  (default)"
        facts.append((name, f"{_value(name, value)}{mark}"))
    print_facts(session, tuple(facts), indent="  ")
    if view.breaker_open_s is not None:
        opened = human.ago(view.breaker_open_s, session.now_s())
        session.warn(f"the breaker opened {opened} ago: nothing is done until it is reset")
        session.note("next: tercio health reset-breaker")


def _value(name: str, value: str | int | float) -> str:
    if name.endswith("_s") and isinstance(value, int | float):
        return human.span(float(value))
    return str(value) or "none"


@command.command("show", examples="tercio health")
@_FORM
@pass_session
def show(session: Session, form: str) -> None:
    """Show the health policy in force."""
    _show(session, form)


@policy.command("show", examples="tercio health policy show -o json")
@_FORM
@pass_session
def show_policy(session: Session, form: str) -> None:
    """Show the health policy in force."""
    _show(session, form)


@policy.command(
    "plan",
    examples="""
    tercio health policy plan                 # what the policy in force would do now
    tercio health policy plan mode=act drain_budget_min=2
    """,
)
@click.argument("settings", metavar="[NAME=VALUE...]", nargs=-1)
@_FORM
@pass_session
def plan_policy(session: Session, settings: tuple[str, ...], form: str) -> None:
    """Show what changed settings would do now to the nodes as they are. Changes nothing."""
    sent = msgspec.json.encode({"settings": parse_settings(settings)})
    body = session.post("/v1/health-policy/plan", sent)
    if form == "json":
        write_body(body)
        return
    view = msgspec.json.decode(body, type=HealthPlanView)
    if not view.rows:
        write("nothing: no node has an open fault that asks for anything")
        return
    print_table(session, _PLAN_COLUMNS, view.rows)


_PLAN_COLUMNS: tuple[Column[HealthDecision], ...] = (
    Column("NODE", "node", lambda row: row.node),
    Column("WOULD", "order", lambda row: row.order.replace("_", " ")),
    Column("FOR", "action", lambda row: row.action),
    Column("HELD BY", "held_by", lambda row: row.held_by or human.NOTHING),
    Column("WHY", "reason", lambda row: row.reason, is_flexible=True),
)


@policy.command(
    "set",
    examples="""
    tercio health policy set mode=act
    tercio health policy set drain_budget_ratio=0.05 webhook=https://pager.example.org/hook
    """,
)
@click.argument("settings", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option("--if-version", type=click.IntRange(0), metavar="N", help="Refuse a stale edit.")
@pass_session
def set_policy(session: Session, settings: tuple[str, ...], if_version: int | None) -> None:
    """Change settings of the health policy; those not named stay."""
    body = {"settings": parse_settings(settings), "if_version": if_version}
    session.send("PUT", "/v1/health-policy", msgspec.json.encode(body))
    _show(session, "table")


@command.command("reset-breaker", examples="tercio health reset-breaker --reason 'cooling mended'")
@click.option("--reason", default="", metavar="TEXT", help="Shown in the journal.")
@pass_session
def reset_breaker(session: Session, reason: str) -> None:
    """Let automation act again, after you have looked at what stopped it."""
    body = msgspec.json.encode({"reason": reason})
    session.post("/v1/health-policy/reset-breaker", body)
    session.note("automation may act again")


@command.command(
    "rma",
    examples="""
    tercio health rma                           # devices with faults, those to replace first
    tercio health rma --since 90d -o csv > rma.csv
    """,
)
@click.option("--since", default="90d", metavar="WHEN", help="90d (default), or RFC 3339.")
@output_options
@pass_session
def rma(session: Session, since: str, output: Output) -> None:
    """Show the faults of devices by serial number, for the maker that takes them back."""
    body = session.fetch("/v1/rma", since=parse_since_s(session, since))
    show_list(session, output, health.rma(session.now_s()), [body])


@command.command("power", examples="tercio health power")
@output_options
@pass_session
def power(session: Session, output: Output) -> None:
    """Show the power budgets: what the devices below them may draw, and do draw."""
    body = session.fetch("/v1/power")
    show_list(session, output, health.budgets(), [body])
    mode = msgspec.json.decode(body, type=PowerReport).mode
    if output.is_table and mode != "act":
        session.note(_POWER_MODES[mode])


_POWER_MODES = {
    "off": "power limits are left alone: budgets hold what may start, no more",
    "shadow": "DUE is what would be changed; to change it: tercio health policy set power=act",
}


@command.group("prices", cls=Noun, default="show")
def prices() -> None:
    """Show and send what power costs. Alone it shows what is known, and until when."""


@prices.command("show", examples="tercio health prices")
@_FORM
@pass_session
def show_prices(session: Session, form: str) -> None:
    """Show the prices of power from now on, until when they are known, and where from."""
    health.show_prices(session, session.fetch("/v1/prices"), form)


@prices.command(
    "push",
    examples="""
    tercio health prices push tomorrow.csv
    day-ahead-prices | tercio health prices push -
    """,
)
@click.argument("file", metavar="FILE|-", type=click.Path())
@_FORM
@pass_session
def push_prices(session: Session, file: str, form: str) -> None:
    """Send prices to a server that reads none itself (`health.prices`).

    A CSV with the columns hour and usd_per_kwh, gco2_per_kwh or both. It replaces what is known
    from its first hour on.
    """
    head = "a CSV with the columns hour and usd_per_kwh, gco2_per_kwh or both"
    text = read_text_file(file, hint=f"write {head}", what=head)
    body = {"file": text, "source": "stdin" if file == "-" else file}
    health.show_prices(session, session.send("PUT", "/v1/prices", msgspec.json.encode(body)), form)


@prices.command("forget", examples="tercio health prices forget")
@pass_session
def forget_prices(session: Session) -> None:
    """Forget all prices that were sent: flexible jobs give way to nobody then."""
    session.send("PUT", "/v1/prices", msgspec.json.encode({"file": "hour,usd_per_kwh\n"}))
    session.note("no price of power is known any more")


@command.command("dashboard", examples="tercio health dashboard > tercio-gpus.json")
def dashboard() -> None:
    """Print a Grafana dashboard (JSON) for the metrics of server and agents. Needs no server."""
    write(_packaged("tercio-gpus.json"))


@command.command("alerts", examples="tercio health alerts > /etc/prometheus/tercio-alerts.yaml")
def alerts() -> None:
    """Print alert rules (YAML) for Prometheus. Needs no server."""
    write(_packaged("tercio-alerts.yaml"))


def _packaged(name: str) -> str:
    from tercio.assets import load_table

    return load_table(f"collect/{name}").decode().rstrip("\n")


def parse_settings(words: tuple[str, ...]) -> dict[str, str | int | float]:
    """Return `NAME=VALUE` words as settings: numbers as such, spans such as `30m` in seconds.

    Raises:
        UserError: a word without `=`.
    """
    found: dict[str, str | int | float] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"'{word}' is no setting", hint="write NAME=VALUE, such as mode=act")
        found[name] = _parsed(name, value)
    return found


def _parsed(name: str, value: str) -> str | int | float:
    if name.endswith("_s"):
        from tercio.model.units import parse_duration_s

        return parse_duration_s(value, field=name)
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value
