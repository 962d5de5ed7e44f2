"""Container images: the words by which a container program runs a task.

A container here is packaging, not a wall: the task keeps the network and the shared memory of
its node, its own user, and only the devices that it was given. Everything it needs is at the
path that it has outside: its directory, its working directory, its outputs, its checkpoints.
`HOME` is the task's directory, since the user's own is not mounted. `PATH` is the image's.

| program | devices | stopped by | `/dev/shm` |
|---|---|---|---|
| docker | `--gpus device=UUID` | signals to what `docker top` lists | its own, or the node's |
| podman | CDI, `nvidia.com/gpu=UUID` | signals to what `podman top` lists | as docker |
| apptainer, singularity | `--nv`, `--rocm` | signals to its processes | the node's |
| pyxis (in Slurm) | Slurm's own | `srun` passes signals on | the node's |

One container holds `setup` and the command, so that what `setup` installs is there after it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

import msgspec

from tercio.model.effects import DeviceOrder
from tercio.model.job import Mount

ENTRY: Final = "tercio-entry.sh"
SETUP: Final = ".tercio-setup.sh"
RUN: Final = ".tercio-run.sh"
ENVIRONMENT: Final = ".tercio-env.sh"
DAEMON_PROGRAMS: Final = ("docker", "podman")
SHARED_SHM_PROGRAMS: Final = ("apptainer", "singularity", "pyxis")
LOCAL_PROGRAMS: Final = ("docker", "podman", "apptainer", "singularity")
"""Programs of a single machine, in the order in which they are looked for."""
_ONCE_RUNNING: Final = """\
name=$1; shift; tries=0
while [ $tries -lt 150 ] &&
[ "$("$0" inspect --format='{{.State.Running}}' "$name" 2>/dev/null)" != true ]
do tries=$((tries + 1)); sleep 0.2; done
exec "$0" "$@"
"""
"""Runs a command of the program once the container is up: a task is told as started before."""
_ENDING_SIGNALS: Final = (("HUP", 1), ("INT", 2), ("TERM", 15), ("USR1", 10), ("USR2", 12))
FILE_ENDINGS: Final = (".sif", ".sqsh", ".simg")


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in a container, as a program needs to hear it.

    Attributes:
        image: as the job wrote it.
        name: unique on the node.
        task_dir: the task's directory; holds the entry script.
        cwd: where the command starts.
        directories: further paths of the task's own, mounted where they are.
        mounts: what the job mounts.
        env_names: variables to hand over; their values are in the program's own environment.
        user: uid, gid and further groups that the program is told to run as, or None.
        is_rootless: whether podman runs without being root, and is to keep the user's number.
        devices: with their vendors; empty for none.
        shm_bytes: size of `/dev/shm`, or None for the node's own.
        memory_bytes, cpus_milli: limits that the program is to set; 0 for none.
    """

    image: str
    name: str
    task_dir: str
    cwd: str
    directories: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env_names: tuple[str, ...] = ()
    user: tuple[int, int, tuple[int, ...]] | None = None
    is_rootless: bool = False
    devices: tuple[DeviceOrder, ...] = ()
    shm_bytes: int | None = None
    memory_bytes: int = 0
    cpus_milli: int = 0


def is_file(image: str) -> bool:
    """Whether an image is a file on the node and no name of a registry."""
    return image.startswith(("/", "./")) or image.endswith(FILE_ENDINGS)


def image_problem(program: str, image: str) -> str:
    """Return why a program cannot run an image, or an empty string."""
    if program in DAEMON_PROGRAMS and is_file(image):
        return f"image '{image}' is a file, and {program} runs images of a registry only"
    if program in DAEMON_PROGRAMS and "://" in image and not image.startswith("docker://"):
        return f"image '{image}': {program} knows no such address; write REGISTRY/NAME:TAG"
    return ""


