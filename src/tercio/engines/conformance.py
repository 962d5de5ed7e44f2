"""The contract of an engine as checks that run: in tests, and on a live site.

A check that needs an ability the engine says it lacks is skipped, with the engine's own note.
On a live site use a tasks directory of its own: checks send orders of a made-up server run.

>>> len({check.id for check in CHECKS}) == len(CHECKS)
True
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tercio.engines.base import (
    Capabilities,
    Engine,
    ExecRequest,
    LogQuery,
    MarkingEngine,
    TaskRef,
)
from tercio.engines.bench import (
    DEADLINE_S,
    EPOCH,
    LONG_S,
    Bench,
    Failure,
    Programs,
    ShellPrograms,
    ref_of,
    require,
)
from tercio.errors import TercioError
from tercio.model.events import TaskLaunchFailed, TaskStarted
from tercio.model.ids import JobId


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of the contract.

    Attributes:
        id: stable name.
        promise: the promise in words.
        needs: capabilities without which it is skipped.
        run: raises Failure when it is broken.
    """

    id: str
    promise: str
    needs: tuple[str, ...]
    run: Callable[[Bench], Awaitable[None]]

    def skip_reason(self, capabilities: Capabilities) -> str | None:
        """Return why the check does not apply, or None when it does."""
        for name in self.needs:
            if not getattr(capabilities, name):
                note = capabilities.notes.get(name, "the engine does not say why")
                return f"no {name}: {note}"
        return None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one check: `passed`, `failed` or `skipped`, and why."""

    id: str
    promise: str
    status: str
    reason: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one engine."""

    kind: str
    site: str
    outcomes: tuple[Outcome, ...]

    @property
    def is_passed(self) -> bool:
        """Whether no check failed."""
        return all(outcome.status != "failed" for outcome in self.outcomes)


async def run_check(
    check: Check,
    connect: Callable[[], Engine],
    *,
    programs: Programs,
    user: str = "root",
    deadline_s: float = DEADLINE_S,
) -> Outcome:
    """Run one check on an engine of its own; never raises for what the engine does."""
    bench = Bench(connect, programs, user=user, deadline_s=deadline_s)
    try:
        await bench.open()
        reason = check.skip_reason(bench.engine.capabilities)
        try:
            if reason is None:
                await check.run(bench)
        finally:
            await bench.close()
    except (Failure, TercioError, TimeoutError) as error:
        why = str(error) or type(error).__name__
        return Outcome(id=check.id, promise=check.promise, status="failed", reason=why)
    status = "passed" if reason is None else "skipped"
    return Outcome(id=check.id, promise=check.promise, status=status, reason=reason or "")


async def run_conformance(
    connect: Callable[[], Engine],
    *,
    programs: Programs | None = None,
    user: str = "root",
    deadline_s: float = DEADLINE_S,
) -> Report:
    """Run every check, each on a fresh engine from `connect`, and report.

    `connect` returns a new, unopened engine of the same site each time: some checks restart.
    `user` is whom the checks' tasks belong to.
    """
    probe = connect()
    outcomes = [
        await run_check(
            check,
            connect,
            programs=programs or ShellPrograms(),
            user=user,
            deadline_s=deadline_s,
        )
        for check in CHECKS
    ]
    return Report(kind=probe.kind, site=probe.site, outcomes=tuple(outcomes))


async def _reports_nodes(bench: Bench) -> None:
    for node in bench.nodes:
        require(node.site == bench.engine.site, f"{node.name} is of site {node.site}")
        indexes = [device.index for device in node.devices]
        require(indexes == list(range(len(indexes))), f"device indexes {indexes} have gaps")


async def _tells_exit_codes(bench: Bench) -> None:
    refs = []
    for code in (0, 3, 0, 3):
        _, ref = await bench.start(bench.programs.exits(code))
        refs.append(ref)
        end = await bench.exit_of(ref)
        told = (end.exit_code, end.signal, end.is_lost)
        require(told == (code, None, False), f"a task that exits with {code} gave {end}")
    counts = [len(bench.exits_of(ref)) for ref in refs]
    require(counts == [1] * len(refs), f"ends were told {counts} times")


async def _launches_once(bench: Bench) -> None:
    order, ref = await bench.start(bench.programs.refuses_to_stop())
    first = await bench.engine.launch(order, {})
    again = await bench.engine.launch(order, {})
    require(isinstance(again, TaskStarted) and first == again, f"{first}, then {again}")
    await bench.until_printed(ref, "ready")
    lines = [line.text for line in await bench.lines(ref, LogQuery()) if line.text == "ready"]
    require(lines == ["ready"], "a repeated order started the command again")


