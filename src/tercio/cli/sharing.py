"""What `policy`, `queue tree`, `topo` and `reserve` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tercio.cli import human
from tercio.cli.output import Column, Listing, print_table, write
from tercio.cli.session import Session
from tercio.cli.tables import used_elsewhere
from tercio.model.sharing_views import (
    DomainView,
    EvictionRow,
    GapRow,
    OwnerLimitRow,
    PolicyPlanView,
    PolicyVersion,
    ReservationView,
    ShareRow,
    StartAccuracyRow,
    StartRow,
    TopologyView,
)
from tercio.model.units import format_memory
from tercio.model.views import QueueView

_CHANGES_SHOWN: Final = 4


def versions(session: Session) -> Listing[PolicyVersion]:
    """Return the listing of the versions of the policy."""
    now_s = session.now_s()
    columns: tuple[Column[PolicyVersion], ...] = (
        Column("VERSION", "version", lambda row: str(row.version), is_right=True),
        Column("TIME", "at_s", lambda row: human.local_time(row.at_s)),
        Column("AGO", "at_s", lambda row: human.ago(row.at_s, now_s), is_right=True),
        Column("BY", "by", lambda row: row.by),
        Column("CHANGED", "changed", _changed, is_flexible=True),
    )
    return Listing(
        columns, PolicyVersion, lambda row: str(row.version), "the policy was never edited"
    )


def _changed(row: PolicyVersion) -> str:
    more = len(row.changed) - _CHANGES_SHOWN
    text = ", ".join(row.changed[:_CHANGES_SHOWN])
    return (f"{text} and {more} more" if more > 0 else text) or human.NOTHING


# A plan of a policy.

POLICY_PLANS: Final[Listing[PolicyPlanView]] = Listing(
    (
        Column("VERSION", "version", lambda view: str(view.version)),
        Column("EVICTS", "evicts", lambda view: ",".join(row.job for row in view.evicts)),
        Column("STARTS", "starts", lambda view: ",".join(row.job for row in view.starts)),
    ),
    PolicyPlanView,
    lambda view: str(view.version),
    "no plan",
)

_EVICTED: Final[tuple[Column[EvictionRow], ...]] = (
    Column("STOPS", "job", lambda row: row.job),
    Column("NAME", "name", lambda row: row.name),
    Column("USER", "user", lambda row: row.user),
    Column("QUEUE", "queue", lambda row: row.queue),
    Column("FOR", "for_job", lambda row: row.for_job or human.NOTHING),
)
_STARTED: Final[tuple[Column[StartRow], ...]] = (
    Column("STARTS", "job", lambda row: row.job),
    Column("NAME", "name", lambda row: row.name),
    Column("USER", "user", lambda row: row.user),
    Column("QUEUE", "queue", lambda row: row.queue),
    Column("WHEN", "when", lambda row: row.when),
    Column("NODES", "nodes", lambda row: ",".join(row.nodes) or human.NOTHING),
)


def policy_plan(session: Session, view: PolicyPlanView) -> None:
    """Print what a policy would do: who stops, who starts, shares before and after."""
    write("")
    if view.evicts:
        print_table(session, _EVICTED, view.evicts)
    else:
        write("It would stop no running job.")
    write("")
    if view.starts:
        print_table(session, _STARTED, view.starts)
    else:
        write("It would start no waiting job at once.")
    write("")
    columns: tuple[Column[ShareRow], ...] = (
        Column("QUEUE", "path", lambda row: row.path),
        Column("ENTITLED NOW", "before", lambda row: _share(row.before)),
        Column("THEN", "after", lambda row: _share(row.after)),
    )
    print_table(session, columns, view.queues)


def _share(amounts: Mapping[str, float] | None) -> str:
    return "no such queue" if amounts is None else human.amounts(_rounded(amounts))


def _rounded(amounts: Mapping[str, float]) -> dict[str, float]:
    """To tenths, and without zeros: shares are fractions."""
    return {kind: round(amount, 1) for kind, amount in amounts.items() if round(amount, 1)}


# The queue tree.


def tree_branches(paths: Sequence[str]) -> dict[str, str]:
    """Return each path's name with the lines of a tree before it, as `├─ nlp`."""
    known = dict.fromkeys(paths)
    children: dict[str, list[str]] = {}
    for path in known:
        parent = path.rpartition("/")[0]
        children.setdefault(parent if parent in known else "", []).append(path)
    found: dict[str, str] = {}

    def visit(path: str, before: str, *, is_last: bool, depth: int) -> None:
        line = ("└─ " if is_last else "├─ ") if depth else ""
        found[path] = f"{before}{line}{path.rpartition('/')[2] if depth else path}"
        below = before + (("   " if is_last else "│  ") if depth else "")
        inside = children.get(path, [])
        for child in inside:
            visit(child, below, is_last=child == inside[-1], depth=depth + 1)

    for top in children.get("", []):
        visit(top, "", is_last=False, depth=0)
    return found


