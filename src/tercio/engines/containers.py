"""Which container program a machine has, found by running it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

import msgspec

from tercio.launch.containers import LOCAL_PROGRAMS
from tercio.model.node import NO_CONTAINERS

AUTO: Final = "auto"
OFF: Final = "off"
CHOICES: Final = (AUTO, OFF, *LOCAL_PROGRAMS)
PASSED_ENV: Final = (
    "DOCKER_HOST", "DOCKER_CONFIG", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
    "XDG_RUNTIME_DIR", "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "SINGULARITY_CACHEDIR",
    "SINGULARITY_TMPDIR",
)  # fmt: skip
"""Variables of the server that the programs themselves read."""
_TRY_S: Final = 10.0
_MISSING: Final = "no docker, podman or apptainer is installed"


class ContainerProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What runs images here.

    Attributes:
        name: one of `LOCAL_PROGRAMS`, or empty for none.
        path: where it is.
        why: why there is none, for people.
    """

    name: str = ""
    path: str = ""
    why: str = _MISSING

    @property
    def label(self) -> str:
        """The value of the node's label."""
        return self.name or NO_CONTAINERS


def find_program(wanted: str = AUTO) -> ContainerProgram:
    """Return the program to use: the wanted one, or the first that answers. Blocks."""
    if wanted == OFF:
        return ContainerProgram(why="containers are switched off (local.containers)")
    why = [] if wanted == AUTO else [f"{wanted} is not installed"]
    for name in LOCAL_PROGRAMS if wanted == AUTO else (wanted,):
        path = shutil.which(name)
        if path is None:
            continue
        problem = _try(name, path)
        if not problem:
            return ContainerProgram(name=name, path=path, why="")
        why = [each for each in why if not each.startswith(f"{name} is not")]
        why.append(f"{name}: {problem}")
    return ContainerProgram(why="; ".join(why) or _MISSING)


def _try(name: str, path: str) -> str:
    """Return why a program does not work, or an empty string."""
    # Docker without its daemon still prints its own version.
    words = ["info", "--format", "{{.ServerVersion}}"] if name == "docker" else ["--version"]
    try:
        done = subprocess.run(
            [path, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer in {_TRY_S:.0f}s"
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
