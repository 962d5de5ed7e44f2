"""Stories: what happened to one object, told from its journal entries, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from tercio.core.idling import words as idle_words
from tercio.model import events as ev
from tercio.model.health import HEALTH_OWNER
from tercio.model.ids import JobId
from tercio.model.placement import TaskPlacement
from tercio.model.reasons import StartEstimate
from tercio.model.units import format_duration, format_instant
from tercio.model.views import StoryLine


def tell(entries: Sequence[ev.Entry], subject: str) -> list[StoryLine]:
    """Return the story of a subject such as `job-00001` or `node/n1`, oldest first.

    Tasks of one attempt that start, or end alike, one after the other share a line.
    """
    lines: list[StoryLine] = []
    alike: list[ev.TaskEvent] = []
    for entry in entries:
        event = entry.event
        if alike and _is_alike(alike[-1], event) and isinstance(event, ev.TaskEvent):
            alike.append(event)
            lines[-1] = msgspec.structs.replace(lines[-1], text=_together(alike))
            continue
        alike = [event] if isinstance(event, ev.TaskStarted | ev.TaskExited) else []
        line = StoryLine(
            seq=entry.seq,
            at_s=event.at_s,
            kind=type(event).__name__,
            text=sentence(event, subject),
        )
        lines.append(line)
    return lines


def _is_alike(first: ev.TaskEvent, second: ev.AnyEvent) -> bool:
    """Whether two reports say the same of two tasks."""
    if not isinstance(second, ev.TaskEvent) or type(first) is not type(second):
        return False
    same = msgspec.structs.replace(second, task=first.task, at_s=first.at_s)
    if isinstance(same, ev.TaskExited) and isinstance(first, ev.TaskExited):
        same = msgspec.structs.replace(same, marks=first.marks, measured=first.measured)
    match first, same:
        case ev.TaskStarted(), ev.TaskStarted():
            return (first.job_id, first.attempt) == (same.job_id, same.attempt)
        case _:
            return first == same


def _together(events: Sequence[ev.TaskEvent]) -> str:
    first = events[0]
    names = [str(task) for task in sorted(event.task for event in events)[:8]]
    if len(events) > len(names):
        names[-1:] = [f"{names[-1]} and {len(events) - len(names)} more"]
    tasks = "tasks " + ", ".join(names)
    if isinstance(first, ev.TaskExited):
        _, _, how = _exit(first).partition(f"task {first.task} ")
        return f"{tasks} {'were' + how.removeprefix('was') if how.startswith('was') else how}"
    return f"{tasks} of attempt {first.attempt} run"


def sentence(event: ev.AnyEvent, subject: str) -> str:
    """Say one event in words, from the point of view of the subject."""
    match event:
        case ev.JobEvent():
            return _job_sentence(event, subject)
        case ev.SpareActivated(node=node, replaces=replaced, job_id=job):
            return f"spare {node} takes the place of {replaced} for {job}"
        case ev.HealthPolicyChanged(version=version, settings=settings, by=by):
            mode = settings.get("mode", "shadow")
            return f"health policy version {version} ({mode}) set by {by}"
        case ev.HealthBreakerMoved(is_open=is_open, reason=reason, by=by):
            return f"breaker open: {reason}" if is_open else f"breaker reset by {by}"
        case ev.PricesRead(series=series, by=by):
            until = format_instant(series.end_s) if series.hours else "nothing"
            how = f"sent by {by}" if by else "read"
            return f"prices of power {how}: {len(series.hours)} hours, up to {until}"
        case ev.NodeEvent():
            text = _node_sentence(event)
            return text if subject == f"node/{event.node}" else f"node {event.node}: {text}"
        case ev.NodeReported(spec=spec):
            return f"reported by site {spec.site} with {len(spec.devices)} devices"
        case ev.EffectTimedOut(effect_id=effect):
            return f"no answer in time to the order: {_order(effect)}"
        case ev.EffectAnswered(effect_id=effect, is_done=is_done, message=message):
            return _order(effect) + (" done" if is_done else f" refused: {message}")
        case ev.PolicyChanged(version=version, by=by):
            return f"policy version {version} set by {by}"
        case ev.TokenCreated(token=token, by=by):
            return f"token {token.token_id} for {token.principal.user} created by {by}"
        case ev.TokenRevoked(token_id=token_id, by=by):
            return f"token {token_id} revoked by {by}"
        case ev.ReservationAdded(reservation=reservation, by=by):
            if reservation.nodes:
                names = ", ".join(reservation.nodes[:6])
                return f"maintenance window {reservation.name} of {names} added by {by}"
            holder = reservation.queue or reservation.user
            return f"reservation {reservation.name} for {holder} added by {by}"
        case ev.ReservationRemoved(name=name, by=by):
            return f"reservation {name} removed by {by}"
        case ev.ServerStarted(epoch=epoch, version=version):
            return f"server {version} started, run {epoch}"
        case ev.PromisesChanged(promises=promises):
            return f"{len(promises)} promises stand"
        case ev.JobsForgotten(job_ids=job_ids):
            return f"{len(job_ids)} finished jobs forgotten"
        case _:
            assert_never(event)


def _order(effect: str) -> str:
    """Say an order to an engine, such as `signal:job-00001/1/0/SIGSTOP/98`, in words."""
    verb, _, rest = effect.partition(":")
    match verb, rest.split("/"):
        case "launch" | "stop", [_, attempt, task]:
            return f"{verb} of task {task} of attempt {attempt}"
        case "signal", [_, attempt, task, name, _]:
            return f"signal {name} to task {task} of attempt {attempt}"
        case "slices", [_, index, _]:
            return f"slices of device {index}"
        case "notify", [_, _, what, _]:
            return f"call of the address for '{what}'"
        case _:
            return effect


def _where(tasks: tuple[TaskPlacement, ...]) -> str:
    nodes = dict.fromkeys(task.node for task in tasks)
    shown = ", ".join(list(nodes)[:6]) + (f" and {len(nodes) - 6} more" if len(nodes) > 6 else "")
    count = len(tasks)
    return f"{count} task{'s' if count != 1 else ''} on {shown}"


def _job_sentence(event: ev.JobEvent, subject: str) -> str:
    match event:
        case ev.JobSubmitted(user=user, queue=queue, is_held=is_held):
            return f"submitted by {user} to queue {queue}" + (", held" if is_held else "")
        case ev.JobHeld(by=by):
            return f"held by {by}"
        case ev.JobReleased(by=by):
            return f"released by {by}"
        case ev.JobCancelRequested(by=by, reason=reason):
            return f"cancel asked for by {by}" + (f": {reason}" if reason else "")
        case ev.JobRequeueRequested(by=by):
            return f"requeue asked for by {by}"
        case ev.JobSuspendRequested(by=by):
            return f"suspended by {by}"
        case ev.JobResumeRequested(by=by):
            return f"resumed by {by}"
        case ev.JobPlaced(attempt=attempt, tasks=tasks, label=label):
            if subject.startswith("node/"):
                return f"{event.job_id} placed here, attempt {attempt}"
            return f"attempt {attempt} placed ({label}): {_where(tasks)}"
        case ev.TasksAdded(tasks=tasks, is_repair=is_repair):
            return _joined(event.job_id, subject, tasks, is_repair=is_repair)
        case ev.RepairTimedOut(attempt=attempt):
            return f"no room for a lost member of attempt {attempt}: all of it is stopped"
        case ev.JobEvicted(cause=cause, for_job=other, message=message):
            return _eviction(event.job_id, subject, cause.value, other, message)
        case ev.JobWaited(reason=reason, message=message, start=start):
            return f"waits ({reason.value}): {message}{_start_words(start)}"
        case ev.TaskStarted(attempt=attempt, task=task, detail=detail):
            return f"task {task} of attempt {attempt} runs" + (f" ({detail})" if detail else "")
        case ev.TaskLaunchFailed(task=task, message=message):
            return f"task {task} could not start: {message}"
        case ev.TaskExited():
            return _exit(event)
        case ev.RankPaceChanged():
            return _pace(event, subject)
        case ev.JobIdled():
            return idle_words(event)
        case ev.JobHung():
            return _hang(event)
        case ev.LimitMeasured(point=point):
            needs = f"{point.step_s:.3g} s and {point.step_energy_j:.3g} J per device"
            return f"at a power limit of {point.limit_w} W a step takes {needs}"
        case ev.TimeLimitReached(attempt=attempt):
            return f"attempt {attempt} reached its time limit"
        case _:
            return type(event).__name__


def _start_words(start: StartEstimate | None) -> str:
    if start is None:
        return ""
    low, at, high = (
        format_instant(round(each)) for each in (start.low_s, start.at_s, start.high_s)
    )
    return f"; should start at {at}, likely from {low} to {high}"


def _pace(event: ev.RankPaceChanged, subject: str) -> str:
    who = f"task {event.task} on {event.node}"
    if subject == f"node/{event.node}":
        who = f"task {event.task} of {event.job_id}"
    if event.ratio <= 1:
        return f"{who} keeps pace again"
    why = f": {event.words}" if event.words else ""
    return f"{who} takes {event.ratio - 1:.0%} longer for a step than its peers{why}"


def _hang(event: ev.JobHung) -> str:
    if event.is_over:
        return f"attempt {event.attempt} moves again"
    silent = format_duration(max(event.at_s - event.last_progress_s, 0.0))
    allowed = format_duration(event.limit_s)
    what = f"attempt {event.attempt} hangs in {event.phase}: silent for {silent} of {allowed}"
    if event.tasks:
        names = ", ".join(str(task) for task in event.tasks[:8])
        what += f"; the others wait for task {names}"
    return f"{what}; held by: {event.held_by}" if event.held_by else f"{what}; stopped"


def _joined(
    job_id: JobId, subject: str, tasks: tuple[TaskPlacement, ...], *, is_repair: bool
) -> str:
    if subject.startswith("node/"):
        return f"{job_id} placed here, joining its running attempt"
    if is_repair:
        members = ", ".join(str(task.rank) for task in tasks)
        return f"lost member {members} replaced: {_where(tasks)}"
    return f"grows by {_where(tasks)}"


def _eviction(victim: JobId, subject: str, cause: str, other: JobId | None, message: str) -> str:
    if subject == other:
        return f"{victim} is stopped to make room ({cause})"
    text = f"stopped ({cause})" + (f" for {other}" if other else "")
    return text + (f": {message}" if message else "")


def _exit(event: ev.TaskExited) -> str:
    if event.is_lost:
        text = f"task {event.task} was lost"
    elif event.exit_code is not None:
        text = f"task {event.task} exited with code {event.exit_code}"
    else:
        text = f"task {event.task} was ended by signal {event.signal}"
    return text + (f": {event.message}" if event.message else "")


def _health_move(event: ev.NodeHealthChanged) -> str:
    record = event.record
    stopped = f"; {', '.join(event.jobs)} moves away" if event.jobs else ""
    if record.state != "quarantined":
        stopped = ""
    by = "" if event.by == HEALTH_OWNER else f" by {event.by}"
    return f"{record.state}{by}: {record.reason}{stopped}"


def _node_sentence(event: ev.NodeEvent) -> str:
    match event:
        case ev.NodeCordoned(cordon=cordon):
            return f"cordoned by {cordon.owner}" + (f": {cordon.reason}" if cordon.reason else "")
        case ev.NodeDrainRequested(cordon=cordon):
            return f"drain by {cordon.owner}" + (f": {cordon.reason}" if cordon.reason else "")
        case ev.NodeUncordoned(owner=owner):
            return f"cordon of {owner} lifted"
        case ev.NodeLost(reason=reason):
            return f"lost: {reason}"
        case ev.NodeFenced(reason=reason):
            return f"its tasks are taken as gone: {reason}"
        case ev.DeviceReconfigured():
            return _shape(event)
        case ev.SlicePauseEnded(index=index):
            return f"the slices of device {index} may be tried again"
        case ev.NodeRemoved():
            return "removed by its engine"
        case ev.FaultFound(fault=fault):
            return f"{fault.severity} fault: {fault.words}"
        case ev.FaultCleared(fault_id=fault):
            return f"fault {fault} is over"
        case ev.NodeHealthChanged():
            return _health_move(event)
        case ev.HealthDecided(order=order, action=action, reason=reason, held_by=held_by):
            what = order.replace("_", " ") + (f" ({action})" if action != "none" else "")
            return f"health: {what}: {reason}" + (f"; held by: {held_by}" if held_by else "")
        case ev.PowerCapped():
            return _capped(event)
        case ev.NodeRepairEnded(succeeded=succeeded, message=message):
            return f"repair {'worked' if succeeded else 'failed'}" + (
                f": {message}" if message else ""
            )
        case _:
            return type(event).__name__


def _capped(event: ev.PowerCapped) -> str:
    """Which power limits a node keeps, and for what."""
    if event.caps is None:
        return "its power is not limited any more" + (f": {event.reason}" if event.reason else "")
    limits = sorted({cap.limit_w for cap in event.caps.devices})
    some = f"{limits[0]}" if limits[0] == limits[-1] else f"{limits[0]} to {limits[-1]}"
    count = len(event.caps.devices)
    waits = any(cap.ceiling_w > cap.limit_w for cap in event.caps.devices)
    done = "ordered" if waits else "in force"
    text = f"power limits of {some} W on {count} devices {done}"
    return text + (f": {event.reason}" if event.reason else "")


def _shape(event: ev.DeviceReconfigured) -> str:
    """How a device was cut."""
    if not event.is_done:
        return f"device {event.index} could not be reconfigured: {event.message}"
    if event.mig is None or not event.mig.is_on:
        return f"device {event.index} is whole"
    parts = ", ".join(f"{part.profile} at {part.start}" for part in event.mig.slices)
    return f"device {event.index} is cut into {parts or 'nothing'}"
