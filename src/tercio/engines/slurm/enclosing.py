"""Container images on Slurm: which program the site has, and what the runner is told.

With Pyxis the runner starts a step of its own job, `srun --container-image=...`; with Apptainer
it runs the program itself.
"""

from __future__ import annotations

from typing import Any, Final

from tercio.engines.containers import ContainerProgram
from tercio.engines.slurm.commands import Commands
from tercio.engines.slurm.options import SlurmOptions
from tercio.launch import containers
from tercio.launch.containers import Container
from tercio.model.effects import LaunchTask

PYXIS: Final = "pyxis"
_HOST_NAMES: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL")
_FIND: Final = "command -v apptainer || command -v singularity"


async def find_site_program(commands: Commands, options: SlurmOptions) -> ContainerProgram:
    """Return what runs images on this site: what was said when it was added, or what is found.

    Pyxis adds its options to `srun`. Apptainer is looked for where Slurm's commands run, and
    taken to be on the nodes too. Raises EngineError.
    """
    if options.containers == "off":
        return ContainerProgram(why="containers are switched off for this site")
    if options.containers == PYXIS:
        return ContainerProgram(name=PYXIS, path="srun", why="")
    if options.containers != "auto":
        return ContainerProgram(name=options.containers, path=options.containers, why="")
    told = await commands.run(["srun", "--help"])
    if b"--container-image" in told.out:
        return ContainerProgram(name=PYXIS, path="srun", why="")
    found = await commands.run(["sh", "-c", _FIND])
    path = found.out.decode(errors="replace").strip()
    if found.code or not path:
        return ContainerProgram(
            why="neither the Pyxis plugin nor apptainer was found; where the nodes have one, add "
            "the site with --containers pyxis or --containers apptainer"
        )
    return ContainerProgram(name=path.rpartition("/")[2], path=path, why="")


def container_plan(
    order: LaunchTask,
    program: ContainerProgram,
    *,
    env: dict[str, str],
    task_dir: str,
    cwd: str,
    directories: tuple[str, ...],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the runner is told of the container, and the files of the task's directory."""
    assert order.image is not None
    own = (*order.env, *order.secrets)
    names = [name for name in env if name in own or name not in _HOST_NAMES]
    is_step = program.name == PYXIS
    container = Container(
        image=order.image,
        name=f"tercio-{order.job_id}.{order.attempt}.{order.task}",
        task_dir=task_dir,
        cwd=cwd,
        directories=directories,
        mounts=order.mounts,
        devices=order.devices,
    )
    told: dict[str, Any] = {
        "argv": containers.run_words(program.name, program.path, container),
        "exec": []
        if is_step
        else containers.exec_words(program.name, program.path, container, has_terminal=False),
        "is_step": is_step,
        "env_names": names,
        "env_file": containers.ENVIRONMENT,
    }
    files = {
        containers.ENTRY: containers.entry_script(
            task_dir=task_dir, cwd=cwd, job_env=own, has_setup=order.setup is not None,
            has_env_file=is_step, is_first=False,
        ),
        containers.RUN: order.command,
    }  # fmt: skip
    if order.setup is not None:
        files[containers.SETUP] = order.setup
    return told, files
