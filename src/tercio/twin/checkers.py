"""What must be true after every event, checked from outside.

Looked at are what physically runs, the plans, the books of the core and the journal. A checker
raises `RuleBroken`, `InvariantViolation` or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tercio.core.cluster import Cluster
from tercio.core.driver import Driver, Scheduler, Step
from tercio.core.healing import policy_of
from tercio.core.invariants import check
from tercio.health.book import HEALTH_ACTOR
from tercio.health.machine import BUDGETED_STATES, CORDONED_STATES
from tercio.health.machine import NodeState as HealthMark
from tercio.health.policy import Mode
from tercio.model.effects import LaunchTask
from tercio.model.events import AnyEvent, Entry, JobsForgotten, JobSubmitted, NodeHealthChanged
from tercio.model.health import HEALTH_OWNER
from tercio.model.ids import JobId, NodeName
from tercio.model.job import TERMINAL_JOB_STATES
from tercio.model.node import MigSpec
from tercio.model.queue import Policy
from tercio.model.resources import WHOLE_DEVICE_MILLI
from tercio.model.snapshot import Snapshot
from tercio.sched.cycle import schedule
from tercio.sched.memory import Memory
from tercio.sched.plan import Plan
from tercio.twin import rules
from tercio.twin.loop import Loop
from tercio.twin.rules import must
from tercio.twin.runs import TaskId


class Checked:
    """A scheduler whose every plan is held against the rules.

    Every `memory_every`-th plan is made again without a memory.
    """

    def __init__(self, scheduler: Scheduler = schedule, *, memory_every: int = 8) -> None:
        self._scheduler = scheduler
        self._every = memory_every
        self._cycles = 0

    def __call__(
        self, snapshot: Snapshot, policy: Policy, now_s: float, seed: int, memory: Memory | None
    ) -> Plan:
        """Plan and check."""
        plan = self._scheduler(snapshot, policy, now_s, seed, memory)
        for rule in rules.ALWAYS:
            rule(snapshot, plan)
        for under in rules.UNDER_POLICY:
            under(snapshot, plan, policy)
        self._cycles += 1
        if memory is not None and self._cycles % self._every == 0:
            rules.same_without_memory(snapshot, plan, policy, now_s, seed)
        return plan


class Truth:
    """What physically runs: no device twice, no task twice, no two attempts of a job at once.

    A task runs on what it was given in the form that it was given: a device that is whole, or
    the slice of its name.
    """

    def __init__(self) -> None:
        self._forms: dict[tuple[NodeName, int], MigSpec] = {}
        self._milli: dict[tuple[NodeName, int], int] = {}
        self._orders: dict[TaskId, LaunchTask] = {}
        self._live: dict[JobId, dict[TaskId, None]] = {}
        self._begun: dict[TaskId, None] = {}

    def began(self, key: TaskId, order: LaunchTask) -> None:
        """A task's processes started."""
        must(key not in self._begun, f"task {key} was started twice")
        self._begun[key] = None
        others = self._live.setdefault(key[0], {})
        for other in others:
            must(other[1] == key[1], f"task {key} starts while {other} runs")
        others[key] = None
        self._orders[key] = order
        for device in order.devices:
            place = (order.node, device.share.index)
            self._milli[place] = self._milli.get(place, 0) + device.share.milli
            must(
                self._milli[place] <= WHOLE_DEVICE_MILLI,
                f"device {place[1]} of {place[0]} is used twice at once",
            )
        self._check_form(order)

    def was_cut(self, node: NodeName, index: int, form: MigSpec) -> None:
        """A device has other slices now, or none."""
        self._forms[node, index] = form
        for order in self._orders.values():
            if order.node == node:
                self._check_form(order)

    def _check_form(self, order: LaunchTask) -> None:
        for device in order.devices:
            form = self._forms.get((order.node, device.share.index), MigSpec())
            if device.share.mig_profile is None:
                must(not form.is_on, f"{order.effect_id} is whole on a device that is cut")
                continue
            uuids = [part.uuid for part in form.slices if part.start == device.share.mig_start]
            must(device.uuid in uuids, f"{order.effect_id} has lost {device.uuid}: {form}")

    def ended(self, key: TaskId) -> None:
        """A task's processes are gone."""
        order = self._orders.pop(key)
        del self._live[key[0]][key]
        for device in order.devices:
            self._milli[order.node, device.share.index] -= device.share.milli


