"""What `make up` does: start the server unless one runs, run the example job, follow its log."""

import os
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
  tercio demo                64 simulated GPUs with jobs in them
  tercio down                stop the server; running jobs go on
('tercio' is {tercio})"""


def main() -> int:
    """Return the exit code of the job."""
    # Jobs find the Python of this environment, so that `python train.py` has torch.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path}
    if subprocess.run([*TERCIO, "ps", "-o", "name"], capture_output=True).returncode == 0:
        print("using the server that runs already")
    else:
        if os.geteuid() == 0:
            environment.setdefault("TERCIO_LOCAL__RUN_AS", choose_user())
        started = subprocess.run([*TERCIO, "up", "--background"], env=environment)
        if started.returncode != 0:
            return started.returncode
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
        print(NEXT.format(job=job, tercio=TERCIO[0]))
    else:
        subprocess.run([*TERCIO, "story", job], env=environment)
    return ended


def choose_user() -> str:
    """Return the system user for jobs of a server run by root: unprivileged where that works."""
    try:
        subprocess.run(
            [sys.executable, "-c", "import tercio"],
            user=UNPRIVILEGED, group="nogroup", extra_groups=[], cwd="/", check=True,
            capture_output=True, env={"PATH": os.defpath},
        )  # fmt: skip
    except (OSError, LookupError, ValueError, subprocess.CalledProcessError):
        print(f"jobs run as root: {UNPRIVILEGED} may not run the Python in {sys.prefix}")
        return "root"
    print(f"jobs run as {UNPRIVILEGED}")
    return UNPRIVILEGED


if __name__ == "__main__":
    sys.exit(main())
