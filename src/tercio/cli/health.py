"""What `node show` and `top` print of health and of live devices."""

from __future__ import annotations

from typing import Final

import msgspec

import tercio
from tercio.cli import human
from tercio.cli.output import Column, Listing, print_facts, print_table, write, write_body
from tercio.cli.session import Session
from tercio.model.health import FaultFact, MoveFact, RepairFact
from tercio.model.health_views import NodeHealthView, PowerRow, PriceHour, PricesView, RmaRow
from tercio.model.power import NodeCaps
from tercio.model.readings import DeviceTelemetry
from tercio.model.units import format_memory

_FAULTS_SHOWN: Final = 8
_MOVES_SHOWN: Final = 6
_STYLES: Final = {
    "ok": "green", "probation": "yellow", "suspect": "yellow", "quarantined": "red",
    "repairing": "red", "retired": "dim",
}  # fmt: skip
# NVML's clock event reasons: the bits that are faults, then those that explain a low clock.
_THROTTLES: Final = (
    (0x40, "hw thermal"), (0x80, "power brake"), (0x8, "hw slowdown"), (0x20, "sw thermal"),
    (0x4, "power cap"),
)  # fmt: skip
_HW_BITS: Final = 0x8 | 0x40 | 0x80


def style_of(state: str) -> str:
    """Return the colour of a state of health."""
    return _STYLES.get(state, "")


def node(session: Session, view: NodeHealthView) -> None:
    """Print the health of a node: state, live devices, faults by serial, what was done."""
    if view.agent and view.agent != tercio.__version__:
        session.note(f"the agent of {view.node} is version {view.agent}, not {tercio.__version__}")
    if view.devices:
        write("")
        print_table(session, _LIVE_COLUMNS, sorted(view.devices.items()), indent="  ")
    limits = _kept(view.caps)
    is_plain = view.state == "ok" and not view.faults and not view.moves
    if is_plain and not view.notes and not limits:
        return
    now_s = session.now_s()
    since = f" since {human.local_time(view.since_s)}" if view.since_s else ""
    write("")
    print_facts(
        session,
        (
            ("health", session.paint(view.state, style_of(view.state)) + since),
            ("because", view.reason),
            ("now", view.said if view.state != "ok" else ""),
            ("in its place", view.replaced_by),
            ("power limits", limits),
            ("not read", "; ".join(f"{k}: {v}" for k, v in sorted(view.notes.items()))),
        ),
        indent="  ",
    )
    if view.faults:
        write("")
        columns = _fault_columns(now_s)
        print_table(session, columns, view.faults[-_FAULTS_SHOWN:], indent="  ")
    if view.repairs:
        write("")
        print_table(session, _repair_columns(now_s), view.repairs, indent="  ")
    if view.moves:
        write("")
        print_table(session, _move_columns(now_s), view.moves[-_MOVES_SHOWN:], indent="  ")


def _fault_columns(now_s: float) -> tuple[Column[FaultFact], ...]:
    return (
        Column("FAULT", "code", lambda f: f.title.partition(" (")[0]),
        Column("AGO", "at_s", lambda f: human.ago(f.at_s, now_s), is_right=True),
        Column("SEVERITY", "severity", lambda f: f.severity),
        Column("SERIAL", "serial", lambda f: f.serial or human.NOTHING),
        Column("JOB", "job", lambda f: f.job or human.NOTHING),
        Column("DO", "action", lambda f: "over" if f.cleared_at_s is not None else f.action),
        Column("MEANING", "meaning", lambda f: f.meaning, is_flexible=True),
    )


def _repair_columns(now_s: float) -> tuple[Column[RepairFact], ...]:
    ends = {None: "under way", True: "worked", False: "failed"}
    return (
        Column("REPAIR", "action", lambda r: r.action),
        Column("AGO", "at_s", lambda r: human.ago(r.at_s, now_s), is_right=True),
        Column("FOR", "cause", lambda r: " ".join(part for part in r.cause if part)),
        Column("END", "succeeded", lambda r: ends[r.succeeded]),
    )


def _move_columns(now_s: float) -> tuple[Column[MoveFact], ...]:
    return (
        Column("MOVED TO", "finish", lambda m: m.finish),
        Column("AGO", "at_s", lambda m: human.ago(m.at_s, now_s), is_right=True),
        Column("BY", "actor", lambda m: m.actor.removeprefix("user:")),
        Column("WHY", "reason", lambda m: m.reason, is_flexible=True),
    )


_ADVICE_STYLES: Final = {"replace": "red", "inspect": "yellow"}


