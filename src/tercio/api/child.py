"""A process that answers one long question: `python -m tercio.api.child TASK`, body on stdin.

It writes the answer's JSON to stdout and exits 0, or a `Refusal` and exits `REFUSED`. It gives
way to the server, and ends by itself should the server be gone.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tercio.api.children import DEADLINE_S, REFUSED, Refusal
from tercio.api.size_answers import TASKS as SIZING
from tercio.errors import UserError

TASKS: Final[Mapping[str, Callable[[bytes], msgspec.Struct]]] = {**SIZING}
"""What is answered, by name."""
_NICE: Final = 10


def main(task: str) -> int:
    """Answer one question; returns the exit code."""
    os.nice(_NICE)
    seconds = int(DEADLINE_S) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        answer = TASKS[task](sys.stdin.buffer.read())
        code = 0
    except UserError as error:
        answer = Refusal(message=error.message, code=error.code, field=error.field, hint=error.hint)
        code = REFUSED
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
