"""A short all-reduce over a gang before its command: a slow or wrong path is found in seconds.

One process per task takes part, with the task's first device. With PyTorch it is NCCL where the
task has NVIDIA devices, else gloo; a wrong sum fails the task, and so does NCCL when it says
that it runs over sockets on nodes whose label `fabric` promises more. Without PyTorch bytes go
round by plain TCP, which says something about the network and nothing about NCCL; the log says
which of these was measured.
"""

from __future__ import annotations

from typing import Final

from tercio.launch.fabric import agreed_fabric
from tercio.launch.gang import Gang

PROBE: Final = "tercio-allreduce.py"

PROBE_SOURCE: Final = '''\
"""HOST PORT RANK SIZE SECONDS FABRIC NEXT_HOST NEXT_PORT OWN_PORT: all-reduce, then exit 0 or 1."""
import datetime, os, re, socket, sys, threading, time

MEET_S = 180
FAST = ("infiniband", "roce", "efa")
BLOCK = bytes(1 << 20)


def say(text):
    print("tercio: " + text, file=sys.stderr, flush=True)


def network_of(log):
    """What NCCL says that it uses between nodes: IB, Socket, a plugin's name; empty for nothing."""
    found = re.findall(r"Using network (.+)", log)
    return found[-1].strip() if found else ""


def verdict(backend, network, fabric):
    """Why the path is not the one that was promised, or an empty string."""
    if backend == "nccl" and fabric in FAST and network == "Socket":
        return "NCCL runs over sockets on nodes with fabric " + fabric
    return ""


def by_torch(torch, host, port, rank, size, seconds, fabric):
    import torch.distributed as dist

    has_cuda = torch.cuda.is_available()
    backend = "nccl" if has_cuda else "gloo"
    told = os.path.join(os.environ.get("TERCIO_TASK_DIR", "."), "nccl-check.log")
    if has_cuda:
        os.environ["NCCL_DEBUG"] = "INFO"
        os.environ["NCCL_DEBUG_SUBSYS"] = "INIT,NET"
        os.environ["NCCL_DEBUG_FILE"] = told
        torch.cuda.set_device(0)
    device = "cuda:0" if has_cuda else "cpu"
    dist.init_process_group(
        backend, init_method="tcp://%s:%d" % (host, port), rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=MEET_S))
    count = (16 << 20) if has_cuda else (1 << 20)

    def once():
        values = torch.full((count,), float(rank + 1), device=device)
        began = time.perf_counter()
        dist.all_reduce(values)
        if has_cuda:
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        if float(values[0]) != size * (size + 1) / 2 or float(values[-1]) != float(values[0]):
            raise SystemExit("tercio: the sum over %d tasks is wrong: %s" % (size, values[0]))
        return took

    first = max(once(), once())
    slowest = torch.full((1,), first, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    rounds = max(3, min(10000, int(seconds / max(float(slowest[0]), 1e-6))))
    took = sorted(once() for _ in range(rounds))
    dist.destroy_process_group()
    network = ""
    if has_cuda and os.path.exists(told):
        with open(told, errors="replace") as file:
            network = network_of(file.read())
    median = took[len(took) // 2]
    bus = count * 4 * 2 * (size - 1) / size / median / 1e9
    if rank == 0:
        path = " over " + network if network else ""
        say("all-reduce check: %s%s, %d tasks, %d MiB: %.2f GB/s bus bandwidth, %.2f ms "
            "(median of %d)" % (backend, path, size, count * 4 >> 20, bus, median * 1e3, rounds))
        if backend == "gloo" and fabric in FAST:
            say("all-reduce check: gloo uses TCP; the %s fabric itself was not tested" % fabric)
    return verdict(backend, network, fabric)


def by_ring(rank, size, seconds, fabric, next_host, next_port, own_port):
    server = socket.create_server(("", own_port))
    server.settimeout(MEET_S)
    give_up = time.monotonic() + MEET_S
    while True:
        try:
            out = socket.create_connection((next_host, next_port), timeout=10)
            break
        except OSError as error:
            if time.monotonic() > give_up:
                return "task %d cannot be reached at %s:%d: %s" % (
                    (rank + 1) % size, next_host, next_port, error)
            time.sleep(0.1)
    into, _ = server.accept()
    out.settimeout(MEET_S)
    into.settimeout(MEET_S)

    def send():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            out.sendall(BLOCK)
        out.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    began = time.monotonic()
    sender.start()
    received = 0
    while True:
        chunk = into.recv(1 << 20)
        if not chunk:
            break
        received += len(chunk)
    sender.join()
    rate = received / max(time.monotonic() - began, 1e-9) / 1e9
    say("all-reduce check: no PyTorch here: plain TCP from task %d to task %d: %.2f GB/s; "
        "this says nothing about NCCL%s" % ((rank - 1) % size, rank, rate,
                                            " or the %s fabric" % fabric if fabric in FAST else ""))
    return "" if received else "nothing came from task %d" % ((rank - 1) % size)


def main(words):
    host, port, rank, size, seconds, fabric = words[:6]
    next_host, next_port, own_port = words[6:]
    rank, size, seconds = int(rank), int(size), float(seconds)
    try:
        import torch
    except ImportError:
        torch = None
    try:
        if torch is not None:
            why = by_torch(torch, host, int(port), rank, size, seconds, fabric)
        else:
            why = by_ring(rank, size, seconds, fabric, next_host, int(next_port), int(own_port))
    except (OSError, RuntimeError) as error:
        why = "%s: %s" % (type(error).__name__, error)
    if why:
        say("all-reduce check failed on %s: %s" % (os.environ.get("TERCIO_NODE", "?"), why))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''


def preflight_line(gang: Gang, member: int, seconds: float) -> str:
    """Return the shell line that runs the check of a member, and ends the task when it fails."""
    after = (member + 1) % gang.size
    words = (
        gang.addresses[0], gang.ports[0][-2], member, gang.size, f"{seconds:g}",
        agreed_fabric(gang.nodes) or "none", gang.addresses[after], gang.ports[after][-2],
        gang.ports[member][-2],
    )  # fmt: skip
    return f'python3 "$TERCIO_TASK_DIR/{PROBE}" {" ".join(map(str, words))} || exit 1\n'
