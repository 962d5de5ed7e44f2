"""A process that answers one long question: `python -m tercio.api.child TASK SECONDS`.

The body comes on stdin. It writes the answer's JSON to stdout and exits 0, or a `Refusal` and
exits `REFUSED`. It gives way to the server, and ends by itself should the server be gone.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from tercio.api.children import REFUSED, Refusal
from tercio.errors import UserError

_NICE: Final = 10


def task_named(name: str) -> Callable[[bytes], msgspec.Struct]:
    """Return what answers a question; only the packages that it needs are read."""
    if name.startswith("size_"):
        from tercio.api.size_answers import TASKS as SIZING

        return SIZING[name]
    from tercio.api.twin_answers import TASKS as TWIN

    return TWIN[name]


def main(task: str, seconds: int) -> int:
    """Answer one question within so much processor time; returns the exit code."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        answer = task_named(task)(sys.stdin.buffer.read())
        code = 0
    except UserError as error:
        answer = Refusal(message=error.message, code=error.code, field=error.field, hint=error.hint)
        code = REFUSED
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
