"""The same work on many parts, in several processes where that is worth while.

Processes are begun anew (`spawn`), so that no thread and no open file of this one gets into them;
that costs each of them half a second, which is why the first part is done here and tells whether
the rest is worth it. The results come in the order of the parts whatever the number of processes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tercio.errors import UserError

if TYPE_CHECKING:
    from concurrent.futures import Future

Context = TypeVar("Context")
Part = TypeVar("Part")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

_MOST: Final = 256
_WORTH_S: Final = 3.0
"""Work that is left, in seconds, from which on further processes are begun."""

_held: list[Any] = []
"""In a process of the pool: the work and its context."""


def processes_option(function: Function) -> Function:
    """Add `--processes` to a command; None leaves the number to the machine."""
    return click.option(
        "--processes", type=click.IntRange(1, _MOST), metavar="N",
        help="Side by side; else one per core where it takes long.",
    )(function)  # fmt: skip


def in_processes(
    work: Callable[[Context, Part], Result],
    context: Context,
    parts: Sequence[Part],
    *,
    processes: int | None,
    tell: Callable[[Result, int, int], None],
) -> list[Result]:
    """Do the work on every part and return the results in the order of the parts.

    Args:
        work: a function of a module.
        context: the same for all; sent to every process once.
        parts: what to do.
        processes: how many; None: as many as there are cores, when what is left after the first
            part takes long enough.
        tell: told a result as soon as it is there, the parts done and in all.
    """
    done: list[Result] = []
    if processes is None:
        begun_s = time.monotonic()
        for part in parts[:1]:
            done.append(work(context, part))
            tell(done[-1], len(done), len(parts))
        left_s = (time.monotonic() - begun_s) * (len(parts) - len(done))
        processes = _cores() if left_s > _WORTH_S else 1
    processes = min(processes, len(parts) - len(done))
    if processes > 1:
        left = parts[len(done) :]
        return done + _spread(work, context, left, processes=processes, whole=len(parts), tell=tell)
    for part in parts[len(done) :]:
        done.append(work(context, part))
        tell(done[-1], len(done), len(parts))
    return done


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # those that this process may use
    return os.cpu_count() or 1


def _spread(
    work: Callable[[Context, Part], Result],
    context: Context,
    parts: Sequence[Part],
    *,
    processes: int,
    whole: int,
    tell: Callable[[Result, int, int], None],
) -> list[Result]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_hold,
        initargs=(work, context),
    )
    try:
        with _interrupts_kept_here():
            futures: list[Future[Result]] = [pool.submit(_do, part) for part in parts]
        for count, future in enumerate(as_completed(futures), whole - len(parts) + 1):
            tell(future.result(), count, whole)
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise UserError(
            "a process ended before its work was done",
            field="processes",
            hint="it may have had too little memory: try fewer with --processes",
        ) from error
    finally:
        # After Ctrl-C or an error nobody waits for what has been begun.
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_kept_here() -> Iterator[None]:
    """Begin processes that never see Ctrl-C: this one does, and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold(work: Callable[..., Any], context: object) -> None:
    """Begin a process of the pool, which ends with its parent."""
    import multiprocessing

    from tercio.cli.long_run import seldom_collected

    rarely = seldom_collected()
    rarely.__enter__()  # for good
    _held[:] = [work, context, rarely]
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _do(part: object) -> Any:
    work, context, _ = _held
    return work(context, part)