def rma(now_s: float) -> Listing[RmaRow]:
    """Return the listing of devices with faults."""
    columns: tuple[Column[RmaRow], ...] = (
        Column("SERIAL", "serial", lambda row: row.serial),
        Column("TYPE", "type", lambda row: row.type or human.NOTHING, spare=2),
        Column("NODE", "node", lambda row: row.node),
        Column(
            "GPU", "device", lambda r: human.NOTHING if r.device is None else str(r.device),
            is_right=True,
        ),
        Column("FAULTS", "faults", lambda row: str(row.faults), is_right=True),
        Column("LAST", "last_s", lambda row: human.ago(row.last_s, now_s), is_right=True),
        Column("CODES", "codes", lambda row: ", ".join(row.codes)),
        Column("REPAIRS", "repairs", lambda r: ", ".join(r.repairs) or human.NOTHING, spare=1),
        Column("DO", "advice", lambda row: row.advice, lambda r: _ADVICE_STYLES.get(r.advice, "")),
        Column("WHY", "why", lambda row: row.why, is_flexible=True),
        Column("FIRST", "first_s", lambda r: human.ago(r.first_s, now_s), is_wide=True),
        Column("EVIDENCE", "evidence", lambda row: row.evidence, is_wide=True),
    )  # fmt: skip
    return Listing(columns, RmaRow, lambda row: row.serial, "no device had a fault since then")


def budgets() -> Listing[PowerRow]:
    """Return the listing of power budgets."""
    columns: tuple[Column[PowerRow], ...] = (
        Column("DOMAIN", "domain", lambda row: row.domain),
        Column("MAY DRAW", "ceiling_w", _budget_bar, _budget_style),
        Column("BUDGET", "budget_w", lambda row: f"{row.budget_w}W", is_right=True),
        Column("DRAWS", "drawn_w", lambda r: _watts(r.drawn_w), is_right=True),
        Column("IN USE", "in_use", lambda row: f"{row.in_use}/{row.devices}", is_right=True),
        Column("LIMITS", "limit_least_w", _limits, is_right=True),
        Column("FOR WAITING", "demand_w", lambda r: _watts(r.demand_w or None), is_right=True),
        Column("DUE", "due", lambda row: str(row.due), is_right=True),
        Column("SILENT", "silent", lambda row: str(row.silent), is_right=True),
    )
    return Listing(columns, PowerRow, lambda row: row.domain, "the policy has no power budgets")


def _budget_bar(row: PowerRow) -> str:
    share = row.ceiling_w / row.budget_w if row.budget_w else 1.0
    return f"{human.bar(min(share, 1.0))} {row.ceiling_w}W"


def _budget_style(row: PowerRow) -> str:
    return "red" if row.ceiling_w > row.budget_w else ""


def _limits(row: PowerRow) -> str:
    least, most = row.limit_least_w, row.limit_most_w
    if least is None or most is None:
        return human.NOTHING
    return f"{least}W" if least == most else f"{least}-{most}W"


def _watts(power_w: float | None) -> str:
    return human.NOTHING if power_w is None else f"{round(power_w)}W"


def _kept(caps: NodeCaps | None) -> str:
    """Say the power limits that are kept on a node: `420W on 8 GPUs, not confirmed yet`."""
    if caps is None or not caps.devices:
        return ""
    limits = sorted({cap.limit_w for cap in caps.devices})
    some = f"{limits[0]}W" if limits[0] == limits[-1] else f"{limits[0]}-{limits[-1]}W"
    waits = any(cap.ceiling_w > cap.limit_w for cap in caps.devices)
    default = max(cap.default_w for cap in caps.devices)
    text = f"{some} of {default}W on {len(caps.devices)} GPUs"
    return text + (", not confirmed yet" if waits else "")


def throttle_text(mask: int | None) -> str:
    """Say why the clocks are held down; `-` where they are not."""
    if mask is None:
        return human.NOTHING
    return next((text for bit, text in _THROTTLES if mask & bit), human.NOTHING)


def percent(ratio: float | None) -> str:
    """Print a share in percent; `-` where it was not measured."""
    return human.NOTHING if ratio is None else f"{round(ratio * 100)}%"


def watts(device: DeviceTelemetry) -> str:
    """Print draw and limit: `350/700W`."""
    if device.power_w is None:
        return human.NOTHING
    limit = "" if device.power_limit_w is None else f"/{round(device.power_limit_w)}"
    return f"{round(device.power_w)}{limit}W"


def memory(device: DeviceTelemetry) -> str:
    """Print used and total memory."""
    if device.memory_used_bytes is None or device.memory_total_bytes is None:
        return human.NOTHING
    return human.memory_share(device.memory_used_bytes, device.memory_total_bytes)


def heat(device: DeviceTelemetry) -> str:
    """Return the colour of a device by its load, red where something is wrong."""
    if device.fault or (device.throttle_mask or 0) & _HW_BITS:
        return "red"
    busy = device.utilization_ratio or 0.0
    return "green" if busy >= 0.5 else "yellow" if busy >= 0.05 else "dim"


