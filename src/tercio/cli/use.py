"""What is printed of use: the rows of the report, and the waterfall of one job."""

from __future__ import annotations

from typing import Final

from tercio.cli import health, human
from tercio.cli.output import Column, Listing, print_facts, print_table, write
from tercio.cli.session import Session
from tercio.model.report_views import CLASSES, JobUse, RankUse, UseReport, UseRow
from tercio.model.units import format_memory

_MS_PER_HOUR: Final = 3_600_000


def hours(ms: int | None) -> str:
    """Print device time in device-hours, or minutes below one; unknown is not zero."""
    if ms is None:
        return "unknown"
    return f"{ms / _MS_PER_HOUR:.2f}h" if ms >= _MS_PER_HOUR or not ms else f"{ms / 60_000:.1f}m"


def _money(usd: float | None) -> str:
    return human.NOTHING if usd is None else f"${usd:,.2f}"


def _kwh(row: UseRow) -> str:
    return human.NOTHING if row.energy_kwh is None else f"{row.energy_kwh:.3f}"


def _goodput(row: UseRow) -> str:
    return health.percent(row.goodput_ratio)


def _carbon(row: UseRow) -> str:
    return human.NOTHING if row.carbon_kg is None else f"{row.carbon_kg:.3f}"


def _class_column(name: str) -> Column[UseRow]:
    title = name.removesuffix("_ms").upper()
    return Column(title, name, lambda row: hours(getattr(row, name)), is_right=True, is_wide=True)


def rows(by: str) -> Listing[UseRow]:
    """Return the listing of the usage report."""
    columns: tuple[Column[UseRow], ...] = (
        Column(by.upper(), "key", lambda row: row.key),
        Column("JOBS", "jobs", lambda row: str(row.jobs), is_right=True),
        Column("ALLOCATED", "allocated_ms", lambda row: hours(row.allocated_ms), is_right=True),
        Column("USEFUL", "useful_ms", lambda row: hours(row.useful_ms), is_right=True),
        Column("WASTED", "wasted_ms", lambda row: hours(row.wasted_ms), is_right=True),
        Column("WAITED", "queued_ms", lambda row: hours(row.queued_ms), is_right=True, spare=1),
        Column(
            "GOODPUT", "goodput_ratio", lambda r: health.percent(r.goodput_ratio), is_right=True
        ),
        *(_class_column(name) for name in CLASSES if name != "useful_ms"),
        Column("KWH", "energy_kwh", _kwh, is_right=True),
        Column("COST", "cost_usd", lambda row: _money(row.cost_usd), is_right=True),
        Column("KG CO2", "carbon_kg", _carbon, is_right=True),
        Column("SOURCE", "energy_source", lambda r: r.energy_source or human.NOTHING, is_wide=True),
    )
    return Listing(columns, UseRow, lambda row: row.key, "no job held a device since then")


def totals(session: Session, report: UseReport) -> None:
    """Say what all rows come to, and what of the capacity was free."""
    if not report.rows:
        return
    total = report.total
    text = f"in all {hours(total.allocated_ms)} allocated, {hours(total.useful_ms)} useful"
    if report.capacity_ms:
        text += f", {hours(report.free_ms)} of {hours(report.capacity_ms)} free"
    session.note(text)
    if total.idle_ms is None:
        session.note("idle time is unknown: no readings cover these jobs")


def job(session: Session, view: JobUse) -> None:
    """Print where the time of a job went, its energy, and its devices now."""
    use = view.use
    if view.ranks and any(rank.utilization_ratio is not None for rank in view.ranks):
        write("")
        print_table(session, _RANK_COLUMNS, view.ranks, indent="  ")
    if not use.allocated_ms:
        return
    write("")
    width = max(len(name) for name in CLASSES)
    for name in CLASSES:
        ms = getattr(use, name)
        if not ms and name != "idle_ms":
            continue
        label = name.removesuffix("_ms").ljust(width - 3)
        ratio = (ms or 0) / use.allocated_ms
        share = "unknown" if ms is None else f"{human.bar(ratio)} {ratio:>4.0%}  {hours(ms)}"
        write(f"  {label}  {share}")
    source = f" ({use.energy_source})" if use.energy_source else ""
    print_facts(
        session,
        (
            ("allocated", f"{hours(use.allocated_ms)} of devices, {hours(use.queued_ms)} waited"),
            ("goodput", health.percent(use.goodput_ratio)),
            ("steps", str(view.step_count) if view.step_count else ""),
            ("slow", _slow(view)),
            ("energy", f"{_kwh(use)} kWh{source}" if use.energy_kwh is not None else ""),
            ("cost", _money(use.cost_usd) if use.cost_usd is not None else ""),
            ("carbon", f"{_carbon(use)} kg CO2" if use.carbon_kg is not None else ""),
        ),
        indent="  ",
    )


def _slow(view: JobUse) -> str:
    """Say which tasks hold the others up now, and what that cost so far."""
    now = [f"task {s.task} takes {s.ratio:.2f}x its peers" for s in view.slow if s.end_s is None]
    lost = f"{hours(view.use.slow_ms)} of useful lost to slow tasks" if view.use.slow_ms else ""
    return "; ".join([*now, *([lost] if lost else [])])


def _memory(rank: RankUse) -> str:
    used = rank.memory_used_bytes
    return human.NOTHING if used is None else format_memory(used - used % 2**20)


def _watts(rank: RankUse) -> str:
    return human.NOTHING if rank.power_w is None else f"{round(rank.power_w)}W"


def _celsius(rank: RankUse) -> str:
    return human.NOTHING if rank.temperature_c is None else f"{rank.temperature_c:g}C"


_RANK_COLUMNS: Final[tuple[Column[RankUse], ...]] = (
    Column("RANK", "task", lambda rank: str(rank.task), is_right=True),
    Column("NODE", "node", lambda rank: rank.node),
    Column("GPU", "device", lambda rank: str(rank.device), is_right=True),
    Column("UTIL", "util", lambda rank: health.percent(rank.utilization_ratio), is_right=True),
    Column("MEMORY", "memory_used_bytes", _memory, is_right=True),
    Column("POWER", "power_w", _watts, is_right=True),
    Column("TEMP", "temperature_c", _celsius, is_right=True),
    Column("HELD BY", "throttle_mask", lambda rank: health.throttle_text(rank.throttle_mask)),
)
