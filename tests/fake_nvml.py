"""A fake libnvidia-ml.so.1, built by gcc in the test run, under the unmodified nvidia-ml-py.

The file that FAKE_NVML names is read again at every call: lines `GPU.KEY VALUE`, where GPU is an
index, `*` for all devices or `-1` for the driver. A test edits the file and sees the real client
react:

    -1.count 3        devices
    -1.init 9         the driver is not loaded
    *.power_mw 350000 draw; the energy counter is its integral over time
    1.lost 1          fallen off the bus
    0.hang 30         calls on the device take that long
    0.throttle 72     clock event reasons
    0.set_error 4     no power limit can be set

Power limits that are set stand in a file beside it, `FAKE_NVML.limits`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAME = "libnvidia-ml.so.1"
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
typedef struct dev { int i; } *dev_t_;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char busId[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } proc_t;
typedef struct { unsigned gpu, memory; } util_t;
typedef union { double d; int si; unsigned ui; unsigned long ul; unsigned long long ull;
                long long sll; unsigned short us; } val_t;
typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec;
                 unsigned valueType; int nvmlReturn; val_t value; } field_t;
static struct dev D[64];
static long long get(int i, const char *key, long long none) {
  char *path = getenv("FAKE_NVML"), line[256], name[128]; long long value, found = none;
  FILE *f = path ? fopen(path, "r") : NULL;
  if (!f) return none;
  while (fgets(line, sizeof line, f)) {
    char who[32];
    if (sscanf(line, "%31[^.].%127s %lld", who, name, &value) != 3 || strcmp(name, key)) continue;
    if (!strcmp(who, "*") ? i >= 0 : atoi(who) == i) found = value;
  }
  fclose(f); return found;
}
static int sick(dev_t_ d) {
  long long s = get(d->i, "hang", 0);
  if (s) sleep((unsigned)s);
  return get(d->i, "lost", 0) ? 15 : 0;
}
#define LIVE(d) { int bad_ = sick(d); if (bad_) return bad_; }
#define NUM(fn, type, key, none) int fn(dev_t_ d, type *v) { LIVE(d) \
  long long x = get(d->i, key, none); if (x < 0) return 3; *v = (type)x; return 0; }
int nvmlInit_v2(void) { long long s = get(-1, "hang", 0); if (s) sleep((unsigned)s);
  return (int)get(-1, "init", 0); }
int nvmlInitWithFlags(unsigned f) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int r) { return r == 9 ? "Driver Not Loaded" : r == 15 ?
  "GPU is lost" : r == 3 ? "Not Supported" : "error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.65.06"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)get(-1, "count", 1); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev_t_ *d) {
  if ((long long)i >= get(-1, "count", 1)) return 2;
  D[i].i = (int)i; *d = &D[i]; return 0;
}
int nvmlDeviceGetName(dev_t_ d, char *s, unsigned n) { LIVE(d)
  snprintf(s, n, "NVIDIA H100 80GB HBM3"); return 0; }
int nvmlDeviceGetUUID(dev_t_ d, char *s, unsigned n) { LIVE(d)
  snprintf(s, n, "GPU-%08d", d->i); return 0; }
int nvmlDeviceGetSerial(dev_t_ d, char *s, unsigned n) { LIVE(d)
  snprintf(s, n, "16503%02d", d->i); return 0; }
int nvmlDeviceGetMemoryInfo(dev_t_ d, unsigned long long *m) { LIVE(d)
  m[0] = 85520809984ULL; m[2] = (unsigned long long)get(d->i, "used", 0); m[1] = m[0] - m[2];
  return 0; }
int nvmlDeviceGetPciInfo_v3(dev_t_ d, pci_t *p) { LIVE(d)
  memset(p, 0, sizeof *p); p->bus = 16u + (unsigned)d->i;
  snprintf(p->busId, 32, "00000000:%02X:00.0", 16 + d->i); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(dev_t_ d, unsigned *n, proc_t *p) { LIVE(d)
  long long pid = get(d->i, "pid", 0);
  if (!pid) { *n = 0; return 0; }
  if (*n < 1 || !p) { *n = 1; return 7; }
  *n = 1; p[0].pid = (unsigned)pid; p[0].used = 1; return 0; }
int nvmlDeviceGetUtilizationRates(dev_t_ d, util_t *u) { LIVE(d)
  u->gpu = (unsigned)get(d->i, "util", 0); u->memory = (unsigned)get(d->i, "memutil", 0);
  return 0; }
NUM(nvmlDeviceGetPowerUsage, unsigned, "power_mw", 75000)
static char *limits_file(void) { static char name[4096];
  snprintf(name, sizeof name, "%s.limits", getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "");
  return name; }
static long long limit_of(int i) {
  long long found = get(i, "limit_mw", 700000), value; int who;
  FILE *f = fopen(limits_file(), "r");
  if (!f) return found;
  while (fscanf(f, "%d %lld", &who, &value) == 2) if (who == i) found = value;
  fclose(f); return found;
}
int nvmlDeviceGetEnforcedPowerLimit(dev_t_ d, unsigned *v) { LIVE(d)
  *v = (unsigned)limit_of(d->i); return 0; }
int nvmlDeviceGetPowerManagementLimit(dev_t_ d, unsigned *v) { LIVE(d)
  *v = (unsigned)limit_of(d->i); return 0; }
int nvmlDeviceGetPowerManagementLimitConstraints(dev_t_ d, unsigned *a, unsigned *b) { LIVE(d)
  *a = 200000; *b = 700000; return 0; }
int nvmlDeviceSetPowerManagementLimit(dev_t_ d, unsigned v) { LIVE(d)
  long long denied = get(d->i, "set_error", 0);
  if (denied) return (int)denied;
  if (v < 200000 || v > 700000) return 2;
  FILE *f = fopen(limits_file(), "a");
  if (!f) return 999;
  fprintf(f, "%d %u\n", d->i, v); fclose(f); return 0; }
NUM(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "default_mw", 700000)
NUM(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "gen_max", 5)
NUM(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "width_max", 16)
NUM(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "gen", 5)
NUM(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "width", 16)
NUM(nvmlDeviceGetPcieReplayCounter, unsigned, "replay", 0)
NUM(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle", 1)
NUM(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle", 1)
int nvmlDeviceGetTotalEnergyConsumption(dev_t_ d, unsigned long long *v) { LIVE(d)
  struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
  long long fixed = get(d->i, "energy_mj", -1);
  if (fixed >= 0) { *v = (unsigned long long)fixed; return 0; }
  *v = (unsigned long long)((t.tv_sec + t.tv_nsec / 1e9) * (double)get(d->i, "power_mw", 75000));
  return 0; }
int nvmlDeviceGetTemperature(dev_t_ d, unsigned k, unsigned *v) { LIVE(d)
  *v = (unsigned)get(d->i, "temp", 41); return 0; }
int nvmlDeviceGetClockInfo(dev_t_ d, unsigned k, unsigned *v) { LIVE(d)
  *v = (unsigned)(k == 2 ? get(d->i, "mem_clock", 2619) : get(d->i, "sm_clock", 1980)); return 0; }
int nvmlDeviceGetTotalEccErrors(dev_t_ d, unsigned kind, unsigned counter, unsigned long long *v) {
  LIVE(d) *v = (unsigned long long)get(d->i, kind ? "ecc_uncorrected" : "ecc_corrected", 0);
  return 0; }
int nvmlDeviceGetRemappedRows(dev_t_ d, unsigned *c, unsigned *u, unsigned *p, unsigned *f) {
  LIVE(d) *c = (unsigned)get(d->i, "remap_c", 0); *u = (unsigned)get(d->i, "remap_u", 0);
  *p = (unsigned)get(d->i, "remap_pending", 0); *f = (unsigned)get(d->i, "remap_failed", 0);
  return 0; }
int nvmlDeviceGetFieldValues(dev_t_ d, int n, field_t *v) { LIVE(d)
  for (int k = 0; k < n; k++) {
    long long x = v[k].fieldId == 230 ? get(d->i, "recovery", -1) : -1;
    v[k].nvmlReturn = x < 0 ? 3 : 0; v[k].valueType = 1; v[k].value.ui = (unsigned)(x < 0 ? 0 : x);
  }
  return 0; }
int nvmlDeviceGetNvLinkState(dev_t_ d, unsigned l, unsigned *on) { LIVE(d)
  long long all = get(d->i, "links", 18);
  if ((long long)l >= all) return 2;
  *on = (long long)l >= get(d->i, "links_down", 0); return 0; }
typedef struct { unsigned metricId; int nvmlReturn; double value; char *names[3]; } gpm_t;
typedef struct { unsigned version, count; void *one, *two; gpm_t metrics[477]; } gpms_t;
typedef struct { unsigned version, supported; } gpmsup_t;
int nvmlGpmQueryDeviceSupport(dev_t_ d, gpmsup_t *v) { LIVE(d)
  v->supported = (unsigned)get(d->i, "gpm", 1); return 0; }
int nvmlGpmSampleAlloc(void **v) { *v = calloc(1, sizeof(int)); return *v ? 0 : 999; }
int nvmlGpmSampleFree(void *v) { free(v); return 0; }
int nvmlGpmSampleGet(dev_t_ d, void *v) { LIVE(d) *(int *)v = d->i; return 0; }
int nvmlGpmMetricsGet(gpms_t *m) {
  for (unsigned k = 0; k < m->count; k++) {
    unsigned id = m->metrics[k].metricId;
    const char *key = id == 5 ? "tensor" : id == 2 ? "sm" : id == 1 ? "util" : "dram";
    m->metrics[k].nvmlReturn = 0; m->metrics[k].value = (double)get(*(int *)m->one, key, 0);
  }
  return 0; }
"""


