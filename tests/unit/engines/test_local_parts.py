"""Parts of the local engine on their own: groups, users, environment, records."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tercio.engines.local import records
from tercio.engines.local.accounts import account_of
from tercio.engines.local.cgroup import Cgroups, detect, parse_mounts
from tercio.engines.local.prepare import device_environment, environment
from tercio.engines.local.settings import STANDARD_PATH, LocalSettings
from tercio.errors import UserError
from tercio.model.effects import DeviceOrder, LaunchTask
from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.model.resources import DeviceShare


def make_order(**changes: object) -> LaunchTask:
    fields = {"command": "true", "user": "ana", **changes}
    return LaunchTask(
        effect_id=EffectId("launch:job-1/1/0"),
        epoch=1,
        deadline_s=0.0,
        site=SiteName("here"),
        node=NodeName("n1"),
        job_id=JobId("job-1"),
        attempt=1,
        task=0,
        **fields,  # type: ignore[arg-type]
    )


def device(index: int, vendor: str, uuid: str = "") -> DeviceOrder:
    return DeviceOrder(share=DeviceShare(index=index), type="X", vendor=vendor, uuid=uuid)


V1_MOUNTS = """\
30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
33 25 0:29 / /proc rw - proc proc rw
"""
V1_OWN = "8:memory:/box/1\n4:cpu,cpuacct:/\n0::/user/ana\n"


def test_mounts_of_a_hybrid_machine() -> None:
    mounts = parse_mounts(V1_MOUNTS, V1_OWN)
    assert [(mount.version, mount.directory) for mount in mounts] == [
        (1, "/sys/fs/cgroup/memory/box/1"),
        (1, "/sys/fs/cgroup/cpu,cpuacct"),
        (2, "/sys/fs/cgroup/unified/user/ana"),
    ]


def test_mounts_in_a_container_show_its_own_root() -> None:
    line = "30 25 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    (mount,) = parse_mounts(line, "0::/docker/abc/job\n")
    assert mount.directory == "/sys/fs/cgroup/job"


def fake_version_2(tmp_path: Path) -> Path:
    """A delegated version 2 group as plain files: writes succeed, nothing is limited."""
    group = tmp_path / "cgroup" / "svc"
    for directory in (group, group / "tercio-x"):
        directory.mkdir(parents=True)
        (directory / "cgroup.controllers").write_text("cpu memory pids\n")
        (directory / "cgroup.subtree_control").write_text("")
        (directory / "cgroup.procs").write_text("")
    proc = tmp_path / "proc"
    proc.mkdir()
    mount = f"30 25 0:26 / {tmp_path / 'cgroup'} rw - cgroup2 cgroup2 rw\n"
    (proc / "mountinfo").write_text(mount)
    (proc / "cgroup").write_text("0::/svc\n")
    return proc


def test_version_2_controllers_are_enabled_and_used(tmp_path: Path) -> None:
    found = detect("tercio-x", proc=fake_version_2(tmp_path))
    parent = str(tmp_path / "cgroup" / "svc" / "tercio-x")
    assert (found.memory, found.memory_version, found.cpu, found.cpu_version, found.tree) == (
        parent, 2, parent, 2, parent,
    )  # fmt: skip
    assert found.notes == {}
    groups = found.task_groups("t", cpus_milli=1500, memory_bytes=1024)
    assert groups == [
        (
            f"{parent}/t",
            [("memory.max", "1024"), ("memory.oom.group", "1"), ("cpu.max", "150000 100000")],
        )
    ]


def test_without_groups_the_notes_say_what_is_not_enforced(tmp_path: Path) -> None:
    found = detect("tercio-x", proc=tmp_path / "none")
    assert sorted(found.notes) == ["limits_cpus", "limits_memory"]
    assert found.task_groups("t", cpus_milli=1000, memory_bytes=1024) == []


def test_no_limit_needs_no_group() -> None:
    found = Cgroups(memory="/m", cpu="/c")
    assert found.task_groups("t", cpus_milli=0, memory_bytes=0) == []


def test_a_task_sees_its_own_devices_by_uuid() -> None:
    order = make_order(devices=(device(1, "nvidia", "GPU-b"), device(3, "nvidia", "GPU-d")))
    env = device_environment(order, vendors=frozenset({"nvidia"}))
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-d"
    assert env["TERCIO_DEVICES"] == "1,3"


def test_a_task_without_devices_sees_none_of_the_machine() -> None:
    env = device_environment(make_order(), vendors=frozenset({"nvidia", "amd"}))
    assert (env["CUDA_VISIBLE_DEVICES"], env["ROCR_VISIBLE_DEVICES"]) == ("", "")


def test_cpu_devices_touch_no_vendor_variable() -> None:
    order = make_order(devices=(device(0, "cpu"),))
    assert device_environment(order, vendors=frozenset({"cpu"})) == {"TERCIO_DEVICES": "0"}


def test_the_base_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_ONLY", "1")
    monkeypatch.setenv("LANG", "C.UTF-8")
    account = account_of("root", run_as="root")
    env = environment(
        make_order(env={"A": "${TERCIO_TASK_DIR}/x"}),
        {},
        task_dir=Path("/t"),
        account=account,
        settings=LocalSettings(tasks_dir="/x", pass_env=("LANG", "NOT_SET")),
        vendors=frozenset(),
    )
    assert "SERVER_ONLY" not in env
    assert "NOT_SET" not in env
    assert (env["LANG"], env["A"], env["TERCIO_JOB"]) == ("C.UTF-8", "/t/x", "job-1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change users")
def test_another_user_gets_the_standard_path() -> None:
    account = account_of("nobody", run_as=None)
    env = environment(
        make_order(),
        {},
        task_dir=Path("/t"),
        account=account,
        settings=LocalSettings(tasks_dir="/x"),
        vendors=frozenset(),
    )
    assert env["PATH"] == STANDARD_PATH
    assert env["HOME"] == pwd.getpwnam("nobody").pw_dir


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change users")
def test_a_configured_user_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="no-such-user"):
        account_of("no-such-person", run_as="no-such-user")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    fields = {"a": "line\nbreak", "b": "back\\slash \\n", "c": "", "d": "k=v"}
    records.write_record(str(tmp_path), "exit", fields)
    assert records.read_record(str(tmp_path), "exit") == fields
    assert records.read_record(str(tmp_path), "begun") is None


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    first = records.claim(str(tmp_path))
    assert first is not None
    assert records.claim(str(tmp_path)) is None
    os.close(first)
    again = records.claim(str(tmp_path))
    assert again is not None
    os.close(again)