def queue_tree(rows: Sequence[QueueView], *, has_elsewhere: bool = False) -> Listing[QueueView]:
    """Return the listing of the queue tree; of one site, with what queues use elsewhere."""
    names = tree_branches([row.path for row in rows])
    columns: tuple[Column[QueueView], ...] = (
        Column("QUEUE", "path", lambda row: names.get(row.path, row.path)),
        Column(
            "GUARANTEE",
            "guarantee",
            lambda row: human.guarantee(row.guarantee, row.guarantee_shape),
        ),
        Column("ENTITLED", "entitled", lambda row: human.amounts(_rounded(row.entitled))),
        Column("USED", "used", lambda row: human.amounts(row.used)),
        *used_elsewhere(is_shown=has_elsewhere),
        Column("BORROWED", "borrowed", lambda row: human.amounts(row.borrowed)),
        Column("LENT", "lent", lambda row: human.amounts(_rounded(row.lent))),
        Column("RUNNING", "running", lambda row: str(row.running), is_right=True, spare=1),
        Column("WAITING", "waiting", lambda row: str(row.waiting), is_right=True),
        Column("WANTED", "wanted", lambda row: human.amounts(row.wanted)),
        Column("PAST USE", "decayed_use", _past_use, is_right=True),
        Column("WEIGHT", "weight", lambda row: str(row.weight), is_wide=True, is_right=True),
        Column("LIMIT", "limit", lambda row: human.amounts(row.limit), is_wide=True),
    )
    return Listing(columns, QueueView, lambda row: row.path, "no queues")


def _past_use(row: QueueView) -> str:
    return human.past_use(row.decayed_use)


# Limits of users and tenants.


def owner_limits(session: Session) -> Listing[OwnerLimitRow]:
    """Return the listing of limits of users and tenants."""
    now_s = session.now_s()
    columns: tuple[Column[OwnerLimitRow], ...] = (
        Column("WHOSE", "name", lambda row: f"{row.kind} {row.name}"),
        Column("QUEUE", "queue", lambda row: row.queue or "all"),
        Column("LIMIT ON", "resource", _limited),
        Column("USED", "used", lambda row: _amount(row, row.used), is_right=True),
        Column("LIMIT", "limit", lambda row: _amount(row, row.limit), is_right=True),
        Column(
            "LEFT", "limit", lambda row: _amount(row, max(0.0, row.limit - row.used)), is_right=True
        ),
        Column("COMES FREE", "frees_s", lambda row: _frees(row, now_s)),
    )
    empty = "no user or tenant has a limit"
    return Listing(columns, OwnerLimitRow, lambda row: f"{row.kind} {row.name}", empty)


def _limited(row: OwnerLimitRow) -> str:
    if row.days is None:
        return row.resource.replace("_", " ")
    return f"device-hours in {human.quantity(row.days, 'day')}"


def _amount(row: OwnerLimitRow, amount: float) -> str:
    if row.resource == "memory":
        return format_memory(int(amount))
    return human.number(round(amount, 1))


def _frees(row: OwnerLimitRow, now_s: float) -> str:
    if row.frees_s is None:
        return human.NOTHING
    return f"{_amount(row, row.frees)} {human.until(row.frees_s, now_s)}"


# Start estimates.


def _part(ratio: float) -> str:
    return f"{ratio:.0%}"


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "+") + human.span(abs(seconds))


START_ACCURACY: Final[Listing[StartAccuracyRow]] = Listing(
    (
        Column("JOBS OF", "key", lambda row: row.key),
        Column("JOBS", "jobs", lambda row: str(row.jobs), is_right=True),
        Column("WAIT", "wait_s", lambda row: human.span(row.wait_s), is_right=True),
        Column("ERROR", "error_s", lambda row: human.span(row.error_s), is_right=True),
        Column("BIAS", "bias_s", lambda row: _signed(row.bias_s), is_right=True),
        Column("INSIDE", "inside_ratio", lambda row: _part(row.inside_ratio), is_right=True),
        Column("EARLIER", "early_ratio", lambda row: _part(row.early_ratio), is_right=True),
        Column("LATER", "late_ratio", lambda row: _part(row.late_ratio), is_right=True),
    ),
    StartAccuracyRow,
    lambda row: row.key,
    "no job has started yet that was told when it would",
)


# The topology.


def topology(session: Session, view: TopologyView) -> None:
    """Print free capacity by domain, then the largest gang of each level."""
    if not view.rows:
        session.note("no nodes have reported yet")
        return
    depths = {level: at for at, level in enumerate(view.levels)}
    columns: tuple[Column[DomainView], ...] = (
        Column("LEVEL", "level", lambda row: row.level),
        Column("DOMAIN", "name", lambda row: "  " * depths.get(row.level, 0) + row.name),
        Column("NODES", "nodes", _up, is_right=True),
        Column("FREE", "free", lambda row: human.shares(row.free, row.total)),
        Column("LARGEST GANG", "fits", lambda row: _gangs(row, view.per_task)),
    )
    if any(row.slices for row in view.rows):
        columns = (*columns, Column("SLICES LEFT", "slices", _slices, is_flexible=True))
    print_table(session, columns, view.rows)
    write("")
    for gang in view.largest:
        size = f"{gang.type}:{view.per_task[gang.type]}"
        if gang.tasks:
            tasks = human.quantity(gang.tasks, "task")
            write(f"in one {gang.level}: {tasks} of {size}, in {gang.domain}")
        else:
            write(f"in one {gang.level}: no task of {size} fits now")


