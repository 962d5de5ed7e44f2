"""How a task ended: as its runner wrote down, or as the controller and the accounts say.

The number of a Slurm job is not enough to ask for it: a controller that crashed forgets what it
took in since it last saved its state, and gives the same number to the next job. So an answer
counts only for the job that carries our mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tercio.engines.base import TaskRef
from tercio.engines.slurm.commands import Commands, failure_of
from tercio.engines.slurm.order import job_name, read_comment
from tercio.engines.slurm.runner import TAKEN
from tercio.engines.slurm.spool import Record, Spool
from tercio.engines.slurm.tables import END_MESSAGES, LOST_STATES, Phase, job_phase
from tercio.engines.slurm.text import read_exit, read_pairs
from tercio.model.events import TaskExited

_EPOCH: Final = ("env", "SLURM_TIME_FORMAT=%s")
"""Times as seconds since the epoch, whatever the zone of the host that answers."""
_NO_OUTPUT: Final = 53
"""Slurm's end `0:53` of a job whose output file cannot be opened on its node."""
_FORGOTTEN_S: Final = 2.0
"""Slurm starts a job before its runner begins; clocks of a cluster agree better than this."""
_FORGOTTEN: Final = "Slurm lost its first run in a restart, and a second is never begun"

_DUPLICATE: Final = "Duplicate jobid"
"""Why slurmctld drains a node that still runs an older job of the number that it was to start."""
_REFUSED: Final = "its node still ran a job of the same number, which Slurm forgot in a restart"


class SlurmEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says of a job that left its queue.

    Attributes:
        word: its state, empty when Slurm knows no such job.
        code: exit code and signal, `0:9`.
        start_s: when Slurm started it last, None when it never did.
    """

    word: str = ""
    code: str = ""
    start_s: float | None = None


UNKNOWN: Final = SlurmEnd()


async def read_ends(
    commands: Commands, wanted: Sequence[tuple[int, TaskRef]], *, owner: str
) -> dict[int, SlurmEnd]:
    """Return what Slurm knows of these jobs, by number: all asked for together.

    Raises EngineError when the controller does not answer.
    """
    refs = dict(wanted)
    found: dict[int, SlurmEnd] = {}
    done = await commands.run([*_EPOCH, "scontrol", "-a", "show", "job", "-o"])
    if done.code:
        raise failure_of("scontrol", done)
    for line in done.out.decode(errors="replace").splitlines():
        number = line.partition(" ")[0].removeprefix("JobId=")
        ref = refs.get(int(number)) if number.isdigit() else None
        if ref is not None:
            pairs = read_pairs(line)
            tag = read_comment(pairs.get("Comment", ""))
            if tag is not None and tag.owner == owner and tag.ref.key == ref.key:
                found[int(number)] = _end_of(
                    pairs.get("JobState", ""), pairs.get("ExitCode", ""), pairs.get("StartTime", "")
                )
    missing = {number: ref for number, ref in refs.items() if number not in found}
    if missing:
        found |= await _read_accounts(commands, missing)
    return found


async def _read_accounts(commands: Commands, refs: dict[int, TaskRef]) -> dict[int, SlurmEnd]:
    words = ("sacct", "-X", "-n", "-P", "-o", "JobIDRaw,State,ExitCode,Start,JobName", "-j")
    done = await commands.run([*_EPOCH, *words, ",".join(map(str, refs))])
    rows = [line.split("|", 4) for line in done.out.decode(errors="replace").splitlines()]
    # What the accounts take for running, and the controller does not know, is long gone.
    return {
        int(number): _end_of(state, code, start)
        for number, state, code, start, name in (row for row in rows if len(row) == 5)
        if number.isdigit()
        and int(number) in refs
        and name == job_name(refs[int(number)])
        and job_phase(state) is Phase.ENDED
    }


def _end_of(state: str, code: str, start: str) -> SlurmEnd:
    # `CANCELLED by 1000` names who did it.
    return SlurmEnd(
        word=state.partition(" ")[0], code=code, start_s=float(start) if start.isdigit() else None
    )


def end_in_slurm(
    ref: TaskRef,
    record: Record,
    end: SlurmEnd,
    *,
    spool: Spool,
    now_s: float,
    stop_signal: int | None,
) -> TaskExited:
    """Return the end of a task whose Slurm job has ended; its runner may have written nothing.

    `stop_signal` is what an order to stop was to send, None without one.
    """
    if record.is_final:
        return exit_of(ref, record)
    if _is_forgotten(record, end):
        told = exited(ref, now_s, is_lost=True, message=_FORGOTTEN)
    elif record.end:
        return explained(exit_of(ref, record), record, end.word)
    else:
        told = _unwritten(ref, end, spool=spool, now_s=now_s, stop_signal=stop_signal)
    return msgspec.structs.replace(told, marks=record.marks)


def is_cancelled_unbegun(record: Record, end: SlurmEnd) -> bool:
    """Whether a job was cancelled before its runner did anything."""
    return end.word == "CANCELLED" and not (record.begun or record.claimed or record.end)


def doubt(number: int | None, record: Record, end: SlurmEnd, *, drained_why: str) -> str:
    """Return why a task may go on although its Slurm job has left, empty when it has ended.

    A node that failed may still run it, and so may one whose controller forgot that it does, until
    the node has answered that controller. `drained_why` is why its node takes no work now.
    """
    if record.end or read_exit(end.code)[0] == TAKEN:
        return ""
    if not end.word:
        return f"Slurm knows no job {number} any more, and it left no record"
    if end.word == "NODE_FAIL":
        return LOST_STATES[end.word]
    if is_cancelled_unbegun(record, end) and _DUPLICATE.lower() in drained_why.lower():
        return _REFUSED
    return _FORGOTTEN if _is_forgotten(record, end) else ""


def _is_forgotten(record: Record, end: SlurmEnd) -> bool:
    """Whether Slurm says that its job started later than the runner of that job did, or never.

    Slurm is told to requeue no job of ours: its controller has forgotten the first start.
    """
    began_s = record.begun.get("at_s")
    if not end.word or began_s is None:
        return False
    return end.start_s is None or end.start_s > float(began_s) + _FORGOTTEN_S


def _unwritten(
    ref: TaskRef, end: SlurmEnd, *, spool: Spool, now_s: float, stop_signal: int | None
) -> TaskExited:
    """Return the end of a task whose runner wrote nothing."""
    exit_code, signal = read_exit(end.code)
    if signal is not None and stop_signal is not None:
        # The order to stop met the batch script before the runner was there to obey it.
        signal = stop_signal
    if end.word in LOST_STATES:
        return exited(ref, now_s, is_lost=True, message=LOST_STATES[end.word])
    if signal == _NO_OUTPUT:
        message = (
            f"Slurm could not write below {spool.root} on {ref.node}: the spool must be "
            "there at the same path, and the task's user must be able to reach it"
        )
        return exited(ref, now_s, exit_code=1, message=message)
    if exit_code == TAKEN:
        return exited(ref, now_s, is_lost=True, message=_FORGOTTEN)
    message = END_MESSAGES.get(end.word, "")
    if message:
        return exited(ref, now_s, signal=signal or 15, message=message)
    if signal is None and exit_code:
        said = (spool.read(ref, "slurm.out", 0, 4096) or b"").decode(errors="replace")
        message = next(iter(said.strip().splitlines()[-1:]), "")
    return exited(
        ref, now_s, exit_code=exit_code if signal is None else None, signal=signal, message=message
    )


def exit_of(ref: TaskRef, record: Record) -> TaskExited:
    """Return the end that the runner wrote down."""
    end = record.end
    told = exited(
        ref,
        float(end.get("at_s", 0.0)),
        exit_code=end.get("exit_code"),
        signal=end.get("signal"),
        message=str(end.get("message", "")),
    )
    return msgspec.structs.replace(told, marks=record.marks)


def explained(end: TaskExited, record: Record, word: str) -> TaskExited:
    """Return an end with what Slurm says of it, where Slurm made it."""
    if record.is_final:
        return end
    is_lost = word in LOST_STATES
    message = LOST_STATES.get(word) or END_MESSAGES.get(word) or end.message
    return msgspec.structs.replace(end, is_lost=is_lost, message=message)


def exited(
    ref: TaskRef,
    at_s: float,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    is_lost: bool = False,
    message: str = "",
) -> TaskExited:
    """Return the event that a task has ended."""
    return TaskExited(
        at_s=at_s, job_id=ref.job_id, attempt=ref.attempt, task=ref.task, exit_code=exit_code,
        signal=signal, is_lost=is_lost, message=message,
    )  # fmt: skip
