"""Device inventory through a real NVML interface: a small library built here plays the driver."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tercio.collect.inventory import MachineReader
from tercio.collect.probe import probe_devices
from tercio.collect.procfs import Machine
from tercio.collect.reading import Probe
from tercio.model.ids import SiteName
from tercio.model.node import Links

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct dev { int i; } *dev_t_;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char busId[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } proc_t;
static struct dev D[16];
static int number(const char *name) { char *v = getenv(name); return v ? atoi(v) : 0; }
int nvmlInit_v2(void) { if (number("FAKE_HANG")) sleep(600); return number("FAKE_INIT"); }
int nvmlInitWithFlags(unsigned f) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return r == 9 ? "Driver Not Loaded" : "error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = number("FAKE_COUNT"); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev_t_ *d) {
  if ((int)i >= number("FAKE_COUNT")) return 2;
  D[i].i = i; *d = &D[i]; return 0;
}
int nvmlDeviceGetName(dev_t_ d, char *s, unsigned n) {
  if (number("FAKE_LOST") == d->i + 1) return 15;
  char *name = getenv("FAKE_NAME");
  snprintf(s, n, "%s", name ? name : "NVIDIA H100 80GB HBM3"); return 0;
}
int nvmlDeviceGetUUID(dev_t_ d, char *s, unsigned n) { snprintf(s, n, "GPU-%d", d->i); return 0; }
int nvmlDeviceGetSerial(dev_t_ d, char *s, unsigned n) { snprintf(s, n, "S%d", d->i); return 0; }
int nvmlDeviceGetMemoryInfo(dev_t_ d, unsigned long long *m) {
  m[0] = 85520809984ULL; m[1] = m[0]; m[2] = 0; return 0;
}
int nvmlDeviceGetPciInfo_v3(dev_t_ d, pci_t *p) {
  memset(p, 0, sizeof *p); snprintf(p->busId, 32, "00000000:%02X:00.0", 16 + d->i); return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(dev_t_ d, unsigned *n, proc_t *p) {
  int pid = number("FAKE_PID");
  if (!pid || d->i) { *n = 0; return 0; }
  if (*n < 1 || !p) { *n = 1; return 7; }
  *n = 1; p[0].pid = pid; p[0].used = 1; return 0;
}
/* FAKE_LINKS=2: to a switch; 1: pairs (0-1, 2-3); 0: the driver knows no links. */
int nvmlDeviceGetNvLinkState(dev_t_ d, unsigned l, unsigned *on) {
  if (!number("FAKE_LINKS")) return 3;
  *on = l == 0; return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(dev_t_ d, unsigned l, unsigned *t) {
  *t = number("FAKE_LINKS") == 2 ? 2 : 0; return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(dev_t_ d, unsigned l, pci_t *p) {
  memset(p, 0, sizeof *p); snprintf(p->busId, 32, "00000000:%02X:00.0", 16 + (d->i ^ 1)); return 0;
}
"""


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build a driver library")
    directory = tmp_path_factory.mktemp("nvml")
    (directory / "nv.c").write_text(LIBRARY)
    name = "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-o", name, "nv.c"],
        cwd=directory,
        check=True,
    )
    return directory


@pytest.fixture
def fake(driver: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("FAKE_COUNT", "4")
    monkeypatch.setenv("FAKE_LINKS", "2")
    return monkeypatch


class Cards:
    """Card names as these tests need them."""

    def canonical_type(self, name: str) -> str:
        return "H100" if "H100" in name else name or "unknown"

    def card_bytes(self, name: str, memory_bytes: int = 0) -> int:
        return 80 * 10**9 if "80GB" in name else 0


def reader(**named: object) -> MachineReader:
    return MachineReader(
        site=SiteName("here"),
        cards=Cards(),
        name="n1",
        machine=lambda: Machine(cpus_milli=4000, memory_bytes=100),
        **named,  # type: ignore[arg-type]
    )


def is_ours(pid: int) -> bool:
    return pid == 77


def test_devices_become_a_node(fake: pytest.MonkeyPatch) -> None:
    node = reader()(is_ours)
    assert [device.type for device in node.devices] == ["H100"] * 4
    assert [device.uuid for device in node.devices] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    first = node.devices[0]
    assert (first.serial, first.card_bytes, first.memory_bytes, first.vendor) == (
        "S0", 80 * 10**9, 85520809984, "nvidia",
    )  # fmt: skip
    assert (node.pool, node.links, node.foreign_devices) == ("H100", Links.NVSWITCH, ())
    assert (node.cpus_milli, node.memory_bytes) == (4000, 95)


def test_links_make_islands(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_LINKS", "1")
    node = reader()(is_ours)
    assert (node.links, [d.island for d in node.devices]) == (Links.PAIRS, [0, 0, 1, 1])
    fake.setenv("FAKE_LINKS", "0")
    node = reader()(is_ours)
    assert (node.links, [d.island for d in node.devices]) == (Links.NONE, [0, 1, 2, 3])


def test_a_process_that_is_not_ours_makes_its_device_foreign(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_PID", "78")
    assert reader()(is_ours).foreign_devices == (0,)
    fake.setenv("FAKE_PID", "77")
    assert reader()(is_ours).foreign_devices == ()


def test_cpu_devices_stand_in_for_missing_accelerators(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_COUNT", "1")
    assert [d.type for d in reader()(is_ours).devices] == ["H100", "CPU", "CPU"]
    assert [d.index for d in reader()(is_ours).devices] == [0, 1, 2]
    assert len(reader(cpu_devices=0)(is_ours).devices) == 1
    fake.setenv("FAKE_COUNT", "2")
    assert [d.type for d in reader()(is_ours).devices] == ["H100", "H100"]


def test_a_device_that_vanishes_keeps_its_place_unhealthy(fake: pytest.MonkeyPatch) -> None:
    machine = reader()
    assert len(machine(is_ours).devices) == 4
    fake.setenv("FAKE_COUNT", "3")
    node = machine(is_ours)
    assert [d.healthy for d in node.devices] == [True, True, True, False]
    assert [d.uuid for d in node.devices] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    fake.setenv("FAKE_COUNT", "4")
    assert all(d.healthy for d in machine(is_ours).devices)


def test_a_device_that_does_not_answer_is_unhealthy(fake: pytest.MonkeyPatch) -> None:
    machine = reader()
    machine(is_ours)
    fake.setenv("FAKE_LOST", "2")
    node = machine(is_ours)
    assert [(d.type, d.healthy) for d in node.devices][:3] == [
        ("H100", True),
        ("H100", False),
        ("H100", True),
    ]


def test_a_driver_that_is_not_loaded_is_a_note(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_INIT", "9")
    probe = probe_devices()
    assert probe.devices == ()
    assert "Driver Not Loaded" in probe.notes["nvidia"]


def test_a_driver_that_hangs_costs_its_deadline_only(fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FAKE_HANG", "1")
    probe = probe_devices(timeout_s=0.5)
    assert probe.devices == ()
    assert "did not answer" in probe.notes["probe"]


def test_a_hanging_driver_turns_known_devices_unhealthy(fake: pytest.MonkeyPatch) -> None:
    machine = reader()
    machine(is_ours)
    gone = Probe(notes={"probe": "the driver did not answer"})
    machine._probe = lambda: gone
    node = machine(is_ours)
    assert [d.healthy for d in node.devices] == [False] * 4