async def _launches_once_at_once(bench: Bench) -> None:
    order = bench.order(bench.programs.refuses_to_stop())
    ref = ref_of(order)
    bench.started.append(ref)
    answers = await asyncio.gather(*(bench.engine.launch(order, {}) for _ in range(4)))
    require(all(isinstance(a, TaskStarted) for a in answers), f"answers: {answers}")
    await bench.until_printed(ref, "ready")
    lines = [line.text for line in await bench.lines(ref, LogQuery()) if line.text == "ready"]
    require(lines == ["ready"], "simultaneous orders started the command more than once")


async def _answers_launch_after_end(bench: Bench) -> None:
    order, ref = await bench.start(bench.programs.prints(["once"]))
    end = await bench.exit_of(ref)
    answer = await bench.engine.launch(order, {})
    require(isinstance(answer, TaskStarted), f"a repeated order gave {answer}")
    again = await bench.exit_of(ref, count=2)
    require(again == end, f"the end was told as {end}, then as {again}")
    lines = [line.text for line in await bench.lines(ref, LogQuery())]
    require(lines.count("once") == 1, "a repeated order ran an ended task again")


async def _fences_older_runs(bench: Bench) -> None:
    await bench.start(bench.programs.exits(0))
    order = bench.order(bench.programs.exits(0), epoch=EPOCH - 1)
    answer = await bench.engine.launch(order, {})
    require(isinstance(answer, TaskLaunchFailed), f"an order of an older run gave {answer}")
    require(not getattr(answer, "is_retryable", True), "a fenced order must not be retryable")


async def _refuses_unknown_node(bench: Bench) -> None:
    order = bench.order({**bench.programs.exits(0), "node": "no-such-node"})
    answer = await bench.engine.launch(order, {})
    require(isinstance(answer, TaskLaunchFailed), f"an unknown node gave {answer}")


async def _refuses_missing_secret(bench: Bench) -> None:
    order = bench.order({**bench.programs.exits(0), "secrets": ("TOKEN",)})
    answer = await bench.engine.launch(order, {})
    require(isinstance(answer, TaskLaunchFailed), f"a missing secret gave {answer}")
    require("TOKEN" in getattr(answer, "message", ""), "the message does not name the secret")


async def _stops_in_grace(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.runs())
    await bench.engine.stop(bench.stop_order(ref, grace_s=LONG_S))
    end = await bench.exit_of(ref)
    require(not end.is_lost, f"a stopped task was told as lost: {end}")
    require(end.exit_code != 0, f"a task ended by a signal was told as a success: {end}")


async def _kills_after_grace(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.refuses_to_stop())
    await bench.until_printed(ref, "ready")
    await bench.engine.stop(bench.stop_order(ref, grace_s=0.2))
    end = await bench.exit_of(ref)
    require(end.signal == 9 or end.exit_code == 137, f"the end was not SIGKILL: {end}")


async def _stop_shortens_grace(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.refuses_to_stop())
    await bench.until_printed(ref, "ready")
    await bench.engine.stop(bench.stop_order(ref, grace_s=LONG_S))
    await bench.engine.stop(bench.stop_order(ref, grace_s=0.1))
    await bench.exit_of(ref)


async def _stop_fences_a_launch(bench: Bench) -> None:
    order = bench.order(bench.programs.exits(0))
    ref = ref_of(order)
    await bench.engine.stop(bench.stop_order(ref, grace_s=0.1))
    end = await bench.exit_of(ref)
    require(end.is_lost, f"a task that never started ended as {end}")
    answer = await bench.engine.launch(order, {})
    require(isinstance(answer, TaskLaunchFailed), f"a stopped task could be launched: {answer}")
    await bench.engine.forget([ref])


async def _stop_tells_the_end_again(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.exits(3))
    end = await bench.exit_of(ref)
    await bench.engine.stop(bench.stop_order(ref, grace_s=0.1))
    again = await bench.exit_of(ref, count=2)
    require(again == end, f"the end was told as {end}, then as {again}")


async def _reads_logs(bench: Bench) -> None:
    texts = [f"line-{number}" for number in range(20)]
    _, ref = await bench.start(bench.programs.prints(texts))
    followed = await bench.lines(ref, LogQuery(is_following=True))
    require([line.text for line in followed] == texts, f"followed: {followed}")
    await bench.exit_of(ref)
    whole = await bench.lines(ref, LogQuery())
    require(whole == followed, "the log of an ended task is another one")
    tail = await bench.lines(ref, LogQuery(tail=3))
    require(tail == whole[-3:], f"the last 3 lines: {tail}")
    since = await bench.lines(ref, LogQuery(since_s=whole[-1].at_s + 1.0))
    require(since == [], f"lines from the future: {since}")
    require(
        await bench.lines(ref, LogQuery(since_s=whole[0].at_s)) == whole, "since the first line"
    )
    none = TaskRef(job_id=JobId("conformance-none"), attempt=1, task=0, node=ref.node)
    require(await bench.lines(none, LogQuery()) == [], "an unknown task has a log")


