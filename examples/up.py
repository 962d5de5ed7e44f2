"""What `make up` does: start the server unless one runs, run the example job, follow its log.

With `--server`, as `make server` does, only the first of these.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TERCIO = [str(Path(sys.executable).with_name("tercio"))]
UNPRIVILEGED = "nobody"
NEXT = """
Try next:
  tercio ps --all            every job, and why the waiting ones wait
  tercio story {job}     what happened to this one
  tercio node list           this machine as Tercio sees it
  tercio submit --gpus CPU:1 --follow -- echo hello
  tercio web                 a link to the web page, where it is built (make ui)
  tercio demo                64 simulated GPUs with jobs in them
  tercio down                stop the server; running jobs go on
"""
NOT_ON_PATH = """
'tercio' is not on your PATH yet: export PATH={directory}:$PATH"""

OTHER_USER = """
Was it a matter of users? The server was not started by `make up`, which looks first whether
jobs may run as an unprivileged user. Start it again: `make down`, then `make up`."""


def main() -> int:
    """Return the exit code of the job."""
    # Jobs find the Python of this environment, so that `python train.py` has torch.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path}
    is_up = subprocess.run([*TERCIO, "ps", "-o", "name"], capture_output=True).returncode == 0
    if is_up:
        print("using the server that runs already", flush=True)
    else:
        if os.geteuid() == 0:
            environment.setdefault("TERCIO_LOCAL__RUN_AS", choose_user())
        started = subprocess.run([*TERCIO, "up", "--background"], env=environment)
        if started.returncode != 0:
            return started.returncode
    print(devices_here(environment), flush=True)
    if "--server" in sys.argv[1:]:
        return 0
    submitted = subprocess.run(
        [*TERCIO, "submit", "-o", "name", str(HERE / "train-ddp" / "job.yaml")],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if submitted.returncode != 0:
        return submitted.returncode
    job = submitted.stdout.strip().removeprefix("job/")
    print(f"submitted {job}; its log:", flush=True)
    subprocess.run([*TERCIO, "logs", "--follow", job], env=environment)
    ended = subprocess.run([*TERCIO, "wait", job], env=environment).returncode
    if ended == 0:
        print(NEXT.format(job=job).rstrip())
        if shutil.which("tercio") is None:
            print(NOT_ON_PATH.format(directory=Path(TERCIO[0]).parent))
    else:
        subprocess.run([*TERCIO, "story", job], env=environment)
        if is_up and os.geteuid() == 0:
            print(OTHER_USER)
    return ended


def devices_here(environment: dict[str, str]) -> str:
    """Say in one line what the server has to give, and what was declared for want of better."""
    listed = subprocess.run(
        [*TERCIO, "node", "list", "-o", "json"],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    total: dict[str, float] = {}
    for node in json.loads(listed.stdout)["rows"]:
        for kind, count in node["total"].items():
            total[kind] = total.get(kind, 0) + count
    shown = ", ".join(f"{kind}:{count:g}" for kind, count in total.items()) or "none"
    if "CPU" in total:
        return f"fewer than two accelerators here: declared {shown}, devices that are CPU only"
    return f"devices: {shown}"


def choose_user() -> str:
    """Return the system user for jobs of a server run by root: unprivileged where that works."""
    try:
        subprocess.run(
            [sys.executable, "-c", "import tercio"],
            user=UNPRIVILEGED, group="nogroup", extra_groups=[], cwd="/", check=True,
            capture_output=True, env={"PATH": os.defpath},
        )  # fmt: skip
    except (OSError, LookupError, ValueError, subprocess.CalledProcessError):
        print(
            f"jobs run as root: {UNPRIVILEGED} may not run the Python in {sys.prefix}", flush=True
        )
        return "root"
    print(f"jobs run as {UNPRIVILEGED}", flush=True)
    return UNPRIVILEGED


if __name__ == "__main__":
    sys.exit(main())
