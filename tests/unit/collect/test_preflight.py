"""One node's preflight, on the fake driver: what is wrong is said, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import fake_nvml
from tercio.cli.commands.check import exit_code, line
from tercio.collect.fault_table import load_fault_table
from tercio.collect.preflight import Check, Wanted, preflight
from tercio.collect.sampling import Sampler

TABLE = load_fault_table()


def run(tmp_path: Path, *, log: str = "", **wanted: object) -> dict[str, Check]:
    path = tmp_path / "kern.log"
    path.write_text(log)
    sampler = Sampler(timeout_s=30.0)
    try:
        checks = preflight(
            sample=sampler.sample, table=TABLE, kernel_log=str(path), ports=tmp_path / "ib",
            wanted=Wanted(disks=("/",), **wanted),  # type: ignore[arg-type]
            is_driver_loaded=lambda: True,
        )  # fmt: skip
    finally:
        sampler.close()
    return {check.name: check for check in checks}


def test_a_whole_node_passes(gpus: fake_nvml.FakeDriver, tmp_path: Path) -> None:
    checks = run(tmp_path, gpus=2, nvlinks=18)
    assert {c.verdict for c in checks.values() if c.name != "disk /"} == {"ok", "skipped"}


@pytest.mark.parametrize(
    ("values", "name", "text"),
    [
        ({"1.ecc_uncorrected": 3}, "ecc", "GPU 1: 3 uncorrected"),
        ({"0.remap_failed": 1}, "row remaps", "replace the card"),
        ({"0.recovery": 2}, "recovery action", "reboot_node"),
        ({"1.width": 8}, "pcie", "x8 of x16"),
        ({"1.gen": 1}, "pcie", "generation 1 of 5 under load"),
        ({"0.throttle": 0x40}, "clocks", "held down by the hardware"),
        ({"1.links_down": 1}, "nvlink", "GPU 1: 17 of 18"),
        ({"1.lost": 1}, "gpus", "GPU is lost"),
        ({"-1.count": 1}, "gpus", "1 of 2 answer"),
        ({"-1.init": 9}, "driver", "Driver Not Loaded"),
    ],
)
def test_one_fault_is_one_problem(
    gpus: fake_nvml.FakeDriver, tmp_path: Path, values: dict[str, int], name: str, text: str
) -> None:
    gpus.set(values)
    checks = run(tmp_path, gpus=2, nvlinks=18)
    assert checks[name].verdict == "problem"
    assert text in checks[name].text
    others = {c.name for c in checks.values() if c.verdict == "problem"} - {name, "gpus"}
    assert not others
    assert exit_code(tuple(checks.values())) == 1
    assert line(tuple(checks.values())).count("\n") == 0


@pytest.mark.parametrize(
    "values", [{"0.gen": 1, "0.util": 0}, {"0.throttle": 4}, {"0.remap_pending": 1}]
)
def test_what_is_normal_is_no_problem(
    gpus: fake_nvml.FakeDriver, tmp_path: Path, values: dict[str, int]
) -> None:
    gpus.set(values)
    assert exit_code(tuple(run(tmp_path).values())) in (0, 2)
    assert "problem" not in {c.verdict for n, c in run(tmp_path).items() if n != "disk /"}


def test_an_xid_since_boot_is_a_problem_unless_it_was_code(
    gpus: fake_nvml.FakeDriver, tmp_path: Path
) -> None:
    dead = "NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
    assert "Xid 79" in run(tmp_path, log=dead)["kernel log"].text
    code = "NVRM: Xid (PCI:0000:10:00): 31, pid=1, name=python, Ch 00000008\n"
    assert run(tmp_path, log=code)["kernel log"].verdict == "ok"


def test_ports_and_mounts(gpus: fake_nvml.FakeDriver, tmp_path: Path) -> None:
    for number, state in ((0, "4: ACTIVE"), (1, "2: INIT")):
        port = tmp_path / f"ib/mlx5_{number}/ports/1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "phys_state").write_text("5: LinkUp\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    checks = run(tmp_path, mounts=(str(tmp_path), "/proc"))
    assert "mlx5_1:1 is 2: INIT" in checks["network ports"].text
    assert checks[f"mount {tmp_path}"].verdict == "problem"
    assert checks["mount /proc"].verdict == "ok"


def test_what_cannot_be_found_out_is_unknown() -> None:
    checks = (Check(name="a", verdict="ok"), Check(name="kernel log", verdict="unknown", text="no"))
    assert (exit_code(checks), line(checks)) == (2, "kernel log: no")
    assert line(checks[:1]) == "ok: 1 checks passed"
