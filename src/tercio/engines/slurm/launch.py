"""Starts a task: files into the spool, one submission, and the wait until Slurm runs it."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tercio.engines.base import TaskRef
from tercio.engines.containers import ContainerProgram
from tercio.engines.slurm.accounts import Account, account_of
from tercio.engines.slurm.cancel import Canceller
from tercio.engines.slurm.ends import exit_of
from tercio.engines.slurm.options import SlurmOptions
from tercio.engines.slurm.order import (
    Refused,
    Seat,
    check_files,
    plan_of,
    sbatch_words,
    script_of,
)
from tercio.engines.slurm.spool import Parcel, Record, Spool, attempt_dir, control_dir
from tercio.engines.slurm.submit import Submitter
from tercio.engines.slurm.tables import NEVER_REASONS, Phase
from tercio.engines.slurm.watch import Tracked, Watch
from tercio.errors import UserError
from tercio.model.effects import LaunchTask, TaskEffect
from tercio.model.events import TaskStarted

_LOG_CAP_BYTES: Final = 256 * 1024**2


def ref_of(order: TaskEffect) -> TaskRef:
    """Return the task that an order is about."""
    return TaskRef(job_id=order.job_id, attempt=order.attempt, task=order.task, node=order.node)


class Launcher:
    """Carries out launches for the engine, which holds the lock of the task meanwhile.

    Attributes:
        program: what runs container images on the nodes; the engine finds it when it opens.
    """

    def __init__(
        self,
        *,
        watch: Watch,
        submitter: Submitter,
        spool: Spool,
        options: SlurmOptions,
        cancel: Canceller,
        clock: Callable[[], float],
        workdir_of: Callable[[str], Path],
        wake: Callable[[], None],
    ) -> None:
        self.program = ContainerProgram()
        self._watch = watch
        self._submitter = submitter
        self._spool = spool
        self._options = options
        self._cancel = cancel
        self._clock = clock
        self._workdir_of = workdir_of
        self._wake = wake
        self._unsure: dict[str, None] = {}
        self._attempts: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    async def launch(
        self, order: LaunchTask, secrets: Mapping[str, str], seat: Seat
    ) -> TaskStarted:
        """Start one task, once, and return when it runs or has ended.

        Where Slurm chooses the node, return when Slurm has taken it into its queue.

        Raises:
            Refused: nothing runs, and nothing of this launch ever will.
            EngineError: retryable; the next try finds what this one may have left.
        """
        ref = ref_of(order)
        if ref.key in self._unsure:
            # An earlier submission may have got through without our hearing of it.
            await self._watch.poll()
            del self._unsure[ref.key]
        task = self._watch.tasks.get(ref.key)
        if task is None:
            (record,) = await asyncio.to_thread(self._spool.look, [ref])
            if record.is_stopped:
                raise Refused("it was told to stop before it started")
            if record.is_absent:
                task = await self._submit(order, secrets, seat, ref)
            else:
                task = self._from_record(ref, record)
        if task.started is None:
            if self._options.mode == "placed":
                await self._until_running(task, seat)
            (record,) = await asyncio.to_thread(self._spool.look, [ref])
            task.started = self._started(order, task, record)
        return task.started

    def account_of_task(self, ref: TaskRef) -> Account | None:
        """Return whose Slurm job a running task is."""
        if self._options.ssh:
            return None
        owner = os.stat(control_dir(self._spool.root, ref)).st_uid
        import pwd

        return account_of(pwd.getpwuid(owner).pw_name, run_as=self._options.run_as)

    def _from_record(self, ref: TaskRef, record: Record) -> Tracked:
        """Return a task that is in Slurm no more, or whose job Slurm has not shown yet."""
        # The claim tells it, too, where the server died between the submission and its note.
        number = record.claimed or record.number
        task = Tracked(ref=ref, number=number, seats=())
        if record.end:
            task.phase, task.end = Phase.ENDED, exit_of(ref, record)
        self._watch.tasks[ref.key] = task
        return task

    async def _submit(
        self, order: LaunchTask, secrets: Mapping[str, str], seat: Seat, ref: TaskRef
    ) -> Tracked:
        account = self._account(order)
        words = self._words(order, seat, ref)
        parcel = await asyncio.to_thread(self._parcel, order, secrets, account, ref)
        try:
            async with self._attempt_lock(ref):
                await asyncio.to_thread(self._spool.write, ref, parcel, account)
            runner = await asyncio.to_thread(self._spool.runner_path)
        except OSError as failure:
            where = f"{failure.filename}: " if failure.filename else ""
            raise Refused(f"{where}{failure.strerror or failure}", is_retryable=True) from failure
        task = Tracked(
            ref=ref,
            number=None,
            seats=tuple(device.share.index for device in order.devices),
            submitted_s=float("inf"),
        )
        self._watch.tasks[ref.key] = task
        script = script_of(self._options.python, runner, control_dir(self._spool.root, ref))
        try:
            task.number = await self._hand_in(words, script, account, ref)
        except BaseException:
            if task.number is None:
                self._watch.tasks.pop(ref.key, None)
            raise
        task.submitted_s = self._clock()
        await asyncio.to_thread(self._spool.note, ref, "number", str(task.number))
        self._wake()
        return task

    def _attempt_lock(self, ref: TaskRef) -> asyncio.Lock:
        """Return the lock of what the tasks of an attempt share: their working directory."""
        key = attempt_dir(self._spool.root, ref)
        lock = self._attempts.get(key)
        if lock is None:
            lock = self._attempts[key] = asyncio.Lock()
        return lock

    async def _hand_in(self, words: list[str], script: str, account: Account, ref: TaskRef) -> int:
        self._unsure[ref.key] = None
        try:
            number = await self._submitter.submit(words, script, account)
        except Refused:
            del self._unsure[ref.key]
            raise
        del self._unsure[ref.key]
        return number

    def _account(self, order: LaunchTask) -> Account:
        try:
            return account_of(order.user, run_as=self._options.run_as)
        except UserError as error:
            raise Refused(f"{error.message} ({error.hint})") from error

    def _words(self, order: LaunchTask, seat: Seat, ref: TaskRef) -> list[str]:
        extra = []
        if self._options.account:
            extra.append(f"--account={self._options.account}")
        if self._options.qos:
            extra.append(f"--qos={self._options.qos}")
        return sbatch_words(
            order,
            seat,
            owner=self._watch.owner,
            directory=control_dir(self._spool.root, ref),
            is_pinned=self._options.mode == "placed",
            extra=extra,
        )

    def _parcel(
        self, order: LaunchTask, secrets: Mapping[str, str], account: Account, ref: TaskRef
    ) -> Parcel:
        """Return what the task needs. Raises Refused."""
        check_files(order)
        if self._options.mode == "delegated" and order.env.get("TERCIO_TASKS", "1") != "1":
            raise Refused("a gang meets at addresses known before its start: it must be placed")
        cwd, archive = order.workdir, None
        if cwd is not None and not cwd.startswith("/"):
            try:
                archive = self._workdir_of(cwd)
            except UserError as error:
                raise Refused(error.message) from error
            cwd = f"{attempt_dir(self._spool.root, ref)}/workdir"
        plan, files = plan_of(
            order,
            secrets,
            account=account,
            task_dir=f"{control_dir(self._spool.root, ref)}/task",
            cwd=cwd,
            path=os.environ.get("PATH", "") if account.is_self and not self._options.ssh else "",
            log_cap_bytes=_LOG_CAP_BYTES,
            program=self.program,
        )
        texts = {"plan.json": plan, "run.sh": order.command.encode(errors="surrogateescape")}
        if order.setup is not None:
            texts["setup.sh"] = order.setup.encode(errors="surrogateescape")
        return Parcel(texts=texts, files={**order.files, **files}, archive=archive)

    async def _until_running(self, task: Tracked, seat: Seat) -> None:
        """Return when the task runs or has ended; withdraw it when its place was taken."""
        give_up_s = self._clock() + self._options.start_wait_s
        while task.end is None and task.phase not in (Phase.RUNNING, Phase.ENDING):
            if task.phase is Phase.WAITING:
                is_hopeless = task.reason in NEVER_REASONS
                if is_hopeless or self._clock() >= give_up_s:
                    await self._withdraw(task, seat, is_retryable=not is_hopeless)
            await self._watch.news(1.0)

    async def _withdraw(self, task: Tracked, seat: Seat, *, is_retryable: bool) -> None:
        """Take a job back that Slurm does not start; raise Refused once it is surely gone.

        It may have started this very moment: then it runs, and nothing is refused.
        """
        why = task.reason
        assert task.number is not None
        if not await asyncio.to_thread(self._spool.fence, task.ref):
            return
        if not task.is_orphaned:
            await self._cancel.send(task.number)
        self._watch.drop(task)
        raise Refused(self._taken(seat, why), is_retryable=is_retryable)

    def _taken(self, seat: Seat, why: str) -> str:
        """Say who has the node."""
        others = [job for job in self._watch.foreign if seat.node in job.nodes]
        if not others:
            return f"Slurm did not start it on {seat.node}: {why or 'no reason given'}"
        who = ", ".join(f"{job.number} of {job.user}" for job in others[:3])
        return f"Slurm did not start it on {seat.node} ({why}); there runs job {who}"

    def _started(self, order: LaunchTask, task: Tracked, record: Record) -> TaskStarted:
        devices = str(record.begun.get("devices", ""))
        detail = f"Slurm job {task.number}" + (f", devices {devices}" if devices else "")
        if task.phase is Phase.WAITING:
            detail += ", in Slurm's queue"
        at_s = record.begun.get("at_s")
        return TaskStarted(
            at_s=float(at_s) if at_s is not None else self._clock(),
            job_id=order.job_id,
            attempt=order.attempt,
            task=order.task,
            effect_id=order.effect_id,
            detail=detail,
        )
