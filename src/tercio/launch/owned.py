"""Ray and Dask: a cluster that belongs to one job, made of its tasks and ended with it.

Task 0 starts the head (Ray) or the scheduler (Dask) on the gang's master port, and every task a
worker with its own devices, cores and memory. When all are there, task 0 runs the command; its
end ends the cluster, and all tasks end with its code. A worker that dies ends its task, and so
the attempt: a cluster with a hole is not the one that was asked for.

The command finds the cluster by `RAY_ADDRESS` or `DASK_SCHEDULER_ADDRESS`: `ray.init()` and
`Client()` need no argument. The end is told over task 0's last port, as for MPI.
"""

from __future__ import annotations

import json
import math
from typing import Final

from tercio.launch.gang import Gang
from tercio.model.job import Framework

LAUNCHER: Final = "tercio-cluster.py"
PLAN: Final = "tercio-cluster.json"
_MILLI: Final = 1000
_STORE_RATIO: Final = 0.3
"""Part of a task's memory for Ray's object store, which is Ray's own default."""
_STORE_BYTES_MIN: Final = 80 * 1024**2

LAUNCHER_SOURCE: Final = '''\
"""lead SCRIPT: start the cluster, run the script in it. follow: be a worker until task 0 ends."""
import json, os, shutil, signal, socket, subprocess, sys, tempfile, threading, time

home = os.environ["TERCIO_TASK_DIR"]
with open(os.path.join(home, "tercio-cluster.json")) as file:
    plan = json.load(file)
host, port, last = plan["host"], plan["port"], plan["last_port"]
START_S = 600
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
daemons = []
stopping = threading.Event()


def say(text):
    print("tercio: " + text, file=sys.stderr, flush=True)


def ignore_user_signals():
    # A checkpoint signal is for the command; the cluster must live until that has saved.
    for number in USER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def start(arguments):
    log = open(os.path.join(home, "cluster-%d.log" % len(daemons)), "wb")
    daemons.append((subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        preexec_fn=ignore_user_signals), log.name))


def program(name, module):
    found = shutil.which(name)
    return [found] if found else [sys.executable, "-m", module]


def ray_start(arguments):
    start(program("ray", "ray.scripts.scripts") + ["start", "--block", "--disable-usage-stats"]
          + arguments + plan["ray"])


def worker():
    if plan["kind"] == "ray":
        ray_start(["--address=%s:%d" % (host, port), "--node-ip-address=" + plan["address"]])
    else:
        start([sys.executable, "-m", "distributed.cli.dask_worker",
               "tcp://%s:%d" % (host, port), "--host", plan["address"], "--no-dashboard",
               "--no-nanny", "--local-directory", os.path.join(home, "dask")] + plan["dask"])


def head():
    if plan["kind"] == "ray":
        # Ray's socket names are long, and a socket's name holds 107 bytes.
        scratch = tempfile.mkdtemp(prefix="tr-", dir="/tmp")
        ray_start(["--head", "--port=%d" % port, "--node-ip-address=" + host,
                   "--include-dashboard=false", "--temp-dir=" + scratch])
        return scratch
    start([sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", host,
           "--port", str(port), "--no-dashboard"])
    return None


def died():
    for daemon, log in daemons:
        if daemon.poll() is not None:
            with open(log, "rb") as file:
                tail = file.read()[-2000:].decode(errors="replace")
            say("a part of the cluster ended with code %s\\n%s" % (daemon.returncode, tail))
            return True
    return False


def until_open(host, port):
    give_up = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((host, port), timeout=10).close()
            return
        except OSError as error:
            if time.monotonic() > give_up or died():
                sys.exit("the cluster cannot be reached at %s:%d: %s" % (host, port, error))
            time.sleep(0.2)


COUNT = {
    "ray": "import ray, time\\nray.init(address='%s:%d', log_to_driver=False)\\n"
           "while sum(n['Alive'] for n in ray.nodes()) < %d: time.sleep(0.2)",
    "dask": "from distributed import Client\\n"
            "Client('tcp://%s:%d').wait_for_workers(%d)",
}


def until_whole():
    code = COUNT[plan["kind"]] % (host, port, plan["size"])
    counting = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + START_S
    while counting.poll() is None:
        if time.monotonic() > give_up or died():
            counting.kill()
            sys.exit("the cluster did not become whole")
        time.sleep(0.1)
    if counting.returncode:
        sys.exit("the cluster does not answer")


def end():
    for daemon, _ in daemons:
        if daemon.poll() is None:
            daemon.terminate()
    give_up = time.monotonic() + 10
    for daemon, _ in daemons:
        try:
            daemon.wait(max(0.1, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            daemon.kill()


def lead(script):
    server = socket.create_server(("", last), backlog=max(plan["size"], 1))
    waiting = []

    def accept():
        while True:
            waiting.append(server.accept()[0])

    threading.Thread(target=accept, daemon=True).start()
    code = 1
    scratch = head()
    try:
        if plan["kind"] == "dask":
            until_open(host, port)
            worker()
        until_whole()
        say("the %s cluster is whole: %d tasks" % (plan["kind"], plan["size"]))
        command = subprocess.Popen([os.environ.get("BASH") or "sh", os.path.join(home, script)])
        while command.poll() is None:
            # A stop signal reaches the daemons too; the command has its grace all the same.
            if not stopping.is_set() and died():
                command.terminate()
                command.wait()
                break
            try:
                command.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
        code = command.returncode if command.returncode >= 0 else 128 - command.returncode
        return code
    finally:
        for connection in waiting:
            try:
                connection.sendall(b"%d\\n" % code)
                connection.close()
            except OSError:
                pass
        end()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def follow():
    until_open(host, last)
    until_open(host, port)
    connection = socket.create_connection((host, last), timeout=10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    worker()
    connection.settimeout(0.5)
    told = b""
    while stopping.is_set() or not died():
        try:
            chunk = connection.recv(64)
        except socket.timeout:
            continue
        except OSError:
            chunk = b""
        told += chunk
        if not chunk:
            break
    end()
    return int(told) if told.endswith(b"\\n") else 1


signal.signal(signal.SIGTERM, lambda *_: stopping.set())
for number in USER_SIGNALS:
    signal.signal(number, lambda *_: None)
sys.exit(lead(sys.argv[2]) if sys.argv[1] == "lead" else follow())
'''