async def _signals(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.runs())
    await bench.engine.signal(bench.signal_order(ref, "SIGKILL"))
    end = await bench.exit_of(ref)
    require(end.signal == 9 or end.exit_code == 137, f"SIGKILL gave {end}")
    await bench.engine.signal(bench.signal_order(ref, "SIGUSR1"))


async def _suspends(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.runs())
    await bench.engine.signal(bench.signal_order(ref, "SIGSTOP"))
    await bench.engine.signal(bench.signal_order(ref, "SIGCONT"))
    await bench.engine.signal(bench.signal_order(ref, "SIGSTOP"))
    await bench.engine.stop(bench.stop_order(ref, grace_s=LONG_S))
    end = await bench.exit_of(ref)
    require(not end.is_lost, f"a suspended task could not be stopped: {end}")


async def _executes(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.runs())
    script = 'read word; echo "$word $TERCIO_JOB"; exit 7'
    session = await bench.engine.execute(ref, ExecRequest(argv=("/bin/sh", "-c", script)))
    await session.write(b"hello\n")
    output = b""
    while chunk := await session.read():
        output += chunk
    code = await session.wait()
    await session.close()
    require(output.decode() == f"hello {ref.job_id}\n", f"the command printed {output!r}")
    require(code == 7, f"the command's exit code was told as {code}")


async def _forgets(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.prints(["text"]))
    await bench.exit_of(ref)
    bench.started.remove(ref)
    await bench.engine.forget([ref])
    require(await bench.lines(ref, LogQuery()) == [], "a forgotten task still has a log")
    await bench.engine.forget([ref])


async def _forget_spares_running(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.refuses_to_stop())
    await bench.until_printed(ref, "ready")
    await bench.engine.forget([ref])
    require(await bench.lines(ref, LogQuery()) != [], "a running task was forgotten")


async def _adopts_running(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.runs())
    unknown = await bench.restart([ref])
    require(unknown == [], f"a known task was returned as unknown: {unknown}")
    require(bench.exits_of(ref) == [], "a running task was told as ended")
    await bench.engine.stop(bench.stop_order(ref, grace_s=LONG_S))
    end = await bench.exit_of(ref)
    require(not end.is_lost, f"an adopted task was lost: {end}")


async def _returns_unknown(bench: Bench) -> None:
    order, ref = await bench.start(bench.programs.runs())
    require(await bench.restart([]) == [ref], "a running task was not found")
    answer = await bench.engine.launch(order, {})
    require(isinstance(answer, TaskStarted), f"the order of a running task gave {answer}")


async def _tells_ends_while_away(bench: Bench) -> None:
    _, ref = await bench.start(bench.programs.exits(3))
    # Its log ends when it has ended.
    await bench.lines(ref, LogQuery(is_following=True))
    await bench.restart([ref])
    end = await bench.exit_of(ref)
    require(end.exit_code == 3 and not end.is_lost, f"an end while away was told as {end}")


async def _reads_marks(bench: Bench) -> None:
    require(isinstance(bench.engine, MarkingEngine), "reads_marks without `marks`")
    assert isinstance(bench.engine, MarkingEngine)
    # Half a line and bytes that are no text are not taken for marks.
    script = """
    printf '1.5 step 1\\n2.5 st' >> "$TERCIO_MARKS"; echo half
    until [ -e "$TERCIO_TASK_DIR/go" ]; do sleep 0.05; done
    printf 'ep 2\\n\\377\\n3.5 step 3\\n' >> "$TERCIO_MARKS"; echo whole; exec sleep 600
    """
    _, ref = await bench.start({"command": script})
    await bench.until_printed(ref, "half")
    ((text, offset),) = await bench.engine.marks([(ref, 0)])
    require((text, offset) == ("1.5 step 1\n", 11), f"half a line was read as {text!r}")
    go = ExecRequest(argv=("/bin/sh", "-c", 'touch "$TERCIO_TASK_DIR/go"'))
    session = await bench.engine.execute(ref, go)
    await session.wait()
    await session.close()
    await bench.until_printed(ref, "whole")
    stranger = msgspec.structs.replace(ref, task=7)
    (text, offset), nothing = await bench.engine.marks([(ref, offset), (stranger, 0)])
    require(text.splitlines()[::2] == ["2.5 step 2", "3.5 step 3"], f"then came {text!r}")
    require(nothing == ("", 0), f"a task without marks gave {nothing}")
    ((text, after),) = await bench.engine.marks([(ref, offset)])
    require((text, after) == ("", offset), f"marks were told twice: {text!r}")
    await bench.engine.stop(bench.stop_order(ref, grace_s=0.0))
    marks = (await bench.exit_of(ref)).marks
    require(marks is not None and marks.step_count == 3, f"the end was told with marks {marks}")


