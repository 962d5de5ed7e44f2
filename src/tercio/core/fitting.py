"""What no node of the cluster could ever hold: refused at submit instead of queued for good.

Only what the *kinds* of node exclude is refused: a device type that no node has, a task that is
larger than the largest node, a filter that leaves no such node, a site that is not connected, a
limit below the job's minimum. A job that needs more nodes than there are today is not: nodes
come, and it waits with reason `NeverFits` until they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from tercio.errors import UserError
from tercio.model.ids import JobId, NodeName, QueuePath
from tercio.model.job import JobSpec, NodeFilter, TaskGroup
from tercio.model.limits import Limits
from tercio.model.node import Node, NodeSpec, NodeState
from tercio.model.queue import Policy, QueueSpec
from tercio.model.reasons import Change, Outcome, Reason
from tercio.model.snapshot import Snapshot, WaitingJob
from tercio.sched.cycle import schedule
from tercio.sched.fairshare import RUNNING_JOBS, QueueTree
from tercio.sched.need import compile_shape, job_amounts
from tercio.sched.owners import Blocked, Owner
from tercio.sched.table import Table, device_kind
from tercio.sched.words import limit_words

NEVER: Final = frozenset(
    {
        Reason.NEVER_FITS,
        Reason.TYPE_UNAVAILABLE,
        Reason.CONSTRAINT,
        Reason.SITE_UNAVAILABLE,
    }
)
"""Reasons that no change of load lifts."""

_MOST_KNOWN: Final = 4096
_TRIED: Final = JobId("job-tried")
_QUEUE: Final = QueuePath("any")


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job can never start, and what to write instead."""

    message: str
    hint: str


class Fitting:
    """Answers for one set of nodes and one policy; remembers what it was asked."""

    def __init__(self, nodes: Iterable[Node], policy: Policy) -> None:
        self._policy = policy
        self._nodes = tuple(nodes)
        self._kinds = tuple(_kinds(self._nodes))
        self._known: dict[tuple[object, ...], Refusal | None] = {}
        self._tree = QueueTree(policy)
        share = policy.default_share
        self._table = Table(
            policy.topology, share.cpus_milli_per_device, share.memory_bytes_per_device
        )
        self._table.add_nodes(self._empty_nodes(None).values())
        self._open = msgspec.structs.replace(
            policy, queues={_QUEUE: QueueSpec()}, default_queue=_QUEUE, budgets=(), limits=Limits()
        )

    def refusal(self, spec: JobSpec, queue: QueuePath, owner: Owner) -> Refusal | None:
        """Return why the job could never start, or None when it could or nothing is known."""
        over = self._over_limit(spec, queue, owner)
        if over is not None or not self._nodes:
            return over
        for group in _leaves(spec.groups):
            key = (group, spec.nodes, spec.sites, spec.image is None)
            if key not in self._known:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = self._too_large(group, spec)
            found = self._known[key]
            if found is not None:
                return found
        return None

    def _over_limit(self, spec: JobSpec, queue: QueuePath, owner: Owner) -> Refusal | None:
        """The job's minimum against limits that even an idle queue has."""
        shape = compile_shape(spec, self._table)
        first: Refusal | None = None
        for combination in shape.combinations:
            amounts = {**job_amounts(shape, combination, self._policy), RUNNING_JOBS: 1}
            limit = self._tree.blocked(self._tree.at(queue), owner, amounts, {})
            if limit is None or not limit.is_for_ever:
                return None
            first = first or Refusal(
                message=limit_words(limit, can_never=True),
                hint=_raised(limit),
            )
        return first

    def _too_large(self, group: TaskGroup, spec: JobSpec) -> Refusal | None:
        """One task of a group on every kind of node, each of them empty."""
        one = msgspec.structs.replace(
            group, tasks=1, tasks_max=None, topology=None, subgroups=(), min_subgroups=None
        )
        job = WaitingJob(
            job_id=_TRIED,
            spec=JobSpec(
                name=spec.name, groups=(one,), nodes=spec.nodes, sites=spec.sites, image=spec.image
            ),
            queue=_QUEUE,
            user="",
            tenant="",
            priority=0,
            is_preemptible=True,
            submitted_s=0.0,
            sequence=1,
        )
        snapshot = Snapshot(
            revision=1, nodes=self._empty_nodes(spec.nodes), running={}, waiting={_TRIED: job}
        )
        plan = schedule(snapshot, self._open, 0.0, 0)
        decision = plan.briefs[_TRIED]
        if decision.outcome is Outcome.PLACED or decision.reason not in NEVER:
            return None
        return Refusal(message=decision.message, hint=_advice(decision.change))

    def _empty_nodes(self, wanted: NodeFilter | None) -> Mapping[NodeName, Node]:
        """One node of each kind; all of them when the job chooses among them by name or label."""
        if wanted is not None:
            specs: tuple[NodeSpec, ...] = tuple(node.spec for node in self._nodes)
        else:
            specs = self._kinds
        return {
            spec.name: Node(
                spec=msgspec.structs.replace(spec, foreign_devices=()), state=NodeState.READY
            )
            for spec in specs
        }


def _kinds(nodes: Iterable[Node]) -> Iterator[NodeSpec]:
    """Yield the first node of each kind: same site, devices, cores, memory, slots, containers."""
    seen: dict[tuple[object, ...], None] = {}
    for node in nodes:
        spec = node.spec
        devices = tuple(device_kind(device) for device in spec.devices)
        key = (
            spec.site, devices, spec.cpus_milli, spec.memory_bytes, spec.slots, spec.runs_images,
        )  # fmt: skip
        if key not in seen:
            seen[key] = None
            yield spec


def _leaves(groups: tuple[TaskGroup, ...]) -> Iterator[TaskGroup]:
    for group in groups:
        if group.subgroups:
            yield from _leaves(group.subgroups)
        else:
            yield group


def _raised(limit: Blocked) -> str:
    if limit.queue:
        return f"ask for less, or have the {limit.kind} of queue '{limit.queue}' raised"
    whose = limit.kind.removeprefix("per_")
    return f"ask for less, or have the limit of {whose} '{limit.user}' raised in the policy"


def _advice(change: Change | None) -> str:
    wait = "submit with --wait-for-capacity to queue it until such nodes are there"
    match change:
        case Change(what="devices", to=to):
            return f"ask for {to} devices per task, or {wait}"
        case Change(what="type", to=to):
            return f"ask for devices of type {to}, or {wait}"
        case _:
            return wait


def refuse_never(refusal: Refusal) -> UserError:
    """Return the error of a submit that could never start."""
    return UserError(refusal.message, code="never_fits", hint=refusal.hint)
