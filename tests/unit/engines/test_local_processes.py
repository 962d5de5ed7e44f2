"""Tasks that misbehave, and what the local engine makes of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
from localbench import (
    STUBBORN_TREE,
    bench_of,
    is_gone,
    needs_root,
    printed_pid,
    run,
    text_of,
    until,
)  # fmt: skip

from tercio.engines.base import ExecRequest, LogQuery
from tercio.engines.local import found, records
from tercio.engines.local.engine import LocalEngine
from tercio.errors import EngineError, UserError
from tercio.model.events import TaskLaunchFailed


def test_the_whole_tree_is_killed_after_the_grace(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": STUBBORN_TREE})
            pids = [await printed_pid(bench, ref, name) for name in ("child", "orphan")]
            await bench.engine.stop(bench.stop_order(ref, grace_s=0.1))
            end = await bench.exit_of(ref)
            assert end.signal == signal.SIGKILL
            assert end.message == "killed at the end of its grace"
            assert all(is_gone(pid) for pid in pids)

    run(check())


def test_what_a_finished_command_leaves_behind_is_killed(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            command = "setsid sleep 600 & echo child $!; exit 4"
            _, ref = await bench.start({"command": command})
            end = await bench.exit_of(ref)
            assert end.exit_code == 4
            pid = int((await text_of(bench, ref))[0].split()[1])
            assert is_gone(pid)

    run(check())


def test_a_child_may_use_the_grace_after_its_shell_has_gone(root: Path) -> None:
    saver = "trap 'sleep 0.2; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"

    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": f'bash -c "{saver}"\necho after'})
            await bench.until_printed(ref, "ready")
            await bench.engine.stop(bench.stop_order(ref, grace_s=60.0))
            end = await bench.exit_of(ref)
            assert end.signal == signal.SIGTERM
            texts = await text_of(bench, ref)
            assert "saved" in texts
            assert "after" not in texts

    run(check())


def test_a_checkpoint_signal_reaches_a_shell_that_traps_it(root: Path) -> None:
    command = "trap 'echo saved; exit 0' USR1; echo ready; while :; do sleep 0.05; done"

    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": command})
            await bench.until_printed(ref, "ready")
            order = bench.stop_order(ref, grace_s=60.0)
            await bench.engine.stop(msgspec.structs.replace(order, signal="SIGUSR1"))
            assert (await bench.exit_of(ref)).exit_code == 0
            assert "saved" in await text_of(bench, ref)

    run(check())


def test_no_signal_is_ignored_or_blocked_at_the_start(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "grep -E '^Sig(Ign|Blk)' /proc/self/status"})
            await bench.exit_of(ref)
            # Signals 32 and 33 belong to the C library (signal(7)); nobody else may set them.
            libc = 0b11 << 31
            masks = [line.split()[1] for line in await text_of(bench, ref)]
            assert [int(mask, 16) & ~libc for mask in masks] == [0, 0]

    run(check())


@needs_root
def test_a_full_disk_loses_output_but_not_the_end(root: Path) -> None:
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(root)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a small file system here")

    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "seq 1 500000; exit 3"})
            assert (await bench.exit_of(ref)).exit_code == 3
            assert (await text_of(bench, ref))[:2] == ["1", "2"]
            full = await bench.engine.launch(bench.order({"command": "echo never"}), {})
            assert isinstance(full, TaskLaunchFailed)
            assert full.is_retryable
            assert "No space left" in full.message

    try:
        run(check())
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_a_flood_stays_within_the_cap_and_blocks_nothing(root: Path) -> None:
    cap = 2 * 1024**2

    async def check() -> None:
        async with bench_of(root, log_cap_bytes=cap) as bench:
            command = "seq 1 1500000; echo last"
            _, ref = await bench.start({"command": command})
            end = await bench.exit_of(ref)
            assert end.exit_code == 0
            logs = found.task_directory(root, ref) / records.LOGS
            assert sum(path.stat().st_size for path in logs.iterdir()) <= cap
            tail = await bench.lines(ref, LogQuery(tail=2))
            assert [line.text for line in tail] == ["1500000", "last"]
            first = await anext(aiter(bench.engine.logs(ref, LogQuery())))
            assert (first.stream, first.text) == (
                "tercio",
                "older output was dropped (log limit)",
            )

    run(check())


def test_binary_and_huge_lines_are_kept_readable(root: Path) -> None:
    command = r"printf '\377\376\000x\n'; head -c 100000 /dev/zero | tr '\0' a; echo; echo end"

    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": command})
            await bench.exit_of(ref)
            lines = await bench.lines(ref, LogQuery())
            assert lines[0].text == "��\x00x"
            assert lines[-1].text == "end"
            huge = lines[1:-1]
            assert "".join(line.text for line in huge) == "a" * 100_000
            assert [line.is_partial for line in huge] == [True] * (len(huge) - 1) + [False]

    run(check())


def test_a_prompt_without_newline_is_seen_while_the_task_runs(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "printf 'prompt> '; exec sleep 600"})
            line = await anext(aiter(bench.engine.logs(ref, LogQuery(is_following=True))))
            assert (line.text, line.is_partial) == ("prompt> ", True)

    run(check())


def test_streams_are_told_apart(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "echo a; echo b >&2"})
            await bench.exit_of(ref)
            lines = await bench.lines(ref, LogQuery())
            assert sorted((line.stream, line.text) for line in lines) == [
                ("err", "b"),
                ("out", "a"),
            ]

    run(check())


def test_many_tasks_that_exit_at_once(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            started = await asyncio.gather(
                *(bench.start({"command": f"exit {n}"}) for n in range(12))
            )
            ends = [await bench.exit_of(ref) for _, ref in started]
            assert [end.exit_code for end in ends] == list(range(12))

    run(check())


def test_a_failing_setup_fails_the_task_before_its_command(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"setup": "echo setup; exit 5", "command": "echo run"})
            end = await bench.exit_of(ref)
            assert (end.exit_code, end.message) == (5, "setup failed with code 5")
            assert await text_of(bench, ref) == ["setup"]
            _, good = await bench.start({"setup": "echo setup", "command": "echo run"})
            assert (await bench.exit_of(good)).exit_code == 0
            assert await text_of(bench, good) == ["setup", "run"]

    run(check())


def test_a_task_stopped_in_its_setup_is_no_success(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            setup = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
            _, ref = await bench.start({"setup": setup, "command": "echo run"})
            await bench.until_printed(ref, "ready")
            await bench.engine.stop(bench.stop_order(ref, grace_s=60.0))
            end = await bench.exit_of(ref)
            assert end.exit_code != 0
            assert end.message == "stopped during setup"
            assert "run" not in await text_of(bench, ref)

    run(check())


async def read_all(session: object) -> bytes:
    output = b""
    while chunk := await session.read():  # type: ignore[attr-defined]
        output += chunk
    return output


def test_a_terminal_has_its_size_and_its_user(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "exec sleep 600"})
            argv = ("bash", "-c", "stty size; tty >/dev/null && echo terminal; exit 3")
            request = ExecRequest(argv=argv, has_terminal=True, rows=40, columns=120)
            session = await bench.engine.execute(ref, request)
            output = await read_all(session)
            assert output.split() == [b"40", b"120", b"terminal"]
            assert await session.wait() == 3
            await session.close()

    run(check())


def test_closing_a_session_ends_its_command(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "exec sleep 600"})
            argv = ("bash", "-c", "echo $$; exec sleep 600")
            session = await bench.engine.execute(ref, ExecRequest(argv=argv))
            pid = int(await session.read())
            pidfd = os.pidfd_open(pid)
            await session.close()
            await wait_readable(pidfd)
            os.close(pidfd)
            assert bench.exits_of(ref) == []

    run(check())


async def wait_readable(fd: int) -> None:
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, gone.set)
    async with asyncio.timeout(10):
        await gone.wait()
    asyncio.get_running_loop().remove_reader(fd)


def test_a_shell_in_a_task_does_not_hold_up_its_end(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "exec sleep 600"})
            argv = ("bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
            session = await bench.engine.execute(ref, ExecRequest(argv=argv))
            assert await session.read() == b"ready\n"
            await bench.engine.stop(bench.stop_order(ref, grace_s=600.0))
            assert (await bench.exit_of(ref)).signal == signal.SIGTERM
            assert await session.wait() == 137
            await session.close()

    run(check())


def test_a_command_that_is_not_there(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "exec sleep 600"})
            with pytest.raises(EngineError, match="no-such-program"):
                await bench.engine.execute(ref, ExecRequest(argv=("no-such-program",)))
            await bench.engine.stop(bench.stop_order(ref, grace_s=5.0))
            await bench.exit_of(ref)
            with pytest.raises(EngineError, match="does not run"):
                await bench.engine.execute(ref, ExecRequest(argv=("true",)))

    run(check())


async def until_state(pid: int, state: str) -> None:
    await until(lambda: (records.stat_fields(pid) or ["gone"])[0] == state)


def test_suspension_really_stops_the_task(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            _, ref = await bench.start({"command": "echo task $$; sleep 600; true"})
            pid = await printed_pid(bench, ref, "task")
            await bench.engine.signal(bench.signal_order(ref, "SIGSTOP"))
            await until_state(pid, "T")
            await bench.engine.signal(bench.signal_order(ref, "SIGCONT"))
            await until_state(pid, "S")

    run(check())


def test_forgetting_the_last_task_removes_everything(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            order, ref = await bench.start({"command": "true"})
            await bench.exit_of(ref)
            bench.started.remove(ref)
            await bench.engine.forget([ref])
            assert not (root / order.job_id).exists()

    run(check())


def test_a_snapshot_that_is_unknown(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            engine = bench.engine
            assert isinstance(engine, LocalEngine)

            def unknown(name: str) -> Path:
                raise UserError(f"no snapshot {name}", code="not_found")

            engine._workdir_of = unknown
            answer = await engine.launch(bench.order({"command": "", "workdir": "gone"}), {})
            assert isinstance(answer, TaskLaunchFailed)
            assert "no snapshot gone" in answer.message

    run(check())