async def _tells_missing_as_lost(bench: Bench) -> None:
    node = bench.nodes[0].name
    ref = TaskRef(job_id=JobId("conformance-missing"), attempt=1, task=0, node=node)
    await bench.restart([ref])
    end = await bench.exit_of(ref)
    require(end.is_lost, f"a task that is not there was told as {end}")


async def _cuts_devices(bench: Bench) -> None:
    one, two = bench.cut_order(1, 1), bench.cut_order(2, 2)
    first = await bench.reconfigure(one)
    require(first.is_done and first.mig is not None, f"a device could not be cut: {first}")
    again = await bench.reconfigure(one)
    require(again.mig == first.mig, f"a repeated order gave {again}")
    second = await bench.reconfigure(two)
    require(second.is_done and second.mig is not None, f"no second slice was made: {second}")
    before, after = (each.mig.slices if each.mig else () for each in (first, second))
    require(set(after) > set(before), f"{before} became {after}: a wanted slice was touched")
    uuids = {part.uuid for part in after}
    require("" not in uuids and len(uuids) == len(after), f"slices without own identity: {after}")
    late = await bench.reconfigure(one)
    require(not late.is_done, "an order with an older number was carried out")
    old = msgspec.structs.replace(bench.cut_order(3, 0), epoch=EPOCH - 1)
    require(not (await bench.reconfigure(old)).is_done, "an older run's order was carried out")
    whole = await bench.reconfigure(bench.cut_order(4, 0))
    is_whole = whole.mig is not None and not whole.mig.is_on and not whole.mig.slices
    require(whole.is_done and is_whole, f"a device could not be made whole: {whole}")


async def _refuses_to_cut_unknown(bench: Bench) -> None:
    order = msgspec.structs.replace(bench.cut_order(1, 1), index=4096)
    answer = await bench.reconfigure(order)
    require(not answer.is_done and bool(answer.message), f"an unknown device gave {answer}")


def _check(run: Callable[[Bench], Awaitable[None]], promise: str, *needs: str) -> Check:
    name = getattr(run, "__name__", "").strip("_").replace("_", "-")
    return Check(id=name, promise=promise, needs=needs, run=run)


CHECKS: Final = (
    _check(_reports_nodes, "open reports nodes of this site, with devices numbered from 0"),
    _check(_tells_exit_codes, "the end of a task is told with its exit code"),
    _check(_launches_once, "a repeated order finds the first start and answers it again"),
    _check(_launches_once_at_once, "simultaneous orders start one task"),
    _check(_answers_launch_after_end, "an order for an ended task is answered, not run again"),
    _check(_fences_older_runs, "an order of an older server run is refused for good"),
    _check(_refuses_unknown_node, "an order for an unknown node is refused"),
    _check(_refuses_missing_secret, "an order whose secret has no value is refused by name"),
    _check(_stops_in_grace, "a task that heeds its signal ends long before its grace"),
    _check(_kills_after_grace, "a task that ignores its signal is killed after its grace"),
    _check(_stop_shortens_grace, "a second stop can shorten the grace"),
    _check(_stop_fences_a_launch, "a task stopped before its start is told lost, and never starts"),
    _check(_stop_tells_the_end_again, "a stop of an ended task tells its end again"),
    _check(_reads_logs, "logs are whole while running and after, by tail and by instant"),
    _check(_signals, "a signal reaches the task; one to an ended task is no error", "signals"),
    _check(_suspends, "a suspended task resumes, and can be stopped", "suspends"),
    _check(_executes, "a command runs inside a task, with its environment", "executes"),
    _check(
        _reads_marks,
        "what a task marks is read while it runs, and told with its end",
        "reads_marks",
        "executes",
    ),
    _check(_forgets, "a forgotten task leaves nothing"),
    _check(_forget_spares_running, "a running task is not forgotten"),
    _check(_adopts_running, "a running task is adopted after a restart", "survives_server"),
    _check(_returns_unknown, "adopt returns what runs and is not known", "survives_server"),
    _check(_tells_ends_while_away, "an end while the server was away is told", "survives_server"),
    _check(_tells_missing_as_lost, "a known task that is not there is told lost"),
    _check(
        _cuts_devices,
        "a device gets the slices that are ordered; wanted ones stay, old orders are refused",
        "cuts_devices",
    ),
    _check(_refuses_to_cut_unknown, "an order to cut an unknown device is refused", "cuts_devices"),
)
