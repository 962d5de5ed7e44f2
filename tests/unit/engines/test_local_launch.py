"""What a task finds when it starts, and orders that are refused."""

from __future__ import annotations

import io
import os
import socket
import sys
import tarfile
from pathlib import Path

import pytest
from localbench import (
    bench_of,
    needs_root,
    run,
    text_of,
)  # fmt: skip

from tercio.engines.bench import ref_of
from tercio.engines.local import found, records
from tercio.model.events import TaskLaunchFailed, TaskStarted


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def is_there(path: str) -> bool:
    return os.path.exists(path)


def test_environment_files_outputs_and_secrets(root: Path) -> None:
    changes = {
        "command": 'cat "$HOSTFILE"; echo "$TOKEN" | tr a-z A-Z; cd "$TERCIO_OUTPUT_DIR" && pwd',
        "env": {"HOSTFILE": "${TERCIO_TASK_DIR}/conf/hosts"},
        "files": {"conf/hosts": "n1 slots=1\n"},
        "secrets": ("TOKEN",),
        "outputs": str(root.parent / "out" / "a"),
    }

    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order(changes)
            ref = ref_of(order)
            bench.started.append(ref)
            answer = await bench.engine.launch(order, {"TOKEN": "hushhush"})
            assert isinstance(answer, TaskStarted)
            await bench.exit_of(ref)
            texts = await text_of(bench, ref)
            assert texts == ["n1 slots=1", "HUSHHUSH", changes["outputs"]]
            assert not [path for path in files_below(root) if b"hushhush" in path.read_bytes()]

    run(check())


