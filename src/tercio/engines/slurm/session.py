"""A command inside a running task: a job step of `srun --overlap`, with the task's environment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tercio.engines.base import ExecRequest
from tercio.engines.streams import Ends, Streams, open_ends
from tercio.errors import EngineError

_END_S: Final = 5.0


def step_words(number: int, runner: Sequence[str], request: ExecRequest) -> list[str]:
    """Return the `srun` that runs a command beside the task."""
    words = [
        "srun", f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1", "--quiet",
        "--unbuffered", "--input=0" if not request.has_terminal else "--pty",
        "--mem=0", "--gres=none", "--mpi=none",
    ]  # fmt: skip
    return [*words, *runner, "--", *request.argv]


async def open_session(
    command: Sequence[str],
    options: dict[str, Any],
    request: ExecRequest,
    *,
    read_code: Callable[[], bytes | None],
) -> StepSession:
    """Start the step; `read_code` reads the record of its end. Raises EngineError."""
    ends = open_ends(request)
    stdin, stdout, stderr = ends.theirs
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, **options
        )
    except OSError as failure:
        ends.close_ours()
        raise EngineError(
            f"{command[0]}: {failure.strerror}", engine="slurm", operation="execute",
            retryable=False,
        ) from failure  # fmt: skip
    finally:
        ends.close_theirs()
    return StepSession(child, ends, has_terminal=request.has_terminal, read_code=read_code)


class StepSession(Streams):
    """See `base.ExecSession`."""

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        ends: Ends,
        *,
        has_terminal: bool,
        read_code: Callable[[], bytes | None],
    ) -> None:
        self._child = child
        self._read_code = read_code
        end = asyncio.get_running_loop().create_task(child.wait())
        super().__init__(ends, end, has_terminal=has_terminal)

    async def wait(self) -> int:
        """Return its exit code, 128 + signal when a signal ended it."""
        code = await asyncio.shield(self._end)
        record = await asyncio.to_thread(self._read_code)
        if record:
            return int(msgspec.json.decode(record, type=dict[str, int])["code"])
        return 128 - code if code < 0 else code

    async def close(self) -> None:
        """End it if it still runs: `srun` passes the signal on to its step."""
        if self._child.returncode is None:
            self._child.terminate()
            try:
                async with asyncio.timeout(_END_S):
                    await asyncio.shield(self._end)
            except TimeoutError:
                self._child.kill()
        await asyncio.gather(self._end, return_exceptions=True)
        self.close_streams()
