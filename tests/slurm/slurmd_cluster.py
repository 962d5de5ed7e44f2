"""A real Slurm cluster on loopback, in one directory, of daemons from the Debian packages.

Four nodes of eight emulated GPUs, accounting in MariaDB, slurmrestd with JWT. Every daemon is
started by path and stopped by its process id; nothing of the machine's own Slurm is touched.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "mariadbd", "slurmdbd", "slurmrestd")
GPUS = 8
NODES = ("n1", "n2", "n3", "n4")
DEADLINE_S = 90.0


def missing() -> str | None:
    """Why there can be no cluster here, or None. In CI nothing may be missing."""
    absent = [name for name in PROGRAMS if program(name) is None]
    if absent:
        return f"needs {', '.join(absent)}: make apt"
    if os.geteuid() != 0:
        return "needs root: device nodes and several users"
    return None


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def until(holds: Callable[[], object], what: str, *, timeout_s: float = DEADLINE_S) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < give_up_s, f"waited {timeout_s:.0f}s for {what}"
        select.select([], [], [], 0.05)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


class SlurmCluster:
    """Starts, asks and stops one cluster.

    Attributes:
        root: directory of everything; short, since sockets are in it.
        env: for Slurm's commands.
        rest_url: of slurmrestd.
    """

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
        self.root.chmod(0o755)
        self.conf = self.root / "etc" / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        ports = free_ports(4 + len(NODES))
        self._ctld_port, self._dbd_port, self._sql_port, rest_port = ports[:4]
        self._node_ports = ports[4:]
        self.rest_url = f"http://127.0.0.1:{rest_port}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # Life.

    def start(self) -> None:
        self._lay_out()
        self._munged()
        self._accounting()
        self.start_controller()
        for name in NODES:
            self.start_node(name)
        self.start_rest()
        until(self._all_idle, "the nodes to be idle")

    def stop(self) -> None:
        self.run("scancel", "--quiet", "--full", "--user", "root", check=False)
        order = [name for name in self._daemons if name not in ("munged", "mariadbd")]
        for name in (*order, "munged", "mariadbd"):
            self.stop_daemon(name)
        self._end_steps()
        shutil.rmtree(self.root, ignore_errors=True)

    def clean(self) -> None:
        """Make the cluster as it was at first: all daemons up, nodes open, queue empty."""
        if "slurmctld" not in self._daemons:
            self.start_controller()
        if "slurmrestd" not in self._daemons:
            self.start_rest()
        for name in NODES:
            if f"slurmd {name}" not in self._daemons:
                self.start_node(name)
        for line in self.out("scontrol", "show", "reservation", "-o").splitlines():
            if line.startswith("ReservationName="):
                name = line.split()[0].partition("=")[2]
                self.run("scontrol", "delete", f"reservation={name}")
        ids = self.out("squeue", "-h", "-a", "-o", "%A").split()
        if ids:
            self.run("scancel", *ids, check=False)
        until(lambda: not self.out("squeue", "-h", "-a", "-o", "%A"), "the queue to be empty")
        for name in NODES:
            if self.out("sinfo", "-h", "-n", name, "-o", "%T") != "idle":
                self.run("scontrol", "update", f"node={name}", "state=resume", check=False)
        until(self._all_idle, "the nodes to be idle")

    def start_controller(self) -> None:
        self._start("slurmctld", "-D", "-f", str(self.conf))
        until(lambda: self.run("scontrol", "ping", check=False).returncode == 0, "slurmctld")

    def stop_controller(self, number: int) -> None:
        self.stop_daemon("slurmctld", number)

    def remembered(self) -> bytes:
        """What the controller writes down of its jobs when it is stopped well and started anew."""
        self.stop_controller(signal.SIGTERM)
        written = (self.root / "state" / "job_state").read_bytes()
        self.start_controller()
        return written

    def forget_jobs_since(self, remembered: bytes) -> None:
        """Crash the controller, and start it as if it had saved nothing since."""
        self.stop_controller(signal.SIGKILL)
        for name in ("job_state", "job_state.old"):
            (self.root / "state" / name).write_bytes(remembered)
        self.start_controller()

    def start_node(self, name: str) -> None:
        self._start(f"slurmd {name}", "-D", "-f", str(self.conf), "-N", name)

    def answers_rest(self) -> bool:
        host, _, port = self.rest_url.removeprefix("http://").partition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
            return True
        return False

    def stop_node(self, name: str) -> None:
        self.stop_daemon(f"slurmd {name}", signal.SIGKILL)

    def stop_daemon(self, name: str, number: int = signal.SIGTERM) -> None:
        child = self._daemons.pop(name, None)
        if child is None:
            return
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    # Asking.

    def run(self, *argv: str, check: bool = True, **options: object) -> subprocess.CompletedProcess:  # type: ignore[type-arg]
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=60, **options
        )  # type: ignore[call-overload]
        if check:
            told = f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
            assert done.returncode == 0, f"{told}\n{self.log('slurmctld')}"
        return done  # type: ignore[no-any-return]

    def out(self, *argv: str) -> str:
        return str(self.run(*argv).stdout).strip()

    def sbatch(self, *argv: str, script: str = "sleep 600") -> int:
        """Submit as any user would, with nothing of Tercio."""
        text = f"#!/bin/sh\n{script}\n"
        told = self.run("sbatch", "--parsable", "-o", "/dev/null", *argv, input=text).stdout
        return int(told.strip().partition(";")[0])

    def state(self, job: int) -> str:
        return self.out("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T")

    def until_running(self, job: int) -> None:
        until(lambda: self.state(job) == "RUNNING", f"job {job} to run")

    def token(self) -> str:
        return self.out("scontrol", "token", "lifespan=3600").partition("=")[2]

    def told_at_failure(self) -> str:
        """The queue, ends, nodes, and the end of the controller's log."""
        asked = (
            ("squeue", "-a", "-o", "%A %T %r %N %k"),
            ("sacct", "-a", "-X", "-n", "-P", "-o", "JobIDRaw,JobName,State,ExitCode,Start,End"),
            ("sinfo", "-N", "-o", "%N %T %E"),
        )
        told = []
        for argv in asked:
            done = self.run(*argv, check=False)
            lines = (done.stdout + done.stderr).splitlines()
            told += [f"$ {' '.join(argv)}", *lines[-20:]]
        return "\n".join((*told, "slurmctld:", self.log("slurmctld")))

    def log(self, name: str) -> str:
        with suppress(OSError):
            return (self.root / "log" / f"{name}.log").read_text(errors="replace")[-3000:]
        return ""

    # Parts.

    def _start(self, name: str, *argv: str, env: dict[str, str] | None = None) -> None:
        binary = name.partition(" ")[0]
        command = self._command(binary)
        with (self.root / "log" / f"{name.replace(' ', '-')}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*command, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**self.env, **(env or {})}, start_new_session=True, cwd=self.root,
            )  # fmt: skip

    def _command(self, binary: str) -> list[str]:
        path = program(binary)
        assert path is not None, binary
        return [path]

    def _lay_out(self) -> None:
        for name in ("etc", "log", "spool", "state", "run", "dev", "out"):
            (self.root / name).mkdir(exist_ok=True)
        for index in range(GPUS):
            # No driver is behind it: Slurm only looks whether the file is there.
            os.mknod(self.root / "dev" / f"nvidia{index}", 0o600 | 0o020000, os.makedev(195, index))
        for name, size in (("munge.key", 128), ("jwt.key", 32)):
            key = self.root / "run" / name
            key.write_bytes(os.urandom(size))
            key.chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        self.conf.write_text(self._slurm_conf(host))
        gres = f"AutoDetect=off\nName=gpu Type=h100 File={self.root}/dev/nvidia[0-{GPUS - 1}]\n"
        for name, text in (
            ("gres.conf", gres),
            ("topology.conf", TOPOLOGY),
            ("cgroup.conf", CGROUP),
            ("slurmdbd.conf", self._slurmdbd_conf()),
        ):
            (self.root / "etc" / name).write_text(text)
        (self.root / "etc" / "slurmdbd.conf").chmod(0o600)

    def _munged(self) -> None:
        run = self.root / "run"
        self._start(
            "munged", "--foreground", "--force", f"--socket={run}/munge.sock",
            f"--key-file={run}/munge.key", f"--pid-file={run}/munged.pid",
            f"--seed-file={run}/munge.seed", f"--log-file={self.root}/log/munged.log",
        )  # fmt: skip
        until((run / "munge.sock").exists, "munged")

    def _accounting(self) -> None:
        data = self.root / "mysql"
        data.mkdir()
        shutil.chown(data, "mysql", "mysql")
        shutil.chown(self.root / "run", "mysql", "mysql")
        self.run(
            "mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql",
            "--auth-root-authentication-method=normal", "--skip-test-db",
        )  # fmt: skip
        at = f"{self.root}/run/mysql.sock"
        self._start(
            "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}", f"--socket={at}",
            "--bind-address=127.0.0.1", f"--port={self._sql_port}", "--skip-log-bin",
            f"--pid-file={self.root}/run/mysql.pid", "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=2",
        )  # fmt: skip
        client = ("mariadb", "--no-defaults", "-S", at, "-uroot")
        until(lambda: self.run(*client, "-e", "select 1", check=False).returncode == 0, "MariaDB")
        self.run(*client, "-e", SQL)
        env = {"SLURM_CONF": f"{self.root}/etc/slurmdbd.conf"}
        self._start("slurmdbd", "-D", env=env)
        add = ("sacctmgr", "-i", "add", "cluster", "emu")
        until(lambda: self.run(*add, check=False).returncode == 0, "slurmdbd")
        for words in ACCOUNTS:
            self.run("sacctmgr", "-i", *words.split())

    def start_rest(self) -> None:
        self._start(
            "slurmrestd", "-u", "nobody", "-a", "rest_auth/jwt",
            "-s", "openapi/v0.0.38,openapi/dbv0.0.38", "-f", str(self.conf),
            self.rest_url.removeprefix("http://"), env={"SLURM_JWT": "daemon"},
        )  # fmt: skip

    def _all_idle(self) -> bool:
        told = self.out("sinfo", "-h", "-N", "-o", "%T").split()
        return len(told) == len(NODES) and set(told) == {"idle"}

    def _end_steps(self) -> None:
        """End what a killed slurmd left: its steps go on without it."""
        mark = str(self.root).encode()
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and (
                    mark in Path(f"/proc/{entry}/environ").read_bytes()
                    or mark in Path(f"/proc/{entry}/cmdline").read_bytes()
                ):
                    os.kill(int(entry), signal.SIGKILL)

    def _slurm_conf(self, host: str) -> str:
        ports = self._node_ports
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 Boards=1 "
            "SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=512000 "
            f"Gres=gpu:h100:{GPUS} Feature=h100,nvlink State=UNKNOWN"
            for name, port in zip(NODES, ports, strict=True)
        )
        return CONF.format(
            root=self.root, host=host, ctld=self._ctld_port, dbd=self._dbd_port, nodes=nodes
        )

    def _slurmdbd_conf(self) -> str:
        return DBD.format(root=self.root, dbd=self._dbd_port, sql=self._sql_port)


