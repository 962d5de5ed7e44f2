"""Slurm's power saving calls `tercio slurm suspend` and `resume`, and nodes go and come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurmd_cluster import SlurmCluster, missing, until

import tercio

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.xdist_group("slurm-power")]

PROGRAM = """\
#!/bin/sh
PYTHONPATH={source} TERCIO_CONFIG={config} exec {python} -m tercio slurm {order} "$@"
"""


class SavingCluster(SlurmCluster):
    """The cluster, with programs that save power."""

    def start(self) -> None:
        source = Path(tercio.__file__).parents[1]
        config = self.root / "tercio.toml"
        config.write_text(
            f'[slurm]\nresume_command = "/bin/sh {self.root}/hook up"\n'
            f'suspend_command = "/bin/sh {self.root}/hook down"\n'
            f'power_log = "{self.root}/power.log"\n'
        )
        (self.root / "hook").write_text(f'echo "$@" >> {self.root}/hook.told\n')
        for order in ("resume", "suspend"):
            path = self.root / order
            path.write_text(
                PROGRAM.format(source=source, config=config, python=sys.executable, order=order)
            )
            path.chmod(0o755)
        super().start()

    def _slurm_conf(self, host: str) -> str:
        return super()._slurm_conf(host) + (
            f"ResumeProgram={self.root}/resume\nSuspendProgram={self.root}/suspend\n"
            "SuspendTime=86400\nSuspendTimeout=5\nResumeTimeout=60\n"
        )


@pytest.fixture
def saving() -> Iterator[SavingCluster]:
    reason = missing()
    if reason:
        pytest.skip(f"Slurm {reason}")
    cluster = SavingCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_slurm_switches_nodes_by_it(saving: SavingCluster) -> None:
    told = saving.root / "hook.told"

    def said() -> list[str]:
        return told.read_text().splitlines() if told.exists() else []

    saving.out("scontrol", "update", "nodename=n[3-4]", "state=power_down")
    until(lambda: said() == ["down n3 n4"], "the nodes to be switched off")
    until(lambda: "~" in saving.out("sinfo", "-h", "-n", "n3", "-o", "%t"), "n3 to be off")
    # A job brings its node back.
    job = saving.sbatch("-w", "n3", "--mem=1G")
    until(lambda: said() == ["down n3 n4", "up n3"], "n3 to be switched on")
    saving.run("scancel", str(job))
    log = saving.root / "power.log"
    until(lambda: log.exists() and log.read_text().count("exit=0") == 2, "both to be written down")