def _up(row: DomainView) -> str:
    return str(row.nodes) if row.up == row.nodes else f"{row.up}/{row.nodes}"


def _slices(row: DomainView) -> str:
    return ", ".join(f"{name}:{count}" for name, count in row.slices.items()) or human.NOTHING


def _gangs(row: DomainView, per_task: Mapping[str, int]) -> str:
    texts = [f"{tasks} x {kind}:{per_task[kind]}" for kind, tasks in row.fits.items() if tasks]
    return ", ".join(texts) or human.NOTHING


DOMAINS: Final[Listing[DomainView]] = Listing(
    (
        Column("LEVEL", "level", lambda row: row.level),
        Column("DOMAIN", "name", lambda row: row.name),
        Column("NODES", "nodes", lambda row: str(row.nodes)),
        Column("UP", "up", lambda row: str(row.up)),
        Column("FREE", "free", lambda row: human.shares(row.free, row.total)),
        Column("FITS", "fits", lambda row: ",".join(f"{k}:{n}" for k, n in row.fits.items())),
    ),
    DomainView,
    lambda row: row.name,
    "no nodes have reported yet",
)


# Reservations.


def reservations(session: Session) -> Listing[ReservationView]:
    """Return the listing of reservations."""
    now_s = session.now_s()
    columns: tuple[Column[ReservationView], ...] = (
        Column("NAME", "name", lambda row: row.name),
        Column("FOR", "queue", _holder),
        Column("KEEPS", "devices", _kept),
        Column("WINDOW", "window", lambda row: _window(row, now_s)),
        Column("LENGTH", "duration_s", lambda row: human.span(row.duration_s), is_right=True),
        Column("EVERY", "every_s", _every, is_right=True),
        Column(
            "STARTS",
            "from_s",
            lambda row: human.local_time(row.window[0]) if row.window else human.NOTHING,
            is_wide=True,
        ),
    )
    return Listing(columns, ReservationView, lambda row: row.name, "no reservations")


def _holder(row: ReservationView) -> str:
    if row.nodes:
        return "maintenance"
    return f"queue {row.queue}" if row.queue is not None else f"user {row.user}"


def _kept(row: ReservationView) -> str:
    kind = row.type or "any"
    if row.nodes:
        more = f" and {len(row.nodes) - 6} more" if len(row.nodes) > 6 else ""
        return ", ".join(row.nodes[:6]) + more
    if row.devices:
        return f"{kind}:{row.devices}"
    return ", ".join(f"{human.quantity(n, level)} of {kind}" for level, n in row.shape.items())


def _window(row: ReservationView, now_s: float) -> str:
    if row.window is None:
        return "over"
    start_s, end_s = row.window
    if row.is_open:
        return f"open, ends {human.until(end_s, now_s)}"
    return f"opens {human.until(start_s, now_s)}"


def _every(row: ReservationView) -> str:
    return human.NOTHING if row.every_s is None else human.span(row.every_s)


# Gaps.


def gaps(session: Session) -> Listing[GapRow]:
    """Return the listing of gaps before promises and reservations."""
    now_s = session.now_s()
    columns: tuple[Column[GapRow], ...] = (
        Column("FREE", "devices", _free),
        Column("FROM", "from_s", lambda row: human.until(row.from_s, now_s)),
        Column("UNTIL", "until_s", lambda row: human.until(row.until_s, now_s)),
        Column("DEVICE-HOURS", "device_hours", _device_hours, is_right=True),
        Column("BEFORE", "reservation", _before),
        Column("WHAT FITS", "limit_s", gap_fits),
        Column("NODES", "nodes", lambda row: ",".join(row.nodes), is_wide=True),
        Column("SITE", "site", lambda row: row.site, is_wide=True),
    )
    empty = "no gaps: nothing is promised or reserved that free devices wait for"
    return Listing(columns, GapRow, gap_fits, empty)


def _free(row: GapRow) -> str:
    return f"{row.type}:{row.devices} on {human.quantity(len(row.nodes), 'node')}"


def _device_hours(row: GapRow) -> str:
    return human.number(round(row.device_hours, 1))


def _before(row: GapRow) -> str:
    return f"reservation {row.reservation}" if row.job is None else row.job


def gap_fits(row: GapRow) -> str:
    """Print what to ask for to be let into a gap, as options of `tercio submit`."""
    tasks = f"--nodes {row.tasks} " if row.tasks > 1 else ""
    return f"{tasks}--gpus {row.type}:{row.per_task} --time {human.span(row.limit_s)}"
