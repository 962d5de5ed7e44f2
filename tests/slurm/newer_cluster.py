"""A cluster of a newer Slurm, from a directory with Debian 13 that debootstrap made.

Its daemons and commands run by chroot in a mount namespace of their own, so that nothing stays
mounted; the tests' directories below /tmp are the same inside and outside.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from slurmd_cluster import SlurmCluster

from e2e.room import ROOT

TREE = Path(os.environ.get("TERCIO_SLURM_TREE", ROOT / ".venv" / "slurm-24.11"))
COMMANDS = ("sbatch", "scontrol", "squeue", "scancel", "sacct", "sinfo", "srun")
ENTER = """\
#!/bin/sh
exec unshare --mount --propagation private sh -c '
mount --bind /proc {tree}/proc && mount --rbind /dev {tree}/dev && mount --bind /tmp {tree}/tmp &&
mount --bind {root}/etc/hosts {tree}/etc/hosts && exec chroot {tree} "$@"' _ "$@"
"""
STAND_IN = '#!/bin/sh\nexec {root}/enter /usr/bin/{name} "$@"\n'
AWAY = re.compile(r"^(AccountingStorage|TaskPlugin|ProctrackType|AuthInfo|AuthType|CredType)")
MORE = """\
AuthType=auth/slurm
CredType=cred/slurm
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
"""


def newer_missing() -> str | None:
    """Why there can be no such cluster here, or None."""
    if os.geteuid() != 0:
        return "needs root: it runs in a chroot"
    if not (TREE / "usr" / "sbin" / "slurmctld").exists():
        return f"is not in {TREE}: make newer-slurm"
    return None


class NewerCluster(SlurmCluster):
    """Four nodes of Slurm 24.11, authenticated without munge, with slurmrestd.

    Attributes:
        commands: a directory with its programs, to be first in PATH.
    """

    def start(self) -> None:
        (self.root / "etc").mkdir()
        self.commands = self.root / "bin"
        self.commands.mkdir()
        host = socket.gethostname().partition(".")[0]
        (self.root / "etc" / "hosts").write_text(f"127.0.0.1 localhost {host}\n")
        self._script(self.root / "enter", ENTER.format(tree=TREE, root=self.root))
        for name in COMMANDS:
            self._script(self.commands / name, STAND_IN.format(root=self.root, name=name))
        self.env["PATH"] = f"{self.commands}:{self.env['PATH']}"
        super().start()

    def _script(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def _munged(self) -> None:
        key = self.root / "etc" / "slurm.key"
        key.write_bytes(os.urandom(256))
        key.chmod(0o600)

    def _accounting(self) -> None:
        """There is none."""

    def start_rest(self) -> None:
        self._start(
            "slurmrestd", "-u", "nobody", "-g", "nogroup", "-a", "rest_auth/jwt",
            "-s", "openapi/slurmctld", "-f", str(self.conf),
            self.rest_url.removeprefix("http://"), env={"SLURM_JWT": "daemon"},
        )  # fmt: skip

    def _command(self, binary: str) -> list[str]:
        return [str(self.root / "enter"), f"/usr/sbin/{binary}"]

    def _slurm_conf(self, host: str) -> str:
        lines = super()._slurm_conf(host).splitlines()
        return MORE + "\n".join(line for line in lines if not AWAY.match(line)) + "\n"
