"""What `show` and `explain` print for people: one object in full, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from tercio.cli import health, human, tables, use
from tercio.cli.output import Column, print_facts, print_table, state_column, state_text, write
from tercio.cli.session import Session
from tercio.errors import UserError
from tercio.model.reasons import Change, Decision, Reason
from tercio.model.sizing import Sized, SizedChoice
from tercio.model.units import format_memory, parse_instant_s
from tercio.model.views import (
    DeviceView,
    JobView,
    NodeView,
    Prediction,
    QueueView,
    StoryLine,
    TaskView,
)

_EVENTS_SHOWN: Final = 6
Body = TypeVar("Body")

_CHANGES: Final[dict[str, str]] = {
    "tasks": "ask for {to}",
    "devices": "ask for {to} per task",
    "type": "ask for devices of type {to}",
    "topology": "relax the topology to {to}",
    "queue": "submit it to queue {to}",
    "after": "wait for {to} to end",
    "limit": "raise the limit to {to}",
    "concurrency": "let {to} elements of the array run at once",
    "repair": "bring node {to} back",
    "preemptible": "let it be evicted, with preemptible: {to}",
    "time_limit_s": "set a time limit of {to}",
    "return": "'tercio node return {to}'",
    "uncordon": "'tercio node uncordon {to}'",
    "cpus": "ask for {to} cores per task",
    "memory": "ask for {to} of memory per task",
    "release": "'tercio release {to}'",
}


def job(session: Session, view: JobView) -> None:
    """Print one job: facts, why it waits, its tasks, its last events, what to do next."""
    now_s = session.now_s()
    write(f"{session.paint(view.id, 'bold')} {view.name}  {state_text(session, view.state)}")
    limit = human.span(view.limit_s) if view.limit_s is not None else ""
    time = view.spec.time if view.spec is not None else None
    print_facts(
        session,
        (
            ("why", tables.job_why(view)),
            ("starts", tables.job_start(view, now_s)),
            ("queue", f"{view.queue}, priority {view.priority}"),
            ("user", view.user if view.tenant == "default" else f"{view.user} of {view.tenant}"),
            ("asks for", f"{human.quantity(view.task_count, 'task')}, {_devices(view)}"),
            ("nodes", ", ".join(view.nodes)),
            ("array", tables.job_progress(view)),
            ("attempt", str(view.attempt) if view.attempt else ""),
            ("submitted", _instant(view.submitted_s, now_s)),
            ("sized", _prediction(view.predicted)),
            ("started", _instant(view.started_s, now_s)),
            ("ended", _instant(view.ended_s, now_s)),
            ("ran", tables.job_run_time(view, now_s)),
            ("limit", limit),
            ("expected", human.span(time.expected_s) if time and time.expected_s else ""),
            ("flexible", f"for {human.span(time.flexible_s)}" if time and time.flexible_s else ""),
            ("should run", _run_time(view.predicted_run_s)),
            ("exit code", "" if view.exit_code is None else str(view.exit_code)),
            ("labels", ", ".join(f"{k}={v}" for k, v in view.labels.items())),
            ("fabric", "\n".join(view.fabric)),
            ("command", view.spec.run.strip() if view.spec is not None else ""),
        ),
        indent="  ",
    )
    if view.tasks:
        write("")
        print_table(session, _task_columns(now_s), view.tasks, indent="  ")
    if view.attempt and (told := _optional(lambda: session.client.job_use(view.id))) is not None:
        use.job(session, told)
    story(session, session.client.story(view.id).rows[-_EVENTS_SHOWN:])
    session.note(session.paint(f"\nnext: {_next_commands(view)}", "dim"))


def _prediction(found: Prediction | None) -> str:
    """Say what sizing chose and foretold, and how the run compared."""
    if found is None:
        return ""
    tasks = f" x {found.tasks} tasks" if found.tasks > 1 else ""
    words = [f"{found.devices}{tasks}", found.why]
    if found.layout is not None:
        words.append(found.layout.words())
    if found.expected_s is not None:
        low, high = _took(found.low_s), _took(found.high_s)
        words.append(f"predicted {human.span(found.expected_s)} (80 %: {low} to {high})")
    if found.actual_s is not None and found.ratio is not None:
        words.append(f"ran {human.span(found.actual_s)}, {found.ratio:.2f} of the prediction")
    return "; ".join(words)


def sized(session: Session, found: Sized) -> None:
    """Print the alternatives that sizing found for `devices: auto`."""
    write("")
    print_table(session, _SIZED_COLUMNS, found.choices, indent="  ")
    learnt = (
        f"; times are {found.site_ratio:.2f} of the catalogue's, as {found.site_jobs} finished "
        f"{'job' if found.site_jobs == 1 else 'jobs'} of this cluster say"
        if found.site_jobs
        else ""
    )
    session.note(
        session.paint(
            f"  sized from catalogue {found.catalogue}, calibration {found.calibration}{learnt}",
            "dim",
        )
    )


_SIZED_COLUMNS: Final[tuple[Column[SizedChoice], ...]] = (
    Column("DEVICES", "devices", lambda row: row.devices),
    Column("TASKS", "tasks", lambda row: str(row.tasks)),
    Column("TAKES", "expected_s", lambda row: _took(row.expected_s)),
    Column("80 %", "low_s", lambda row: f"{_took(row.low_s)} to {_took(row.high_s)}"),
    Column("USD", "cost_usd", lambda row: "-" if row.cost_usd is None else f"{row.cost_usd:,.0f}"),
    Column("LAYOUT", "layout", lambda row: row.layout.words() if row.layout else ""),
    Column("WHY", "why", lambda row: row.why, is_flexible=True),
)


def _took(seconds: float | None) -> str:
    return "-" if seconds is None else human.span(seconds)


def node(session: Session, view: NodeView) -> None:
    """Print one node: facts, its devices and who holds them, its last events."""
    write(f"{session.paint(view.name, 'bold')}  {state_text(session, view.state)}")
    used_bytes = view.memory_bytes - view.memory_free_bytes
    print_facts(
        session,
        (
            ("why", tables.node_why(view)),
            ("site", view.site),
            ("pool", view.pool),
            ("devices", tables.node_use(view)),
            ("cores", f"{human.number(view.cpus - view.cpus_free)}/{human.number(view.cpus)}"),
            ("memory", human.memory_share(used_bytes, view.memory_bytes)),
            ("labels", ", ".join(f"{k}={v}" for k, v in view.labels.items())),
            ("jobs", ", ".join(view.jobs)),
        ),
        indent="  ",
    )
    if view.devices:
        write("")
        is_cut = any(d.mig == "on" or d.slices or d.slices_fault for d in view.devices)
        columns = (*_DEVICE_COLUMNS, _SLICES) if is_cut else _DEVICE_COLUMNS
        print_table(session, columns, view.devices, indent="  ")
    known = _optional(lambda: session.client.node_health(view.name))
    if known is not None:
        health.node(session, known)
    story(session, session.client.node_story(view.name).rows[-_EVENTS_SHOWN:])


def _optional(ask: Callable[[], Body]) -> Body | None:
    """Return an answer, None from an older server that does not know the question."""
    try:
        return ask()
    except UserError as error:
        if error.code != "not_found":
            raise
        return None


def queue(session: Session, view: QueueView) -> None:
    """Print one queue: what it may use, uses and waits for."""
    write(session.paint(view.path, "bold"))
    print_facts(
        session,
        (
            ("jobs", f"{view.running} running, {view.waiting} waiting"),
            ("used", human.amounts(view.used)),
            ("entitled", human.amounts(view.entitled)),
            ("guarantee", human.guarantee(view.guarantee, view.guarantee_shape)),
            ("limit", human.amounts(view.limit)),
            ("weight", str(view.weight)),
            ("order", view.order),
            ("preemptible", "yes, by default" if view.preemptible else "no, by default"),
            ("past use", f"{human.past_use(view.decayed_use)} of devices, decayed"),
        ),
        indent="  ",
    )
    session.note(session.paint(f"\nnext: tercio ps --queue {view.path}", "dim"))


def story(session: Session, rows: tuple[StoryLine, ...]) -> None:
    """Print the last events of an object."""
    if not rows:
        return
    write("")
    print_table(session, story_columns(session.now_s()), rows, indent="  ")


def story_columns(now_s: float) -> tuple[Column[StoryLine], ...]:
    """Return the columns of a story."""
    return (
        Column("SEQ", "seq", lambda line: str(line.seq), is_right=True, is_wide=True),
        Column("TIME", "at_s", lambda line: human.local_time(line.at_s)),
        Column("AGO", "at_s", lambda line: human.ago(line.at_s, now_s), is_right=True),
        Column("WHAT", "text", lambda line: human.told(line.text), is_flexible=True),
    )


def decision(
    session: Session,
    view: Decision,
    *,
    evicts: tuple[str, ...] = (),
    stop: StoryLine | None = None,
) -> None:
    """Print why a job waits or was placed: blocker, numbers, holders, the change that helps.

    `stop` is the line of its story that says why its last attempt was stopped.
    """
    now_s = session.now_s()
    holders = "\n".join(
        f"{holder.job}  {human.devices(holder.devices)}"
        + (f"  ends {human.until(holder.ends_s, now_s)}" if holder.ends_s is not None else "")
        for holder in view.holders
    )
    print_facts(
        session,
        (
            ("why", _why(session, view)),
            (
                "last run",
                ""
                if stop is None
                else f"{human.told(stop.text)}, {human.ago(stop.at_s, now_s)} ago",
            ),
            ("wants", human.devices(view.wanted)),
            ("free now", _free(view)),
            ("nearest", _best(view)),
            ("held by", holders),
            (
                "left out",
                ", ".join(f"{human.quantity(e.nodes, 'node')} by {e.by}" for e in view.excluded),
            ),
            ("placed on", ", ".join(view.nodes)),
            ("evicts", ", ".join(evicts)),
            ("position", "" if view.position is None else f"{view.position} in its pool"),
            ("starts", _start(view, now_s)),
            ("would help", _would_help(view, now_s)),
        ),
        indent="  ",
    )


def _why(session: Session, view: Decision) -> str:
    # `Ready` says nothing beside the message that the job runs, or how it ended.
    if view.reason is Reason.READY and view.message:
        return human.told(view.message)
    return f"{session.paint(str(view.reason), 'bold')}: {human.told(view.message)}"


def _would_help(view: Decision, now_s: float) -> str:
    """Say the change, unless the job is expected to start no later without it."""
    if view.change is None:
        return ""
    starts, start = view.change.starts, view.start
    if start is not None and _is_instant(starts) and parse_instant_s(starts) >= start.at_s:
        return ""
    return change(view.change, now_s)


def change(wanted: Change, now_s: float) -> str:
    """Say the smallest change that would start a job, as an instruction."""
    form = _CHANGES.get(wanted.what, f"change {wanted.what} to {{to}}")
    to: str | int | float = wanted.to
    if wanted.what == "memory" and isinstance(to, int):
        to = format_memory(to)
    elif wanted.what in ("tasks", "devices") and isinstance(to, int):
        to = human.quantity(to, wanted.what.removesuffix("s"))
    elif wanted.what == "time_limit_s" and not isinstance(to, str):
        to = human.span(to)
    elif isinstance(to, float):
        to = human.number(to)
    effect = "wait for room" if wanted.starts == "later" else "start"
    when = "then" if wanted.starts == "later" else _when(wanted.starts, now_s)
    return f"{form.format(to=to)}; it would {effect} {when}"


def _when(starts: str, now_s: float) -> str:
    """Print when a change would start the job: a word stays, an instant becomes relative."""
    if not _is_instant(starts):
        return starts
    return human.until(parse_instant_s(starts), now_s)


def _is_instant(starts: str) -> bool:
    return starts[:4].isdigit()


def _devices(view: JobView) -> str:
    text = human.devices(view.devices)
    return "no devices" if text == human.NOTHING else text


def _instant(at_s: float | None, now_s: float) -> str:
    return "" if at_s is None else f"{human.local_time(at_s)} ({human.ago(at_s, now_s)} ago)"


def _free(view: Decision) -> str:
    if not view.wanted:
        return ""
    return "+".join(f"{kind}:{human.number(n)}" for kind, n in view.free.items()) or "none"


def _best(view: Decision) -> str:
    if view.best is None:
        return ""
    place = f"node {view.best.node}" if view.best.node else (view.best.domain or "")
    return f"{place} with {human.amounts(view.best.free)} free"


def _run_time(predicted_s: float | None) -> str:
    return "" if predicted_s is None else f"{human.span(predicted_s)}, by what its like ran"


def _start(view: Decision, now_s: float) -> str:
    start = view.start
    if start is None:
        return ""
    text = f"{human.until(start.at_s, now_s)} ({start.label})"
    if start.high_s - start.low_s > 1:
        low, high = human.until(start.low_s, now_s), human.until(start.high_s, now_s)
        text += f", likely between {low.removeprefix('in ')} and {high.removeprefix('in ')}"
    return text


def _next_commands(view: JobView) -> str:
    verbs = {
        "held": ("release", "cancel"),
        "queued": ("explain", "cancel"),
        "starting": ("logs -f", "cancel"),
        "running": ("logs -f", "exec", "cancel"),
        "suspended": ("resume", "cancel"),
        "stopping": ("logs -f", "story"),
        "failed": ("logs", "story", "requeue"),
    }.get(view.state, ("logs", "story"))
    return " · ".join(
        f"tercio exec {view.id} -- bash" if verb == "exec" else f"tercio {verb} {view.id}"
        for verb in verbs
    )


def _task_columns(now_s: float) -> tuple[Column[TaskView], ...]:
    return (
        Column("TASK", "task", lambda task: str(task.task), is_right=True),
        Column("GROUP", "group", lambda task: task.group or human.NOTHING),
        state_column("state", lambda task: task.state),
        Column("NODE", "node", lambda task: task.node),
        Column("DEVICES", "devices", _task_devices),
        Column("STARTED", "started_s", lambda t: human.ago(t.started_s, now_s), is_right=True),
        Column("EXIT", "exit_code", _task_exit, is_right=True),
        Column("MESSAGE", "message", lambda task: task.message, is_flexible=True),
    )


def _task_devices(task: TaskView) -> str:
    return ",".join(task.slices or map(str, task.devices)) or human.NOTHING


def _slices(device: DeviceView) -> str:
    """`1g.10gb:2 idle, 3g.40gb job-00001`: slices by who holds them."""
    counts: dict[tuple[str, str], int] = {}
    for part in device.slices:
        key = (part.profile, part.job or "idle")
        counts[key] = counts.get(key, 0) + 1
    parts = [f"{name}:{count} {who}" for (name, who), count in counts.items()]
    if device.slices_fault:
        parts.append(f"unchangeable: {device.slices_fault}")
    return ", ".join(parts) or ("none" if device.mig == "on" else human.NOTHING)


def _task_exit(task: TaskView) -> str:
    if task.signal:
        return f"signal {task.signal}"
    return human.NOTHING if task.exit_code is None else str(task.exit_code)


def _device_jobs(device: DeviceView) -> str:
    if not device.is_outside:
        return ", ".join(device.jobs) or human.NOTHING
    until = f" until {human.local_time(device.outside_end_s)}" if device.outside_end_s else ""
    return f"outside work{until}"


_DEVICE_COLUMNS: Final[tuple[Column[DeviceView], ...]] = (
    Column("DEVICE", "index", lambda device: str(device.index), is_right=True),
    Column("TYPE", "type", lambda device: device.type),
    Column("MEMORY", "memory_bytes", lambda d: format_memory(d.memory_bytes), is_right=True),
    Column("HEALTHY", "healthy", lambda device: "yes" if device.healthy else "no"),
    Column("USED", "used", lambda device: f"{round(device.used * 100)}%", is_right=True),
    Column("JOBS", "jobs", _device_jobs),
)
_SLICES: Final = Column[DeviceView]("SLICES", "slices", _slices, is_flexible=True)