CONF = """\
ClusterName=emu
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.sock,cred_expire=5
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={root}/run/jwt.key
CredType=cred/munge
SlurmctldPort={ctld}
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmdSpoolDir={root}/spool/%n
StateSaveLocation={root}/state
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
KillWait=3
MinJobAge=300
CompleteWait=0
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=5,bf_continue,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
DefMemPerGPU=60000
DefCpuPerGPU=8
PriorityType=priority/multifactor
PriorityWeightQOS=100000
TopologyPlugin=topology/tree
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={root}/run/munge.sock
AccountingStorageTRES=gres/gpu,gres/gpu:h100
AccountingStorageEnforce=associations,limits,qos
JobCompType=jobcomp/none
{nodes}
PartitionName=gpu Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""

DBD = """\
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.sock
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={root}/run/jwt.key
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
LogFile={root}/log/slurmdbd.log
PidFile={root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=slurm
StoragePass=pw
StorageLoc=slurm_acct_db
"""

TOPOLOGY = """\
SwitchName=leaf1 Nodes=n[1-2]
SwitchName=leaf2 Nodes=n[3-4]
SwitchName=spine Switches=leaf[1-2]
"""

# It must be there although nothing here uses control groups.
CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
"""

SQL = """
create database slurm_acct_db;
create user 'slurm'@'127.0.0.1' identified by 'pw';
create user 'slurm'@'localhost' identified by 'pw';
grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1';
grant all on slurm_acct_db.* to 'slurm'@'localhost';
"""

ACCOUNTS: Sequence[str] = (
    "add account research description=x organization=x",
    "add user root account=research defaultaccount=research",
    "add user nobody account=research defaultaccount=research",
)
