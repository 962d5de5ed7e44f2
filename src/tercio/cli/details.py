"""What `show` and `explain` print for people: one object in full, and what to do next."""

from __future__ import annotations

from typing import Final

from tercio.cli import human, tables
from tercio.cli.output import Column, print_facts, print_table, state_column, state_text, write
from tercio.cli.session import Session
from tercio.model.reasons import Change, Decision, Reason
from tercio.model.units import format_memory, parse_instant_s
from tercio.model.views import DeviceView, JobView, NodeView, QueueView, StoryLine, TaskView

_EVENTS_SHOWN: Final = 6

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
            ("started", _instant(view.started_s, now_s)),
            ("ended", _instant(view.ended_s, now_s)),
            ("ran", tables.job_run_time(view, now_s)),
            ("limit", limit),
            ("exit code", "" if view.exit_code is None else str(view.exit_code)),
            ("labels", ", ".join(f"{k}={v}" for k, v in view.labels.items())),
            ("command", view.spec.run.strip() if view.spec is not None else ""),
        ),
        indent="  ",
    )
    if view.tasks:
        write("")
        print_table(session, _task_columns(now_s), view.tasks, indent="  ")
    story(session, session.client.story(view.id).rows[-_EVENTS_SHOWN:])
    session.note(session.paint(f"\nnext: {_next_commands(view)}", "dim"))


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
        print_table(session, _DEVICE_COLUMNS, view.devices, indent="  ")
    story(session, session.client.node_story(view.name).rows[-_EVENTS_SHOWN:])


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
        Column("WHAT", "text", lambda line: line.text, is_flexible=True),
    )


def decision(session: Session, view: Decision, *, evicts: tuple[str, ...] = ()) -> None:
    """Print why a job waits or was placed: blocker, numbers, holders, the change that helps."""
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
        Column("DEVICES", "devices", lambda t: ",".join(map(str, t.devices)) or human.NOTHING),
        Column("STARTED", "started_s", lambda t: human.ago(t.started_s, now_s), is_right=True),
        Column("EXIT", "exit_code", _task_exit, is_right=True),
        Column("MESSAGE", "message", lambda task: task.message, is_flexible=True),
    )


def _task_exit(task: TaskView) -> str:
    if task.signal:
        return f"signal {task.signal}"
    return human.NOTHING if task.exit_code is None else str(task.exit_code)


_DEVICE_COLUMNS: Final[tuple[Column[DeviceView], ...]] = (
    Column("DEVICE", "index", lambda device: str(device.index), is_right=True),
    Column("TYPE", "type", lambda device: device.type),
    Column("MEMORY", "memory_bytes", lambda d: format_memory(d.memory_bytes), is_right=True),
    Column("HEALTHY", "healthy", lambda device: "yes" if device.healthy else "no"),
    Column("USED", "used", lambda device: f"{round(device.used * 100)}%", is_right=True),
    Column("JOBS", "jobs", lambda device: ", ".join(device.jobs) or human.NOTHING),
)