def test_a_secret_is_in_no_argument_list(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order({"command": "echo ready; exec sleep 600", "secrets": ("TOKEN",)})
            ref = ref_of(order)
            bench.started.append(ref)
            await bench.engine.launch(order, {"TOKEN": "hushhush"})
            await bench.until_printed(ref, "ready")
            lines = [p.read_bytes() for p in map(Path, processes()) if p.exists()]
            assert not [line for line in lines if b"hushhush" in line]

    def processes() -> list[str]:
        return [f"/proc/{name}/cmdline" for name in os.listdir("/proc") if name.isdigit()]

    run(check())


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil"])
def test_files_stay_in_the_task_directory(root: Path, name: str) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order({"command": "true", "files": {name: "x"}})
            answer = await bench.engine.launch(order, {})
            assert isinstance(answer, TaskLaunchFailed)
            assert name in answer.message

    run(check())


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_tasks_of_an_attempt_share_one_copy_of_the_snapshot(root: Path) -> None:
    archive(root.parent / "snap", (tarfile.TarInfo("src/a.txt"), b"text"))

    async def check() -> None:
        async with bench_of(root) as bench:
            changes = {"command": "cat src/a.txt; pwd; echo; touch shared", "workdir": "snap"}
            order, ref = await bench.start(changes)
            await bench.exit_of(ref)
            texts = await text_of(bench, ref)
            assert texts[0] == f"text{root}/{order.job_id}/1/workdir"
            second = {"job_id": order.job_id, "task": 1, "workdir": "snap", "command": "ls shared"}
            _, other = await bench.start(second)
            assert (await bench.exit_of(other)).exit_code == 0

    run(check())


@pytest.mark.parametrize("name", ["../evil", "/evil"])
def test_a_snapshot_cannot_write_outside(root: Path, name: str) -> None:
    archive(root.parent / "snap", (tarfile.TarInfo(name), b"text"))

    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order({"command": "true", "workdir": "snap"})
            answer = await bench.engine.launch(order, {})
            evil = root / order.job_id / "1" / "evil"
            if isinstance(answer, TaskStarted):
                # An absolute name is made relative, as tar itself does.
                bench.started.append(ref_of(order))
                assert name == "/evil"
            else:
                assert "bad snapshot" in answer.message
            assert not evil.exists()
            assert not is_there("/evil")

    run(check())


def member(name: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made, b""


@pytest.mark.parametrize(
    "members",
    [
        [member("a", pax_headers={"mtime": "1e400"})],
        [member("a", type=tarfile.LNKTYPE, linkname="missing")],
        [member("a"), member("a/b")],
        [member("n" * 300)],
        [member(".")],
    ],
)
def test_a_snapshot_that_makes_no_sense_is_refused_for_good(
    root: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    archive(root.parent / "snap", *members)

    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order({"command": "true", "workdir": "snap"})
            answer = await bench.engine.launch(order, {})
            assert isinstance(answer, TaskLaunchFailed)
            assert not answer.is_retryable
            assert "bad snapshot" in answer.message

    run(check())


def test_a_snapshot_that_unpacks_to_too_much_is_refused(root: Path) -> None:
    archive(root.parent / "snap", (tarfile.TarInfo("zeros"), bytes(200_000)))

    async def check() -> None:
        async with bench_of(root, workdir_bytes_max=100_000) as bench:
            order = bench.order({"command": "true", "workdir": "snap"})
            answer = await bench.engine.launch(order, {})
            assert isinstance(answer, TaskLaunchFailed)
            assert not answer.is_retryable

    run(check())


def test_a_port_in_use_can_be_tried_again(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                order = bench.order({"command": "true", "ports": (port,)})
                answer = await bench.engine.launch(order, {})
            assert isinstance(answer, TaskLaunchFailed)
            assert answer.is_retryable
            assert str(port) in answer.message
            bench.started.append(ref_of(order))
            assert isinstance(await bench.engine.launch(order, {}), TaskStarted)

    run(check())


def test_a_missing_directory_is_told_by_name(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            order = bench.order({"command": "true", "workdir": "/no/such/place"})
            answer = await bench.engine.launch(order, {})
            assert isinstance(answer, TaskLaunchFailed)
            assert "/no/such/place" in answer.message
            again = await bench.engine.launch(order, {})
            assert isinstance(again, TaskLaunchFailed)
            assert again.message == answer.message

    run(check())


def test_out_of_memory_is_said_with_the_limit(root: Path) -> None:
    command = f"{sys.executable} -c 'bytearray(400 << 20)'"

    async def check() -> None:
        async with bench_of(root) as bench:
            capabilities = bench.engine.capabilities
            if not capabilities.limits_memory:
                pytest.skip(capabilities.notes["limits_memory"])
            changes = {"command": command, "memory_bytes": 64 * 1024**2}
            _, ref = await bench.start(changes)
            end = await bench.exit_of(ref)
            assert end.message == "out of memory (limit 64MiB)"
            assert end.exit_code != 0

    run(check())


def test_limits_are_written_and_groups_removed(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            capabilities = bench.engine.capabilities
            if not capabilities.limits_cpus:
                pytest.skip(capabilities.notes["limits_cpus"])
            changes = {"command": "exec sleep 600", "cpus_milli": 500}
            _, ref = await bench.start(changes)
            begun = records.read_record(str(found.task_directory(root, ref)), records.BEGUN)
            assert begun is not None
            groups = [Path(group) for group in begun["cgroups"].split(":")]
            limits = [
                (group / name).read_text().split()[0]
                for group in groups
                for name in ("cpu.max", "cpu.cfs_quota_us")
                if (group / name).exists()
            ]
            assert "50000" in limits
            await bench.engine.stop(bench.stop_order(ref, grace_s=5.0))
            await bench.exit_of(ref)
            assert not [group for group in groups if group.exists()]

    run(check())


@needs_root
def test_a_task_runs_as_the_submitting_user(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root, run_as=None) as bench:
            changes = {"command": "id -un; id -Gn; echo $HOME; touch mine", "user": "nobody"}
            _, ref = await bench.start(changes)
            assert (await bench.exit_of(ref)).exit_code == 0
            texts = await text_of(bench, ref)
            assert texts[:2] == ["nobody", "nogroup"]
            touched = found.task_directory(root, ref) / records.TASK / "mine"
            assert touched.owner() == "nobody"

    run(check())


@needs_root
def test_a_directory_that_lets_no_user_through_is_named(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root) as bench:
            root.parent.chmod(0o700)
            answer = await bench.engine.launch(
                bench.order({"command": "true", "user": "nobody"}), {}
            )
            assert isinstance(answer, TaskLaunchFailed)
            assert f"chmod o+x {root.parent}" in answer.message

    run(check())


@needs_root
def test_a_strict_umask_of_the_server_lets_other_users_through(root: Path) -> None:
    async def check() -> None:
        before = os.umask(0o077)
        try:
            async with bench_of(root, run_as=None) as bench:
                _, ref = await bench.start({"command": "true", "user": "nobody"})
                assert (await bench.exit_of(ref)).exit_code == 0
        finally:
            os.umask(before)

    run(check())


@needs_root
def test_an_unknown_user_gets_the_configured_one(root: Path) -> None:
    async def check() -> None:
        async with bench_of(root, run_as="nobody") as bench:
            for user in ("no-such-user", "root"):
                _, ref = await bench.start({"command": "id -un", "user": user})
                await bench.exit_of(ref)
                assert await text_of(bench, ref) == ["nobody"]

    run(check())


@needs_root
@pytest.mark.parametrize("user", ["root", "no-such-user"])
def test_no_task_runs_as_root_unasked(root: Path, user: str) -> None:
    async def check() -> None:
        async with bench_of(root, run_as=None) as bench:
            answer = await bench.engine.launch(bench.order({"command": "", "user": user}), {})
            assert isinstance(answer, TaskLaunchFailed)
            assert not answer.is_retryable
            assert "run_as" in answer.message

    run(check())
