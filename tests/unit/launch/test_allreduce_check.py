"""The all-reduce before a gang's command: run as its tasks would run it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tercio.launch.preflight import PROBE, PROBE_SOURCE
from tercio.launch.recipes import render
from tercio.model.ids import JobId, NodeName
from tercio.model.job import ChecksSpec
from tercio.model.placement import TaskPlacement
from tercio.testing import make_job, make_node

PROBE_MODULE: dict[str, object] = {"__name__": "probe"}
exec(compile(PROBE_SOURCE, PROBE, "exec"), PROBE_MODULE)

# PyTorch on a machine with two GPUs, as far as the check uses it. NCCL's own log says what it took.
TORCH = """\
import os
class cuda:
    is_available = staticmethod(lambda: True)
    set_device = staticmethod(lambda index: None)
    synchronize = staticmethod(lambda: None)
def full(shape, value, device):
    return [value] * 2
"""
DISTRIBUTED = """\
import os
class ReduceOp:
    MAX = "max"
def init_process_group(backend, init_method, rank, world_size, timeout):
    assert backend == "nccl"
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as file:
        file.write("n1:7:7 [0] NCCL INFO Using network NETWORK\\n")
def all_reduce(values, op=None):
    if op is None:
        values[0] = values[1] = SUM
def destroy_process_group():
    pass
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(
    tmp_path: Path, *, size: int, fabric: str = "none", path: Path | None = None
) -> tuple[list[int], str]:
    """Run the check of every task at once; return their exit codes, and all that they say."""
    script = tmp_path / PROBE
    script.write_text(PROBE_SOURCE)
    master, ports = free_port(), [free_port() for _ in range(size)]
    running = []
    for rank in range(size):
        after = (rank + 1) % size
        words = [
            "127.0.0.1", master, rank, size, "0.2", fabric, "127.0.0.1", ports[after], ports[rank],
        ]  # fmt: skip
        home = tmp_path / f"task-{rank}"
        home.mkdir()
        env = {"PATH": "/usr/bin:/bin", "TERCIO_NODE": f"n{rank}", "TERCIO_TASK_DIR": str(home)}
        env |= {"PYTHONPATH": str(path)} if path else {}
        running.append(
            subprocess.Popen(
                [sys.executable, *(["-S"] if path else []), script, *map(str, words)],
                env=env, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    told = [child.communicate()[1] for child in running]
    return [child.returncode for child in running], "".join(told)


def torch_of(tmp_path: Path, *, network: str, total: float) -> Path:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(TORCH)
    text = DISTRIBUTED.replace("NETWORK", network).replace("SUM", str(total))
    (package / "distributed.py").write_text(text)
    return tmp_path


def test_gloo_sums_over_three_tasks_and_says_what_it_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    codes, told = run(tmp_path, size=3, fabric="infiniband")
    assert codes == [0, 0, 0], told
    assert "all-reduce check: gloo, 3 tasks, 4 MiB: " in told
    assert "GB/s bus bandwidth" in told
    assert "the infiniband fabric itself was not tested" in told


def test_without_pytorch_it_is_plain_tcp_and_says_so(tmp_path: Path) -> None:
    empty = tmp_path / "none"
    empty.mkdir()
    codes, told = run(tmp_path, size=3, fabric="roce", path=empty)
    assert codes == [0, 0, 0], told
    assert told.count("no PyTorch here: plain TCP from task") == 3
    assert "says nothing about NCCL or the roce fabric" in told


@pytest.mark.parametrize(
    ("network", "fabric", "code", "word"),
    [
        ("IB", "infiniband", 0, "nccl over IB, 2 tasks"),
        ("Socket", "infiniband", 1, "NCCL runs over sockets on nodes with fabric infiniband"),
        ("Socket", "efa", 1, "failed on n0: NCCL runs over sockets"),
        ("Socket", "ethernet", 0, "nccl over Socket"),
        ("Socket", "none", 0, "nccl over Socket"),
        ("AWS Libfabric", "efa", 0, "nccl over AWS Libfabric"),
    ],
)
def test_nccl_over_sockets_fails_where_the_nodes_promise_more(
    tmp_path: Path, network: str, fabric: str, code: int, word: str
) -> None:
    path = torch_of(tmp_path, network=network, total=3.0)
    codes, told = run(tmp_path, size=2, fabric=fabric, path=path)
    assert codes == [code, code], told
    assert word in told


def test_a_wrong_sum_fails(tmp_path: Path) -> None:
    codes, told = run(tmp_path, size=2, path=torch_of(tmp_path, network="IB", total=2.5))
    assert codes == [1, 1]
    assert "the sum over 2 tasks is wrong: 2.5" in told


def launches(size: int, **fields: object) -> list[str]:
    nodes = {
        NodeName(f"n{at}"): msgspec.structs.replace(
            make_node(f"n{at}", labels={"fabric": "roce"}), address=f"10.0.0.{at}"
        )
        for at in range(size)
    }
    tasks = tuple(TaskPlacement(task=at, node=NodeName(f"n{at}")) for at in range(size))
    found = render(
        make_job(tasks=size, checks=ChecksSpec(**fields)),  # type: ignore[arg-type]
        job_id=JobId("job-00001"), attempt=1, tasks=tasks, nodes=nodes,
        ports={at: (9000 + at, 9100 + at, 9200 + at, 9300 + at) for at in range(size)},
    )  # fmt: skip
    assert all((PROBE in launch.files) == (size > 1 and bool(fields)) for launch in found)
    return [launch.command for launch in found]


def test_a_gang_checks_before_its_command_and_one_task_alone_does_not() -> None:
    first, second = launches(2, allreduce_s=5.0)
    line = 'python3 "$TERCIO_TASK_DIR/tercio-allreduce.py" 10.0.0.0 9200 '
    assert first.startswith(f"{line}0 2 5 roce 10.0.0.1 9201 9200 || exit 1\n")
    assert second.startswith(f"{line}1 2 5 roce 10.0.0.0 9200 9201 || exit 1\n")
    assert "allreduce" not in launches(1, allreduce_s=5.0)[0]
    assert "allreduce" not in launches(2)[0]