def image_words(program: str, image: str) -> str:
    """Return an image in the words of a program.

    >>> image_words("pyxis", "nvcr.io/nvidia/pytorch:24.07-py3")
    'nvcr.io#nvidia/pytorch:24.07-py3'
    >>> image_words("apptainer", "python:3.11")
    'docker://python:3.11'
    """
    bare = image.removeprefix("docker://")
    if program in DAEMON_PROGRAMS:
        return bare
    if is_file(image) or "://" in bare:
        return image
    if program == "pyxis":
        host, slash, rest = bare.partition("/")
        is_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
        return f"{host}#{rest}" if is_host else bare
    return f"docker://{bare}"


def entry_script(
    *, task_dir: str, cwd: str, job_env: Iterable[str], has_setup: bool, has_env_file: bool,
    is_first: bool,
) -> str:  # fmt: skip
    """Return the script that the container starts with.

    Args:
        task_dir: the task's directory.
        cwd: where setup and command start.
        job_env: names that the job sets itself.
        has_setup: whether there is a setup script.
        has_env_file: whether the environment comes from a file.
        is_first: whether it is the first process of a process namespace: then it must stay, so
            that signals find the default action in what it starts.
    """
    task, names = shlex.quote(task_dir), tuple(job_env)
    lines = ["#!/bin/sh"]
    if is_first:
        # Told to end before the command has begun: a first process is not ended by the default.
        lines += [f"trap 'ended={128 + number}' {name}" for name, number in _ENDING_SIGNALS]
    if has_env_file:
        lines.append(f". {task}/{ENVIRONMENT}")
    if "HOME" not in names:
        lines.append(f"export HOME={task}")
    lines += [
        f"cd {shlex.quote(cwd)} || exit 126",
        "if command -v bash >/dev/null 2>&1; then shell=bash; else shell=sh; fi",
    ]
    if has_setup:
        lines += [
            f'"$shell" {task}/{SETUP} || {{',
            '  code=$?; echo "setup failed with code $code" >&2; exit "$code"',
            "}",
        ]
    command = f'"$shell" {task}/{RUN}'
    if is_first:
        lines += ['[ -z "$ended" ] || exit "$ended"', command, 'exit "$?"']
    else:
        lines.append(f"exec {command}")
    return "\n".join(lines) + "\n"


def environment_script(env: Iterable[tuple[str, str]]) -> str:
    """Return a shell file that exports variables."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env)


def run_words(program: str, path: str, container: Container) -> list[str]:
    """Return the command that runs the task to its end; `path` is where the program is."""
    entry = ["/bin/sh", f"{container.task_dir}/{ENTRY}"]
    if program in DAEMON_PROGRAMS:
        return [*_daemon_words(program, path, container), *entry]
    if program == "pyxis":
        return [*_pyxis_words(path, container), *entry]
    return [*_apptainer_words(path, container), *entry]


def exec_words(program: str, path: str, container: Container, *, has_terminal: bool) -> list[str]:
    """Return what stands before a command that is to run beside the task, in its container.

    Apptainer opens the image anew, with the same mounts; the task's changes to the image's own
    files are not seen there.
    """
    if program in DAEMON_PROGRAMS:
        terminal = ["--tty"] if has_terminal else []
        wait = ["/bin/sh", "-c", _ONCE_RUNNING, path, container.name]
        return [*wait, "exec", "--interactive", *terminal, container.name]
    return _apptainer_words(path, container)


def pids_words(program: str, path: str, name: str) -> list[str]:
    """Return what lists the processes of a container by their numbers on the node.

    Empty where they are children of the program, which is no part of the task itself: docker's
    belong to its daemon, and a signal to podman would end podman alone.
    """
    match program:
        case "docker":
            return [path, "top", name, "-eo", "pid"]
        case "podman":
            return [path, "top", name, "hpid"]
        case _:
            return []


def remove_words(program: str, path: str, name: str) -> list[str]:
    """Return what ends and deletes a container; empty where ending its processes does that."""
    more = ["--time=0"] if program == "podman" else []
    return [path, "rm", "--force", *more, name] if program in DAEMON_PROGRAMS else []


def out_of_memory_words(program: str, path: str, name: str) -> list[str]:
    """Return what prints `true` for a container that the kernel ended for want of memory."""
    if program not in DAEMON_PROGRAMS:
        return []
    return [path, "inspect", "--format={{.State.OOMKilled}}", name]


def _paths(container: Container) -> list[str]:
    """The task's own paths, each once, without those below another."""
    wanted = sorted(dict.fromkeys((container.task_dir, container.cwd, *container.directories)))
    found: list[str] = []
    for path in wanted:
        if not any(path == kept or path.startswith(f"{kept}/") for kept in found):
            found.append(path)
    return found


