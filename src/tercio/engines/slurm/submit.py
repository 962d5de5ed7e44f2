"""Submits a task: by `sbatch`, or by slurmrestd where its version can name the node.

The words of `sbatch` are the one description of a Slurm job here; for slurmrestd they are
translated, each by a rule of the table. Data versions before v0.0.40 (Slurm 23.11) have no field
for the node, so such a site is driven by the command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.commands import Commands, failure_of
from tercio.engines.slurm.order import STANDARD_PATH, Refused
from tercio.engines.slurm.rest import Rest, first_error
from tercio.engines.slurm.tables import is_passing
from tercio.errors import EngineError

FIRST_THAT_PINS: Final = 40


class Submitter(Protocol):
    """Hands a Slurm job in."""

    async def submit(self, words: Sequence[str], script: str, account: Account) -> int:
        """Return the number of the Slurm job.

        Raises:
            Refused: Slurm will not have it.
            EngineError: retryable; it may have got through all the same.
        """
        ...


class CommandSubmitter:
    """Submits by `sbatch`."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def submit(self, words: Sequence[str], script: str, account: Account) -> int:
        """See `Submitter.submit`."""
        done = await self._commands.run(words, stdin=script.encode(), account=account)
        if done.code:
            failure = failure_of("sbatch", done)
            if failure.retryable:
                raise failure
            raise Refused(failure.message.removeprefix("Batch job submission failed: "))
        number = done.out.decode().strip().partition(";")[0]
        if not number.isdigit():
            raise _error("sbatch", f"sbatch answered {number!r}")
        return int(number)


class RestSubmitter:
    """Submits by slurmrestd as the token's user; by `sbatch` what that cannot do."""

    def __init__(self, rest: Rest, otherwise: Submitter) -> None:
        self._rest = rest
        self._otherwise = otherwise

    async def submit(self, words: Sequence[str], script: str, account: Account) -> int:
        """See `Submitter.submit`."""
        version = await self._rest.find_version()
        if int(version.rpartition(".")[2]) < FIRST_THAT_PINS or not account.is_self:
            return await self._otherwise.submit(words, script, account)
        status, answer = await self._rest.post("job/submit", body_of(words, script, account))
        if status == 200 and not answer.get("errors") and isinstance(answer.get("job_id"), int):
            return int(answer["job_id"])
        why = first_error(answer)
        if is_passing(why) or status >= 502:
            raise _error("slurmrestd", f"job/submit answered {status}: {why}")
        raise Refused(why)


def body_of(words: Sequence[str], script: str, account: Account) -> dict[str, Any]:
    """Return the request of v0.0.40 and later that says what the words of `sbatch` say."""
    job: dict[str, Any] = {
        "script": script,
        "current_working_directory": "/",
        "environment": [
            f"PATH={STANDARD_PATH}", f"HOME={account.home}", f"USER={account.name}",
            f"LOGNAME={account.name}",
        ],
    }  # fmt: skip
    for word in words[1:]:
        name, _, value = word.partition("=")
        job |= _RULES[name](value)
    return {"job": job}


def _number(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda value: {name: {"number": int(value), "set": True, "infinite": False}}


def _text(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda value: {name: value}


def _signal(value: str) -> dict[str, Any]:
    name, _, delay_s = value.removeprefix("B:").partition("@")
    return {
        "kill_warning_signal": name,
        "kill_warning_flags": ["BATCH_JOB"],
        "kill_warning_delay": {"number": int(delay_s), "set": True, "infinite": False},
    }


def _gres(value: str) -> dict[str, Any]:
    return {"tres_per_node": ",".join(f"gres/{each}" for each in value.split(","))}


_RULES: Final = MappingProxyType[str, Callable[[str], dict[str, Any]]](
    {
        "--parsable": lambda _: {},
        "--export": lambda _: {},
        "--no-requeue": lambda _: {"requeue": False},
        "--nodes": lambda value: {"minimum_nodes": int(value), "maximum_nodes": int(value)},
        "--ntasks": lambda value: {"tasks": int(value)},
        "--job-name": _text("name"),
        "--comment": _text("comment"),
        "--partition": _text("partition"),
        "--cpus-per-task": lambda value: {"cpus_per_task": int(value)},
        "--mem": lambda value: _number("memory_per_node")(value.removesuffix("M")),
        "--output": _text("standard_output"),
        "--open-mode": lambda value: {"open_mode": [value.upper()]},
        "--input": _text("standard_input"),
        "--signal": _signal,
        "--nodelist": lambda value: {"required_nodes": [value]},
        "--gres": _gres,
        "--time": _number("time_limit"),
        "--account": _text("account"),
        "--qos": _text("qos"),
    }
)
"""What each word of `order.sbatch_words` is in a request."""


def _error(operation: str, message: str) -> EngineError:
    return EngineError(message, engine="slurm", operation=operation, retryable=True)
