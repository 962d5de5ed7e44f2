"""A real Ray cluster on loopback: a head without cores, and nodes with emulated accelerators.

Nodes have addresses 127.0.0.11 and up. Everything is started here and ended by its process id.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from e2e.room import is_running, until

PYTHON = sys.executable
RAY = str(Path(PYTHON).with_name("ray"))
START_S = 180.0
STORE_BYTES = str(80 * 1024**2)
# Death is told after seconds, not a minute; a busy machine must not be taken for a dead one.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "8",
    "RAY_health_check_timeout_ms": "8000",
}


class Lab:
    """One cluster.

    Attributes:
        address: of the head.
        nodes: the blocking `ray start` of each node by its name.
    """

    def __init__(self) -> None:
        # A socket's address holds 108 bytes, and Ray puts a long name below this.
        self.home = Path(tempfile.mkdtemp(prefix="rl-", dir="/tmp"))
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._others: list[subprocess.Popen[Any]] = []
        self._head: list[str] = []
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TERCIO_", "PYTHON"))}
        # Tasks find the programs that whoever starts Ray on a node finds.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.env = {**kept, **HEALTH, "RAY_USAGE_STATS_ENABLED": "0", "PATH": path}
        self.env["TMPDIR"] = str(self.home)
        # What the head knows outlives it, and nodes wait for it.
        self.env |= {
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self.home / "gcs"),
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        }

    def start(self, count: int = 4) -> None:
        self.start_head()
        for number in range(1, count + 1):
            self.start_node(number)
        self.wait_nodes(count + 1)

    def start_head(self) -> None:
        """Start the head. Nobody there looks after its processes: one may die alone."""
        subprocess.run(
            [RAY, "start", "--head", "--node-ip-address=127.0.0.1", f"--port={self.port}",
             "--include-dashboard=false", "--num-cpus=0", "--num-gpus=0",
             f"--temp-dir={self.home}", "--disable-usage-stats",
             f"--object-store-memory={STORE_BYTES}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=self.env, timeout=START_S, check=True,
        )  # fmt: skip

    def lose_head(self) -> None:
        """Kill the process that knows the cluster, as a crash would."""
        (pid,) = (pid for pid in _of(self.home) if "gcs/gcs_server" in _words(pid)[0])
        self._head = _words(pid)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_running(pid), "the head to be gone")

    def restart_head(self) -> None:
        """Start it again, with what it had written down."""
        with open(self.home / "head.log", "ab") as log:
            process = subprocess.Popen(
                self._head, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env,
                start_new_session=True,
            )  # fmt: skip
        self._others.append(process)

    def start_node(self, number: int) -> None:
        labels = f"host=n{number},rack=r{(number + 1) // 2}"
        self._start(
            f"n{number}", f"--address={self.address}", f"--node-ip-address=127.0.0.{10 + number}",
            f"--node-name=n{number}", "--num-cpus=16", "--num-gpus=8", f"--labels={labels}",
            '--resources={"accelerator_type:H100": 1}',
        )  # fmt: skip
        self._until_started(f"n{number}")

    def _start(self, name: str, *args: str) -> None:
        with open(self.home / f"{name}.log", "ab") as log:
            self.nodes[name] = subprocess.Popen(
                [RAY, "start", *args, "--block", "--disable-usage-stats",
                 f"--object-store-memory={STORE_BYTES}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env,
                start_new_session=True,
            )  # fmt: skip

    def _until_started(self, name: str) -> None:
        def is_started() -> bool:
            assert self.nodes[name].poll() is None, self.log(name)
            return "block forever" in self.log(name)

        until(is_started, f"{name} of Ray", timeout_s=START_S)

    def wait_nodes(self, count: int) -> None:
        """Return when so many nodes are alive."""
        with self.driver("import time\nwhile sum(n['Alive'] for n in ray.nodes()) < "
                         f"{count}: time.sleep(0.2)\nprint('there')") as told:  # fmt: skip
            told("there")

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    def raylet_pid(self, name: str) -> int:
        """The raylet of a node, a child of its `ray start`."""
        for pid in _children(self.nodes[name].pid):
            with suppress(OSError):
                if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                    return pid
        raise AssertionError(f"{name} has no raylet:\n{self.log(name)}")

    def agent_pids(self, name: str) -> list[int]:
        """The workers of a node that are agents of ours."""
        found = []
        for pid in _descendants(self.raylet_pid(name)):
            with suppress(OSError):
                if b"NodeAgent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        assert found, f"{name} has no agent"
        return found

    def lose_node(self, name: str) -> None:
        """Kill a node's raylet as a machine would lose it, and what is left of the node."""
        os.kill(self.raylet_pid(name), signal.SIGKILL)
        self.stop_node(name)

    def stop_node(self, name: str) -> None:
        process = self.nodes.pop(name)
        below = _descendants(process.pid)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        for pid in (process.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    @contextmanager
    def driver(self, code: str, *, namespace: str = "others") -> Iterator[Callable[[str], str]]:
        """Run a Ray program beside the test; it ends with the block. Yields a line reader."""
        program = (
            "import ray, sys, os\n"
            f"ray.init(address={self.address!r}, namespace={namespace!r}, log_to_driver=False)\n"
            f"{code}\nsys.stdout.flush()\nsys.stdin.read()\n"
        )
        with open(self.home / "driver.log", "ab") as errors:
            process = subprocess.Popen(
                [PYTHON, "-u", "-c", program], env=self.env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._others.append(process)
        assert process.stdout is not None
        assert process.stdin is not None

        def told(text: str) -> str:
            assert process.stdout is not None
            for line in process.stdout:
                if text in line:
                    return line.strip()
            raise AssertionError((self.home / "driver.log").read_text(errors="replace")[-2000:])

        try:
            yield told
        finally:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            process.stdout.close()

    def state(self) -> dict[str, object]:
        """Placement groups that stand and actors by name, as any other user of Ray sees them."""
        code = (
            "import json\nfrom ray.util import placement_group_table, list_named_actors\n"
            "groups=[g['name'] for g in placement_group_table().values() "
            "if g['state'] != 'REMOVED']\n"
            "print('STATE ' + json.dumps({'groups': groups, "
            "'actors': [a['name'] for a in list_named_actors(all_namespaces=True)]}))"
        )
        with self.driver(code) as told:
            return dict(json.loads(told("STATE ").removeprefix("STATE ")))

    def told_at_failure(self) -> str:
        """Nodes that run, and the ends of the logs that `ray start` wrote."""
        logs = [f"{path.name}: {path.read_text(errors='replace')[-600:]}"
                for path in sorted(self.home.glob("*.log"))]  # fmt: skip
        return "\n".join((f"nodes: {', '.join(self.nodes)}", *logs))

    def close(self) -> None:
        for process in self._others:
            if process.poll() is None:
                process.kill()
                process.wait()
        until(lambda: not _strays(self.home), "the processes of the cluster to end")
        for process in self.nodes.values():
            process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def _strays(home: Path) -> list[int]:
    """End processes that still name the cluster's directory; return those."""
    found = _of(home)
    for pid in found:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return found


def _of(home: Path) -> list[int]:
    """Processes that name the cluster's directory."""
    found = []
    mark = str(home).encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):
                for name in ("cmdline", "environ"):
                    if mark in Path(f"/proc/{entry}/{name}").read_bytes():
                        found.append(int(entry))
                        break
    return found


def _words(pid: int) -> list[str]:
    """The command line of a process; one empty word when it has gone."""
    with suppress(OSError):
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        return [word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0")]
    return [""]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _descendants(pid: int) -> list[int]:
    found = []
    for child in _children(pid):
        found += [child, *_descendants(child)]
    return found


def _free_port() -> int:
    """A port below the range from which Ray takes the ports of its workers."""
    for port in range(7000 + os.getpid() % 2000, 10000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")
