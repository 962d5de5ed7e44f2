"""MPI: task 0 runs the command, which calls `mpirun`; the other tasks hold their nodes and wait.

Host files are written for Open MPI (`host slots=N`) and MPICH (`host:N`) and named in the
variables by which both find them, so that `mpirun ./a.out` needs no option. Ranks on other
nodes are started by `mpirun` itself, over ssh or what its site uses; inside one node it forks.
Ranks that it starts see the devices of task 0 only where the tasks share a node: give MPI one
task per node with all its devices.

Task 0 listens on its last port while the command runs; the others connect and end as it ends.
Nobody can order anything over that connection: it carries one exit code, from task 0.
"""

from __future__ import annotations

from typing import Final

from tercio.launch.environment import HOSTFILE
from tercio.launch.gang import Gang

MACHINEFILE: Final = "machinefile"
BARRIER: Final = "tercio-mpi.py"

BARRIER_SOURCE: Final = '''\
"""hold PORT TASKS COMMAND: run it, tell the others its end. wait HOST PORT: end as task 0 does."""
import socket, subprocess, sys, threading, time


def hold(port, others, command):
    server = socket.create_server(("", port), backlog=max(others, 1))
    waiting = []

    def accept():
        while True:
            waiting.append(server.accept()[0])

    threading.Thread(target=accept, daemon=True).start()
    code = subprocess.call(command)
    code = code if code >= 0 else 128 - code
    deadline = time.monotonic() + 60
    while len(waiting) < others and time.monotonic() < deadline:
        time.sleep(0.05)
    for connection in waiting:
        try:
            connection.sendall(b"%d\\n" % code)
            connection.close()
        except OSError:
            pass
    return code


def wait(host, port):
    deadline = time.monotonic() + 600
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=10)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit("task 0 cannot be reached at %s:%d: %s" % (host, port, error))
            time.sleep(0.2)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    told = b""
    while True:
        try:
            chunk = connection.recv(64)
        except OSError:
            chunk = b""
        if not chunk:
            break
        told += chunk
    return int(told) if told.endswith(b"\\n") else 1


if sys.argv[1] == "hold":
    sys.exit(hold(int(sys.argv[2]), int(sys.argv[3]) - 1, sys.argv[4:]))
sys.exit(wait(sys.argv[2], int(sys.argv[3])))
'''


def mpi_variables(gang: Gang) -> dict[str, str]:
    """Return where the host files are, and the number of ranks."""
    hostfile = f"${{TERCIO_TASK_DIR}}/{HOSTFILE}"
    return {
        "WORLD_SIZE": str(sum(gang.ranks(member) for member in range(gang.size))),
        "TERCIO_HOSTFILE": hostfile,
        "DSTACK_MPI_HOSTFILE": hostfile,
        "OMPI_MCA_orte_default_hostfile": hostfile,
        "PRTE_MCA_prte_default_hostfile": hostfile,
        "HYDRA_HOST_FILE": f"${{TERCIO_TASK_DIR}}/{MACHINEFILE}",
    }


def mpi_files(gang: Gang) -> dict[str, str]:
    """Return the host files: one line per host, with the ranks of all its tasks."""
    slots: dict[str, int] = {}
    for member, address in enumerate(gang.addresses):
        slots[address] = slots.get(address, 0) + gang.ranks(member)
    return {
        HOSTFILE: "".join(f"{host} slots={count}\n" for host, count in slots.items()),
        MACHINEFILE: "".join(f"{host}:{count}\n" for host, count in slots.items()),
    }


def mpi_command(gang: Gang, member: int, script: str) -> str:
    """Return the shell line of a member; `script` is the name of the file with the command."""
    port = gang.ports[0][-1]
    barrier = f'exec python3 "$TERCIO_TASK_DIR/{BARRIER}"'
    if member == 0:
        return f'{barrier} hold {port} {gang.size} "${{BASH:-sh}}" "$TERCIO_TASK_DIR/{script}"\n'
    return f"{barrier} wait {gang.addresses[0]} {port}\n"
