"""Small programs in place of docker and apptainer: they run the command on this machine.

They stand for foreign programs, with what of them matters to a task: apptainer's processes are
its children; docker's belong to a daemon, have no parent here, and outlive their client.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

APPTAINER = """\
#!{python}
import os, sys
args = sys.argv[1:]
if args == ["--version"]:
    print("apptainer version 1.3"); sys.exit(0)
assert args[0] == "exec", args
options = []
while args[1].startswith("--"):
    options.append(args.pop(1))
image, command = args[1], args[2:]
with open({told!r}, "a") as file:
    file.write(" ".join([*options, image]) + "\\n")
for option in options:
    name, _, value = option.partition("=")
    if name == "--home":
        os.environ["HOME"] = value
    if name == "--pwd":
        os.chdir(value)
os.environ["PATH"] = "/usr/bin:/bin"
os.environ["INSIDE"] = image
os.execvp(command[0], command)
"""

DOCKER = """\
#!{python}
import json, os, signal, socket, sys
args = sys.argv[1:]
with open({told!r}, "a") as file:
    file.write(" ".join(args) + "\\n")
if args[0] == "info":
    print("28.0"); sys.exit(0)
options = []
while len(args) > 1 and args[1].startswith("--"):
    options.append(args.pop(1).partition("="))
env = {{"PATH": "/usr/bin:/bin", "HOME": "/"}}
request = {{"op": args[0], "name": args[1], "argv": args[2:], "env": env, "cwd": "/"}}
for name, _, value in options:
    if name == "--env":
        env[value] = os.environ[value]
    if name == "--format":
        request["format"] = value
    if name == "--workdir":
        request["cwd"] = value
    if name == "--name":
        request["name"] = value
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, signal.SIG_IGN)
daemon = socket.socket(socket.AF_UNIX)
daemon.connect({told!r} + ".sock")
socket.send_fds(daemon, [json.dumps(request).encode()], [0, 1, 2])
sys.exit(int(daemon.recv(16) or b"137"))
"""

DAEMON = """\
import contextlib, ctypes, json, os, signal, socket, subprocess, sys, threading
NEW_PID = 0x20000000
boxes = {{}}
server = socket.socket(socket.AF_UNIX)
server.bind({told!r} + ".sock")
server.listen(64)

def below(root):
    found, front = [], [root]
    while front:
        pid = front.pop()
        found.append(pid)
        try:
            with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
                front += map(int, file.read().split())
        except OSError:
            found.pop()
    return found

def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

def serve(connection):
    packet, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    request = json.loads(packet)
    op, box = request["op"], boxes.get(request["name"])
    code = 0
    if op == "run":
        # As in docker, the command is the first process of a namespace of its own.
        assert ctypes.CDLL(None, use_errno=True).unshare(NEW_PID) == 0, ctypes.get_errno()
        child = subprocess.Popen(request["argv"], env=request["env"], cwd=request["cwd"],
                                 stdin=subprocess.DEVNULL, stdout=fds[1], stderr=fds[2],
                                 start_new_session=True)
        boxes[request["name"]] = (child, request)
        code = child.wait()
        kill(below(child.pid))
    elif op == "exec" and box:
        code = subprocess.call(request["argv"], env=box[1]["env"], cwd=box[1]["cwd"],
                               stdin=fds[0], stdout=fds[1], stderr=fds[2])
    elif op == "inspect" and box:
        is_so = "Running" in request["format"] and box[0].poll() is None
        os.write(fds[1], b"true\\n" if is_so else b"false\\n")
    elif op == "top" and box and box[0].poll() is None:
        os.write(fds[1], "\\n".join(["PID", *map(str, below(box[0].pid))]).encode())
    elif op == "rm" and box:
        kill(below(box[0].pid))
    else:
        code = 1
    for fd in fds:
        os.close(fd)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(str(code if code >= 0 else 128 - code).encode())
    connection.close()

print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@contextlib.contextmanager
def docker_daemon(told: Path) -> Iterator[None]:
    """Run what the stand-in of docker talks to; its containers are this process's children."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON.format(told=str(told))], stdout=subprocess.PIPE
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"ready\n"
        yield
    finally:
        daemon.kill()
        daemon.communicate()


def install(directory: Path, name: str) -> tuple[Path, Path]:
    """Put a stand-in into a directory; return it, and the file that its calls are written to."""
    told = directory / f"{name}.calls"
    told.touch()
    path = directory / name
    text = {"apptainer": APPTAINER, "docker": DOCKER}[name]
    path.write_text(text.format(python=sys.executable, told=str(told)), encoding="utf-8")
    path.chmod(0o755)
    return path, told