def build(directory: Path) -> Path:
    """Build the library into a directory; what it does not play answers "not supported"."""
    import pynvml

    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build a driver library")
    names = re.findall(
        r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text(encoding="utf-8")
    )
    ours = re.findall(r"\b(nvml\w+)\(", SOURCE) + re.findall(r"NUM\((nvml\w+),", SOURCE)
    missing = sorted(set(names) - set(ours))
    stubs = "\n".join(f"int {name}() {{ return 3; }}" for name in missing)
    (directory / "nvml.c").write_text(SOURCE + stubs, encoding="utf-8")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{NAME}", "-o", NAME, "nvml.c"],
        cwd=directory,
        check=True,
    )
    return directory


class FakeDriver:
    """The state file of one fake driver, and the environment that makes programs see it."""

    def __init__(self, library: Path, state: Path) -> None:
        self.state = state
        self.values: dict[str, int] = {}
        self.env = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(state)}
        self.set({"-1.count": 1})

    def limits_w(self) -> list[tuple[int, int]]:
        """Return the power limits that were set, in order: device and watts."""
        try:
            text = self.state.with_name(self.state.name + ".limits").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        rows = (line.split() for line in text.splitlines())
        return [(int(index), int(limit_mw) // 1000) for index, limit_mw in rows]

    def reboot(self) -> None:
        """Forget the power limits that were set, as a driver does that is loaded anew."""
        self.state.with_name(self.state.name + ".limits").unlink(missing_ok=True)

    def set(self, values: dict[str, int]) -> None:
        """Set values such as `{"0.temp": 91}`; readers see all of them or none."""
        self.values.update(values)
        lines = sorted(self.values.items(), key=lambda pair: not pair[0].startswith("*"))
        fresh = self.state.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in lines), encoding="utf-8")
        fresh.replace(self.state)