def _celsius(device: DeviceTelemetry) -> str:
    return human.NOTHING if device.temperature_c is None else f"{device.temperature_c:g}C"


def _clock(device: DeviceTelemetry) -> str:
    return human.NOTHING if device.sm_clock_mhz is None else f"{device.sm_clock_mhz}MHz"


def _ecc(device: DeviceTelemetry) -> str:
    count = device.ecc_uncorrected_count
    return human.NOTHING if count is None else str(count)


_LIVE_COLUMNS: Final[tuple[Column[tuple[int, DeviceTelemetry]], ...]] = (
    Column("GPU", "index", lambda row: str(row[0]), is_right=True),
    Column("UTIL", "util", lambda row: percent(row[1].utilization_ratio), is_right=True),
    Column("MEMORY", "memory_used_bytes", lambda row: memory(row[1]), is_right=True),
    Column("POWER", "power_w", lambda row: watts(row[1]), is_right=True),
    Column("TEMP", "temperature_c", lambda row: _celsius(row[1]), is_right=True),
    Column("SM CLOCK", "sm_clock_mhz", lambda row: _clock(row[1]), is_right=True),
    Column("HELD BY", "throttle_mask", lambda row: throttle_text(row[1].throttle_mask)),
    Column("ECC", "ecc_uncorrected_count", lambda row: _ecc(row[1]), is_right=True),
    Column("SERIAL", "serial", lambda row: row[1].serial or human.NOTHING, spare=1),
    Column("NOTE", "fault", lambda row: row[1].fault, is_flexible=True),
)


def device_line(index: int, device: DeviceTelemetry, jobs: tuple[str, ...]) -> str:
    """Return one line of `top` for a device: bars of load and memory, and who holds it."""
    busy, used = device.utilization_ratio, device.memory_used_bytes
    share = None
    if used is not None and device.memory_total_bytes:
        share = used / device.memory_total_bytes
    bars = f"{human.bar(busy or 0.0)} {percent(busy):>4}  {human.bar(share or 0.0)} {_gib(used):>7}"
    why = device.fault or throttle_text(device.throttle_mask)
    holders = ", ".join(jobs) or human.NOTHING
    return (
        f"  {index:>2} {bars}  {watts(device):>9}  {_celsius(device):>4}  {_clock(device):>7}"
        f"  {holders}" + (f"  {why}" if why not in (human.NOTHING, "") else "")
    )


def _gib(used: int | None) -> str:
    return human.NOTHING if used is None else format_memory(used - used % 2**20)


# Prices.

_HOURS_SHOWN: Final = 24
_PRICES: Final[tuple[Column[PriceHour], ...]] = (
    Column("HOUR", "at_s", lambda row: human.local_time(row.at_s)),
    Column("USD/KWH", "price_usd_per_kwh", lambda r: _rate(r.price_usd_per_kwh), is_right=True),
    Column("G CO2/KWH", "carbon_g_per_kwh", lambda r: _rate(r.carbon_g_per_kwh), is_right=True),
)


def _rate(rate: float | None) -> str:
    return human.NOTHING if rate is None else f"{rate:.6g}"


def show_prices(session: Session, body: bytes, form: str) -> None:
    """Print what power costs: what is wrong with it, until when it is known, the next hours."""
    if form == "json":
        write_body(body)
        return
    view = msgspec.json.decode(body, type=PricesView)
    now_s = session.now_s()
    read = "" if view.read_s is None else f", last read {human.ago(view.read_s, now_s)} ago"
    where = f"{view.source}{read}" if view.source else "sent with `tercio health prices push`"
    if not view.source and not view.rows:
        where = "nowhere yet: `tercio health prices push FILE`, or `health.prices` of the server"
    print_facts(
        session,
        (
            ("from", where),
            ("price", _known(view.price_usd_per_kwh, view.price_until_s, "USD/kWh", now_s)),
            ("carbon", _known(view.carbon_g_per_kwh, view.carbon_until_s, "g CO2/kWh", now_s)),
            ("policy", f"flexible: {view.flexible.value}"),
        ),
    )
    if view.rows:
        write("")
        print_table(session, _PRICES, view.rows[:_HOURS_SHOWN])
        if len(view.rows) > _HOURS_SHOWN:
            session.note(f"{len(view.rows) - _HOURS_SHOWN} more hours: -o json has them")
    for warning in filter(None, (view.failure, view.warning)):
        session.warn(warning)


def _known(rate: float | None, until_s: float | None, unit: str, now_s: float) -> str:
    if rate is None or until_s is None:
        return "not known now"
    return f"{_rate(rate)} {unit} now; known until {human.local_time(until_s)}, " + human.until(
        until_s, now_s
    )
