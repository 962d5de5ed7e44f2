"""Keeps what Slurm says of our tasks and its nodes: one request for the queue in every poll.

A task that leaves the queue has ended: how, stands in the spool, where the runner wrote it, or
else in the controller's memory and the accounts, asked for all such tasks together. A task whose
node failed is not told as ended: its processes may go on there. It is told when the node is back
and Slurm has cleaned up, or by the core when the node's fence or deadline has passed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from tercio.engines.base import Observation, TaskRef
from tercio.engines.slurm import facts
from tercio.engines.slurm.commands import Commands, ask
from tercio.engines.slurm.ends import (
    UNKNOWN,
    SlurmEnd,
    doubt,
    end_in_slurm,
    exit_of,
    exited,
    explained,
    is_cancelled_unbegun,
    read_ends,
)
from tercio.engines.slurm.inventory import Held, NodeView, Site, node_views
from tercio.engines.slurm.order import read_comment
from tercio.engines.slurm.reader import Reader
from tercio.engines.slurm.spool import Record, Spool
from tercio.engines.slurm.tables import Openness, Phase
from tercio.errors import EngineError
from tercio.logs import facts as told
from tercio.model.events import NodeLost, NodeRemoved, NodeReported, TaskExited, TaskStarted
from tercio.model.ids import NodeName

log = logging.getLogger(__name__)
_NODES_EVERY_POLLS: Final = 5
_SLOW_FACTS_EVERY_S: Final = 60.0
_TOLD_MAX: Final = 10_000
_ALIVE: Final = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING")
"""Said of a job that the queue did not show: the next look decides."""
_ORPHAN_WAIT_S: Final = 15.0
"""slurmd ends the steps of jobs that the controller gave up within seconds of its return."""


class Tracked(msgspec.Struct):
    """A task of ours in Slurm.

    Attributes:
        ref: with its node.
        number: of the Slurm job, None while it is being submitted.
        seats: Tercio's device numbers.
        phase, state, reason: as Slurm last said.
        submitted_s: when; the queue of an earlier poll does not count.
        started: the answer to its launch, the same for ever.
        is_answered: whether the server knows that it started, so that its end may be told.
        end: how it ended, once known.
        is_orphaned: Slurm gave it up, but it may still run; `lost_why` says why, and `free_s`
            when it surely has gone, once its node answers.
        kill_s: when the grace of a stop is over; `stop_signal` is what was to be sent.
        where: Slurm's name of the node that it runs on, empty before.
    """

    ref: TaskRef
    number: int | None
    seats: tuple[int, ...]
    submitted_s: float = 0.0
    phase: Phase = Phase.WAITING
    state: str = "PENDING"
    reason: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    started: TaskStarted | None = None
    is_answered: bool = False
    end: TaskExited | None = None
    is_orphaned: bool = False
    lost_why: str = ""
    free_s: float | None = None
    kill_s: float | None = None
    stop_signal: int | None = None
    is_suspended: bool = False
    where: str = ""


class Watch:
    """What is in Slurm now, of this server and of others.

    Attributes:
        tasks: ours by key, until their end was told.
        views: nodes by our names.
        foreign: jobs of others, of the last poll.
        failure: why the last poll did not succeed, empty when it did.
    """

    def __init__(
        self,
        *,
        reader: Reader,
        commands: Commands,
        spool: Spool,
        clock: Callable[[], float],
        site: Site,
        poll_s: float,
        send: Callable[[Observation], None],
    ) -> None:
        self.tasks: dict[str, Tracked] = {}
        self.views: dict[NodeName, NodeView] = {}
        self.foreign: list[facts.SlurmJob] = []
        self.failure = ""
        self.owner = ""
        self.site = site
        self._reader = reader
        self._commands = commands
        self._spool = spool
        self._clock = clock
        self._nodes_every_s = poll_s * _NODES_EVERY_POLLS
        self._send = send
        self._lock = asyncio.Lock()
        self._news = asyncio.Condition()
        self._active: tuple[tuple[int, str], ...] = ()
        self._nodes_s = -1e9
        self._slow_s = -1e9
        self._partitions: list[facts.Partition] = []
        self._reservations: list[facts.ReservedNodes] = []
        self._lost: dict[NodeName, None] = {}
        self._leaving: dict[str, Tracked] = {}
        self._told: dict[str, Tracked] = {}

    async def poll(self) -> None:
        """Look once. Raises EngineError; what is known then stays as it was."""
        async with self._lock:
            began_s = self._clock()
            try:
                jobs = await self._reader.jobs()
                ending, gone = self._take_jobs(jobs, await self._sort_out(jobs), began_s)
                await self._settle(ending, gone)
                running = tuple((job.number, job.phase.value) for job in jobs if job.nodes)
                if running != self._active or began_s - self._nodes_s >= self._nodes_every_s:
                    await self._take_nodes()
                    self._active, self._nodes_s = running, began_s
            except EngineError as failure:
                if not self.failure:
                    log.warning("slurm_silent", extra=told(site=self.site.name, error=str(failure)))
                self.failure = failure.message
                raise
            self.failure = ""
        async with self._news:
            self._news.notify_all()

    async def news(self, timeout_s: float) -> None:
        """Return after the next poll, or when the time is up."""
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait()
        except TimeoutError:
            return

    def tell(self, task: Tracked) -> None:
        """Tell the end of a task and forget it, when it has one and the server may hear it."""
        if task.end is not None and task.is_answered:
            self.drop(task)
            self._send(task.end)

    def drop(self, task: Tracked) -> None:
        """Forget a task; its Slurm job, which may be there for a while, is no news any more.

        Nor is an answer that is older than its end.
        """
        self.tasks.pop(task.ref.key, None)
        self._leaving[task.ref.key] = self._told[task.ref.key] = task
        if len(self._told) > _TOLD_MAX:
            del self._told[next(iter(self._told))]

    # Jobs.

    async def _sort_out(self, jobs: Sequence[facts.SlurmJob]) -> dict[int, TaskRef]:
        """Return the Slurm jobs that run tasks of ours, by number.

        A submission that a killed server had begun may come through beside that of the next one:
        of several Slurm jobs for one task that one counts which has the claim in the spool, the
        others leave as soon as they start.
        """
        numbers: dict[TaskRef, list[int]] = {}
        for job in jobs:
            tag = read_comment(job.comment)
            if tag is not None and tag.owner == self.owner:
                numbers.setdefault(tag.ref, []).append(job.number)
        known = {ref: task.number for ref in numbers if (task := self.tasks.get(ref.key))}
        doubtful = [
            ref
            for ref, found in numbers.items()
            if len(found) > 1 or known.get(ref) not in (None, found[0])
        ]
        records = await asyncio.to_thread(self._spool.look, doubtful) if doubtful else []
        claims = {ref: record.claimed for ref, record in zip(doubtful, records, strict=True)}
        chosen: dict[int, TaskRef] = {}
        for ref, found in numbers.items():
            number = claims.get(ref) or known.get(ref) or found[0]
            if ref in known and known[ref] is not None:
                self.tasks[ref.key].number = number
            if number in found:
                chosen[number] = ref
        return chosen

    def _take_jobs(
        self, jobs: Sequence[facts.SlurmJob], ours: Mapping[int, TaskRef], began_s: float
    ) -> tuple[list[Tracked], list[Tracked]]:
        """Take the queue in; return tasks of ours that end there, and those that left it."""
        foreign, seen, leaving = [], dict[str, None](), dict[str, Tracked]()
        for job in jobs:
            tag = read_comment(job.comment)
            if tag is None or tag.owner != self.owner:
                foreign.append(job)
                continue
            key = tag.ref.key
            if job.number not in ours:
                continue
            task = self.tasks.get(key)
            if task is None and key in self._told:
                left = leaving[key] = self._told[key]
                left.phase = job.phase
                continue
            if task is None:
                task = self.tasks[key] = Tracked(ref=tag.ref, number=job.number, seats=tag.devices)
            seen[key] = None
            task.number, task.is_orphaned = job.number, False
            task.phase, task.state, task.reason = job.phase, job.state, job.reason
            task.cpus, task.where = job.cpus, next(iter(job.nodes), "")
            task.memory_bytes = job.memory_bytes
        self.foreign = foreign
        self._leaving = leaving
        ending, gone = list[Tracked](), list[Tracked]()
        for key, task in self.tasks.items():
            if task.number is None or task.end is not None or task.submitted_s >= began_s:
                continue
            if key not in seen and not task.is_orphaned:
                gone.append(task)
            elif key in seen and task.phase is Phase.ENDING:
                ending.append(task)
        return ending, gone

    async def _settle(self, ending: Sequence[Tracked], gone: Sequence[Tracked]) -> None:
        """Find out how tasks that left the queue, or are about to, have ended."""
        if not (ending or gone):
            return
        refs = [task.ref for task in (*ending, *gone)]
        records = await asyncio.to_thread(self._spool.look, refs)
        for task, record in zip((*ending, *gone), records, strict=True):
            if record.is_final:
                self._end(task, exit_of(task.ref, record))
        # Slurm's own word on a task that ends is final only when it has left the queue.
        unclear = [task for task in gone if task.end is None]
        if unclear:
            # The record may have been written after the first look, and before the job left.
            wanted = [(task.number or 0, task.ref) for task in unclear]
            ends = await read_ends(self._commands, wanted, owner=self.owner)
            records = await asyncio.to_thread(self._spool.look, [task.ref for task in unclear])
            found = [ends.get(task.number or 0, UNKNOWN) for task in unclear]
            if any(map(is_cancelled_unbegun, records, found)):
                # Perhaps their nodes refused them, which only the drains of those nodes say.
                await self._take_nodes()
            for task, record, end in zip(unclear, records, found, strict=True):
                self._settle_unclear(task, record, end)

    def _settle_unclear(self, task: Tracked, record: Record, end: SlurmEnd) -> None:
        if record.claimed not in (None, task.number):
            # This Slurm job left as it found the task taken: by that one, which is looked for next.
            task.number = record.claimed
            return
        if end.word in _ALIVE and not record.end:
            return
        view = self.views.get(task.ref.node)
        task.lost_why = doubt(task.number, record, end, drained_why=view.why if view else "")
        if task.lost_why:
            task.is_orphaned, task.free_s = True, None
            self._nodes_s = -1e9
        else:
            told_end = end_in_slurm(
                task.ref, record, end, spool=self._spool, now_s=self._clock(),
                stop_signal=task.stop_signal,
            )  # fmt: skip
            self._end(task, told_end)

    def _end(self, task: Tracked, end: TaskExited) -> None:
        task.phase, task.end = Phase.ENDED, end
        self.tell(task)

    # Nodes.

    async def _take_nodes(self) -> None:
        now_s = self._clock()
        if now_s - self._slow_s >= _SLOW_FACTS_EVERY_S:
            await self._take_slow_facts()
            self._slow_s = now_s
        nodes = await self._reader.nodes()
        views = node_views(
            msgspec.structs.replace(self.site, owner=self.owner),
            nodes=nodes,
            jobs=self.foreign,
            partitions=self._partitions,
            reservations=self._reservations,
            held=self._held(),
            now_s=now_s,
        )
        before, self.views = self.views, views
        for name, view in views.items():
            self._tell_node(name, view, before.get(name), now_s)
        for name in before:
            if name not in views:
                self._lost.pop(name, None)
                self._send(NodeRemoved(at_s=now_s, node=name))
        await self._free_orphans(now_s)

    async def _take_slow_facts(self) -> None:
        """Read what changes rarely."""
        show = ("scontrol", "-a", "show")
        self._partitions = facts.partitions_from_text(
            await ask(self._commands, *show, "partition", "-o")
        )
        self._reservations = facts.reservations_from_text(
            await ask(self._commands, *show, "reservation", "-o")
        )
        done = await self._commands.run([*show, "topology"])
        # Without a topology plugin the command fails, and there is nothing to know.
        labels = facts.topology_from_text(done.out.decode(errors="replace"))
        self.site = msgspec.structs.replace(self.site, labels=labels)

    def _tell_node(
        self, name: NodeName, view: NodeView, before: NodeView | None, now_s: float
    ) -> None:
        is_down = view.openness is Openness.DOWN
        if before is None or (not is_down and (before.spec != view.spec or name in self._lost)):
            self._lost.pop(name, None)
            self._send(NodeReported(at_s=now_s, spec=view.spec))
        if is_down and name not in self._lost:
            self._lost[name] = None
            self._send(NodeLost(at_s=now_s, node=name, reason=view.why))

    def _held(self) -> dict[str, Held]:
        """Return what our tasks hold, by Slurm's node name."""
        found: dict[str, Held] = {}
        for task in (*self.tasks.values(), *self._leaving.values()):
            node = task.where or str(task.ref.node).removeprefix(self.site.prefix)
            held = found.get(node, Held())
            if task.phase is Phase.WAITING:
                held = msgspec.structs.replace(
                    held, waiting_seats=(*held.waiting_seats, *task.seats)
                )
            elif task.phase is not Phase.ENDED:
                held = Held(
                    seats=(*held.seats, *task.seats),
                    waiting_seats=held.waiting_seats,
                    cpus=held.cpus + task.cpus,
                    memory_bytes=held.memory_bytes + task.memory_bytes,
                )
            found[node] = held
        return found

    async def _free_orphans(self, now_s: float) -> None:
        """Tell the end of tasks whose failed node is back, and has ended what it still ran."""
        orphans = [task for task in self.tasks.values() if task.is_orphaned]
        if not orphans:
            return
        records = await asyncio.to_thread(self._spool.look, [task.ref for task in orphans])
        for task, record in zip(orphans, records, strict=True):
            view = self.views.get(task.ref.node)
            if record.end:
                self._end(task, explained(exit_of(task.ref, record), record, "NODE_FAIL"))
            elif view is None or view.openness is Openness.DOWN or not view.is_registered:
                task.free_s = None
            elif task.free_s is None:
                self._nodes_s = -1e9
                task.free_s = now_s + _ORPHAN_WAIT_S
            elif now_s >= task.free_s:
                end = exited(task.ref, now_s, is_lost=True, message=task.lost_why)
                self._end(task, msgspec.structs.replace(end, marks=record.marks))
            else:
                self._nodes_s = -1e9