def _vendors(container: Container) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device.vendor for device in container.devices))


def _name_of(device: DeviceOrder) -> str:
    return device.uuid or str(device.share.index)


def _daemon_words(program: str, path: str, container: Container) -> list[str]:
    words = [
        path, "run", f"--name={container.name}", "--network=host", f"--workdir={container.cwd}",
        "--entrypoint=",
    ]  # fmt: skip
    if container.shm_bytes is None:
        words.append("--ipc=host")
    else:
        words.append(f"--shm-size={container.shm_bytes}b")
    if container.user is not None:
        uid, gid, groups = container.user
        words += [f"--user={uid}:{gid}", *(f"--group-add={each}" for each in groups)]
    elif container.is_rootless:
        words.append("--userns=keep-id")
    if container.memory_bytes:
        words.append(f"--memory={container.memory_bytes}b")
    if container.cpus_milli:
        words.append(f"--cpus={container.cpus_milli / 1000:g}")
    words += _daemon_devices(program, container)
    words += [f"--volume={each}:{each}" for each in _paths(container)]
    for mount in container.mounts:
        mode = ":ro" if mount.is_read_only else ""
        words.append(f"--volume={mount.source}:{mount.target}{mode}")
    words += [f"--env={name}" for name in container.env_names]
    return [*words, image_words(program, container.image)]


def _daemon_devices(program: str, container: Container) -> list[str]:
    words: list[str] = []
    nvidia = [_name_of(each) for each in container.devices if each.vendor == "nvidia"]
    if nvidia and program == "docker":
        # Docker reads the value as a row of CSV: the quotes belong to it.
        words += [f'--gpus="device={",".join(nvidia)}"', "--ulimit=memlock=-1"]
    elif nvidia:
        words += [f"--device=nvidia.com/gpu={name}" for name in nvidia]
    if "amd" in _vendors(container):
        words += ["--device=/dev/kfd", "--device=/dev/dri", "--security-opt=seccomp=unconfined"]
    return words


def _apptainer_words(path: str, container: Container) -> list[str]:
    words = [
        path, "exec", "--writable-tmpfs", f"--home={container.task_dir}", f"--pwd={container.cwd}",
    ]  # fmt: skip
    if "nvidia" in _vendors(container):
        words.append("--nv")
    if "amd" in _vendors(container):
        words.append("--rocm")
    words += [f"--bind={each}" for each in _paths(container) if each != container.task_dir]
    for mount in container.mounts:
        mode = ":ro" if mount.is_read_only else ""
        words.append(f"--bind={mount.source}:{mount.target}{mode}")
    return [*words, image_words("apptainer", container.image)]


def _pyxis_words(path: str, container: Container) -> list[str]:
    mounts = [f"{each}:{each}" for each in _paths(container)]
    for mount in container.mounts:
        mode = ":ro" if mount.is_read_only else ""
        mounts.append(f"{mount.source}:{mount.target}{mode}")
    return [
        path, "--nodes=1", "--ntasks=1", "--overlap", "--quiet", "--unbuffered", "--mpi=none",
        "--kill-on-bad-exit=1", f"--container-image={image_words('pyxis', container.image)}",
        f"--container-mounts={','.join(mounts)}", f"--container-workdir={container.cwd}",
        "--no-container-mount-home", "--no-container-entrypoint", "--container-writable",
    ]  # fmt: skip
