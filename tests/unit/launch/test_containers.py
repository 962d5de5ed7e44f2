"""The words of each container program, and the script that a container starts with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from tercio.launch.containers import (
    Container,
    entry_script,
    environment_script,
    exec_words,
    image_problem,
    image_words,
    pids_words,
    remove_words,
    run_words,
)
from tercio.model.effects import DeviceOrder
from tercio.model.job import Mount
from tercio.model.resources import DeviceShare

BOX = Container(
    image="nvcr.io/nvidia/pytorch:24.07-py3",
    name="tercio-job-00001.1.0-ab",
    task_dir="/s/t/task",
    cwd="/s/t/workdir",
    directories=("/s/t/workdir/results", "/ckpt"),
    mounts=(Mount(source="/data", target="/data", is_read_only=True),
            Mount(source="/scratch/x", target="/x")),
    env_names=("A", "TERCIO_TASK"),
)  # fmt: skip
NVIDIA = tuple(
    DeviceOrder(share=DeviceShare(index=index), type="H100", vendor="nvidia", uuid=f"GPU-{index}")
    for index in (0, 3)
)
AMD = (DeviceOrder(share=DeviceShare(index=0), type="MI300X", vendor="amd"),)


def words(program: str, **changes: object) -> list[str]:
    return run_words(program, f"/usr/bin/{program}", msgspec.structs.replace(BOX, **changes))


def test_docker_hears_everything_that_the_order_says() -> None:
    said = words(
        "docker", devices=NVIDIA, user=(1000, 1000, (27,)), shm_bytes=1 << 30,
        memory_bytes=2 << 30, cpus_milli=1500,
    )  # fmt: skip
    assert said == [
        "/usr/bin/docker", "run", "--name=tercio-job-00001.1.0-ab", "--network=host",
        "--workdir=/s/t/workdir", "--entrypoint=", "--shm-size=1073741824b", "--user=1000:1000",
        "--group-add=27", "--memory=2147483648b", "--cpus=1.5",
        '--gpus="device=GPU-0,GPU-3"', "--ulimit=memlock=-1",
        "--volume=/ckpt:/ckpt", "--volume=/s/t/task:/s/t/task",
        "--volume=/s/t/workdir:/s/t/workdir", "--volume=/data:/data:ro",
        "--volume=/scratch/x:/x", "--env=A", "--env=TERCIO_TASK",
        "nvcr.io/nvidia/pytorch:24.07-py3", "/bin/sh", "/s/t/task/tercio-entry.sh",
    ]  # fmt: skip


def test_no_value_of_a_variable_stands_in_a_process_list() -> None:
    # Names only: docker takes the values from its own environment.
    assert [word for word in words("docker") if word.startswith("--env=")] == [
        "--env=A", "--env=TERCIO_TASK",
    ]  # fmt: skip


def test_podman_names_devices_by_cdi_and_keeps_the_users_number_without_root() -> None:
    said = words("podman", devices=NVIDIA, is_rootless=True)
    assert "--device=nvidia.com/gpu=GPU-0" in said
    assert "--device=nvidia.com/gpu=GPU-3" in said
    assert "--userns=keep-id" in said
    assert "--ipc=host" in said
    assert "--ipc=host" not in words("podman", shm_bytes=1)


def test_amd_devices_are_files_of_the_node() -> None:
    assert {"--device=/dev/kfd", "--device=/dev/dri"} <= set(words("docker", devices=AMD))
    assert "--rocm" in words("apptainer", devices=AMD)


def test_apptainer_mounts_the_task_as_home_and_nothing_of_the_user() -> None:
    said = words("apptainer", devices=NVIDIA)
    assert said == [
        "/usr/bin/apptainer", "exec", "--writable-tmpfs", "--home=/s/t/task",
        "--pwd=/s/t/workdir", "--nv", "--bind=/ckpt", "--bind=/s/t/workdir",
        "--bind=/data:/data:ro", "--bind=/scratch/x:/x",
        "docker://nvcr.io/nvidia/pytorch:24.07-py3", "/bin/sh", "/s/t/task/tercio-entry.sh",
    ]  # fmt: skip


def test_pyxis_is_a_step_of_slurm() -> None:
    said = run_words("pyxis", "srun", BOX)
    assert said[0] == "srun"
    assert "--container-image=nvcr.io#nvidia/pytorch:24.07-py3" in said
    assert (
        "--container-mounts=/ckpt:/ckpt,/s/t/task:/s/t/task,/s/t/workdir:/s/t/workdir,"
        "/data:/data:ro,/scratch/x:/x"
    ) in said
    assert "--container-workdir=/s/t/workdir" in said
    assert "--no-container-mount-home" in said


@pytest.mark.parametrize(
    ("program", "image", "said"),
    [
        ("docker", "docker://python:3.11", "python:3.11"),
        ("podman", "ghcr.io/a/b@sha256:0", "ghcr.io/a/b@sha256:0"),
        ("apptainer", "/images/a.sif", "/images/a.sif"),
        ("apptainer", "oras://ghcr.io/a/b", "oras://ghcr.io/a/b"),
        ("singularity", "python:3.11", "docker://python:3.11"),
        ("pyxis", "python:3.11", "python:3.11"),
        ("pyxis", "localhost:5000/a", "localhost:5000#a"),
        ("pyxis", "nvidia/cuda:12.4", "nvidia/cuda:12.4"),
        ("pyxis", "/images/a.sqsh", "/images/a.sqsh"),
    ],
)
def test_an_image_in_the_words_of_each_program(program: str, image: str, said: str) -> None:
    assert image_words(program, image) == said
    assert image_problem(program, image) == ""


def test_a_file_is_no_image_for_a_daemon() -> None:
    assert "is a file" in image_problem("docker", "/images/a.sif")
    assert "knows no such address" in image_problem("podman", "oras://ghcr.io/a/b")


def test_what_else_a_program_can_be_asked() -> None:
    assert pids_words("docker", "docker", "c") == ["docker", "top", "c", "-eo", "pid"]
    assert pids_words("podman", "podman", "c") == ["podman", "top", "c", "hpid"]
    assert pids_words("apptainer", "apptainer", "c") == []
    assert remove_words("docker", "docker", "c") == ["docker", "rm", "--force", "c"]
    assert remove_words("podman", "podman", "c") == ["podman", "rm", "--force", "--time=0", "c"]
    assert remove_words("apptainer", "apptainer", "c") == []
    assert exec_words("docker", "docker", BOX, has_terminal=True)[3:] == [
        "docker", BOX.name, "exec", "--interactive", "--tty", BOX.name,
    ]  # fmt: skip
    inside = exec_words("apptainer", "apptainer", BOX, has_terminal=True)
    assert inside == run_words("apptainer", "apptainer", BOX)[:-2]


def run_entry(path: Path, run: str, setup: str | None = None, **changes: object) -> tuple[int, str]:
    (path / ".tercio-run.sh").write_text(run)
    if setup is not None:
        (path / ".tercio-setup.sh").write_text(setup)
    (path / ".tercio-env.sh").write_text(environment_script([("A", "it's $HOME\nhere")]))
    text = entry_script(
        **{
            "task_dir": str(path), "cwd": str(path), "job_env": (), "has_setup": setup is not None,
            "has_env_file": True, "is_first": True, **changes,
        }  # type: ignore[arg-type]
    )  # fmt: skip
    (path / "entry.sh").write_text(text)
    done = subprocess.run(
        ["/bin/sh", path / "entry.sh"], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/outside"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("is_first", [True, False])
def test_the_entry_runs_setup_then_the_command(tmp_path: Path, is_first: bool) -> None:
    code, told = run_entry(
        tmp_path, 'cat made; echo "$A"; echo $HOME; exit 7', "echo from setup > made",
        is_first=is_first,
    )  # fmt: skip
    assert code == 7
    assert told == f"from setup\nit's $HOME\nhere\n{tmp_path}\n"


def test_a_home_of_the_jobs_own_stays(tmp_path: Path) -> None:
    assert run_entry(tmp_path, "echo $HOME", job_env=("HOME",)) == (0, "/outside\n")


def test_a_setup_that_fails_is_the_end(tmp_path: Path) -> None:
    code, told = run_entry(tmp_path, "echo never", "exit 3")
    assert (code, told) == (3, "setup failed with code 3\n")