class Books:
    """After every step: the core's own invariants, no plan refused, no job lost."""

    def __init__(self) -> None:
        self._known: dict[JobId, None] = {}

    def stepped(self, loop: Loop, events: Sequence[AnyEvent], step: Step) -> None:
        """Check one step."""
        del events
        cluster = loop.driver.cluster
        must(not step.refused, f"the core refused parts of a plan: {step.refused}")
        for entry in step.entries:
            if isinstance(entry.event, JobSubmitted):
                self._known[entry.event.job_id] = None
            elif isinstance(entry.event, JobsForgotten):
                for job_id in entry.event.job_ids:
                    self._known.pop(job_id, None)
        check(cluster)
        for job_id in self._known:
            must(job_id in cluster.jobs, f"{job_id} was submitted and is lost")
        for job in cluster.jobs.values():
            if job.state in TERMINAL_JOB_STATES:
                must(not cluster.is_holding(job.id), f"{job.id} has ended and holds devices")
            elif job.array is None:
                is_seen = cluster.is_holding(job.id) or cluster.is_waiting(job.id)
                must(is_seen, f"{job.id} is {job.state.value}, and the scheduler does not see it")


class Wards:
    """After every step: health keeps its own rules, whatever befell the nodes."""

    def stepped(self, loop: Loop, events: Sequence[AnyEvent], step: Step) -> None:
        """Check one step."""
        del events
        cluster = loop.driver.cluster
        health = cluster.health
        out = {n: r for n, r in health.records.items() if HealthMark(r.state) in CORDONED_STATES}
        for node in cluster.nodes.values():
            is_kept = any(cordon.owner == HEALTH_OWNER for cordon in node.cordons)
            must(
                is_kept == (node.name in out),
                f"{node.name} is {'' if node.name in out else 'not '}taken out by health, and its"
                f" cordons are {node.cordons}",
            )
        owed = [
            name
            for name, record in out.items()
            if HealthMark(record.state) in BUDGETED_STATES and name in cluster.nodes
        ]
        policy = policy_of(health.settings)
        budget = policy.drain_budget(len(cluster.nodes))
        for entry in step.entries:
            event = entry.event
            if isinstance(event, NodeHealthChanged) and _takes_out(event):
                must(policy.mode is Mode.ACT, f"{event.node} is taken out in shadow")
                must(len(owed) <= budget, f"{owed} are out, of {budget} that may be")


def _takes_out(event: NodeHealthChanged) -> bool:
    """Whether health, not a person, takes a node out that was in."""
    if event.by != HEALTH_ACTOR or not event.record.moves:
        return False
    start = HealthMark(event.record.moves[-1].start)
    return HealthMark(event.record.state) in BUDGETED_STATES and start not in BUDGETED_STATES


def check_replay(journal: Sequence[Entry], cluster: Cluster) -> None:
    """The journal, written and read again, leads to the same state."""
    driver = Driver(Cluster())
    encode, decode = msgspec.json.encode, msgspec.json.Decoder(Entry).decode
    driver.replay([decode(encode(entry)) for entry in journal])
    must(
        driver.cluster.state_hash() == cluster.state_hash(),
        "the journal leads to another state than the run",
    )


def check_restore(journal: Sequence[Entry], cut: int, cluster: Cluster) -> None:
    """A checkpoint at any place of the journal, and the rest of it, lead to the same state."""
    before = Driver(Cluster())
    before.replay(journal[:cut])
    after = Driver(Cluster.from_image(before.cluster.image()), seq=before.seq)
    after.replay(journal[cut:])
    must(
        after.cluster.state_hash() == cluster.state_hash(),
        f"a checkpoint at entry {cut} leads to another state than the run",
    )