def cluster_variables(gang: Gang) -> dict[str, str]:
    """Return where the command finds its cluster."""
    address, port = gang.master
    if gang.spec.framework is Framework.DASK:
        return {"DASK_SCHEDULER_ADDRESS": f"tcp://{address}:{port}"}
    return {"RAY_ADDRESS": f"{address}:{port}", "RAY_USAGE_STATS_ENABLED": "0"}


def cluster_files(gang: Gang, member: int) -> dict[str, str]:
    """Return the launcher and what it is to start in this task."""
    host, port = gang.master
    plan = {
        "kind": gang.spec.framework.value,
        "host": host,
        "port": port,
        "last_port": gang.ports[0][-1],
        "address": gang.addresses[member],
        "size": gang.size,
        "ray": _ray_options(gang, member),
        "dask": _dask_options(gang, member),
    }
    return {LAUNCHER: LAUNCHER_SOURCE, PLAN: json.dumps(plan, indent=1) + "\n"}


def cluster_command(member: int, script: str) -> str:
    """Return the shell line of a member; `script` is the name of the file with the command."""
    role = f"lead {script}" if member == 0 else "follow"
    return f'exec python3 "$TERCIO_TASK_DIR/{LAUNCHER}" {role}\n'


def _cores(gang: Gang, member: int) -> int:
    """Whole cores of a task; one where they are unknown, so that tasks never add up to more."""
    return max(1, gang.tasks[member].cpus_milli // _MILLI)


def _ray_options(gang: Gang, member: int) -> list[str]:
    memory_bytes = gang.tasks[member].memory_bytes
    options = [
        f"--num-cpus={_cores(gang, member)}",
        f"--num-gpus={math.ceil(gang.accelerators[member])}",
        # Workers of several clusters may share a node: each takes ports that are free.
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]
    if memory_bytes:
        store_bytes = max(_STORE_BYTES_MIN, int(memory_bytes * _STORE_RATIO))
        options.append(f"--object-store-memory={store_bytes}")
        options.append(f"--memory={max(0, memory_bytes - store_bytes)}")
    return options


def _dask_options(gang: Gang, member: int) -> list[str]:
    options = ["--nthreads", str(_cores(gang, member)), "--name", f"task-{member}"]
    if gang.accelerators[member]:
        options += ["--resources", f"GPU={gang.accelerators[member]:g}"]
    if gang.tasks[member].memory_bytes:
        options += ["--memory-limit", str(gang.tasks[member].memory_bytes)]
    return options
