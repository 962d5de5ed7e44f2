"""Cutting cards through a real NVML interface: a small library built here plays the driver."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from test_nvml import LIBRARY, reader

from tercio.collect.cutting import cut_device
from tercio.engines.base import Engine
from tercio.engines.bench import ShellPrograms
from tercio.engines.conformance import CHECKS, run_check
from tercio.engines.local.cutting import NOT_ROOT
from tercio.engines.local.engine import LocalEngine
from tercio.engines.local.prepare import device_environment
from tercio.engines.local.settings import LocalSettings
from tercio.model.effects import DeviceOrder, LaunchTask, ReconfigureDevice
from tercio.model.ids import EffectId, JobId, NodeName, SiteName
from tercio.model.node import MigSlice, MigSpec
from tercio.model.resources import DeviceShare
from tercio.sched.mig import packaged_profiles

# The driver's state is a file, so that it outlives the processes that ask. Three profiles of an
# H100; a slice is its number in `part`, a handle points at a copy of it.
MIG = r"""
struct part { int used, profile, start, size, compute; };
static struct { int mode; struct part parts[8]; } S;
static const struct { unsigned id, compute, size, n, starts[7]; const char *name; } P[] = {
  {19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}, "MIG 1g.10gb"},
  {9, 3, 4, 2, {0, 4}, "MIG 3g.40gb"},
  {0, 7, 8, 1, {0}, "MIG 7g.80gb"},
  {20, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}, "MIG 1g.10gb+me"},
};
static void load(void) {
  FILE *f = fopen(getenv("FAKE_MIG"), "rb");
  memset(&S, 0, sizeof S);
  if (f) { if (fread(&S, sizeof S, 1, f) != 1) abort(); fclose(f); }
}
static void save(void) {
  FILE *f = fopen(getenv("FAKE_MIG"), "wb"); fwrite(&S, sizeof S, 1, f); fclose(f);
}
static struct dev GI[8], MD[8];
int nvmlDeviceGetHandleByUUID(const char *u, dev_t_ *d) { D[0].i = 0; *d = &D[0]; return 0; }
int nvmlDeviceGetMigMode(dev_t_ d, unsigned *c, unsigned *p) {
  if (!getenv("FAKE_MIG")) return 3;
  load(); *c = *p = S.mode; return 0;
}
int nvmlDeviceSetMigMode(dev_t_ d, unsigned mode, unsigned *status) {
  load(); *status = number("FAKE_BUSY") ? 19 : 0;
  for (int i = 0; i < 8; i++) if (S.parts[i].used) *status = 19;
  if (!*status) { S.mode = mode; save(); }
  return 0;
}
typedef struct { unsigned v, id, p2p, slices, n, mp, cp, de, en, jp, of; unsigned long long mb;
  char name[96]; } gip_t;
int nvmlDeviceGetGpuInstanceProfileInfoV(dev_t_ d, unsigned p, gip_t *g) {
  load(); if (!S.mode || p >= sizeof P / sizeof *P) return 3;
  g->id = P[p].id; g->slices = P[p].compute; g->n = P[p].n;
  snprintf(g->name, 96, "%s", P[p].name); return 0;
}
static int of_id(unsigned id) { int i = 0; while (P[i].id != id) i++; return i; }
typedef struct { unsigned start, size; } place_t;
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(dev_t_ d, unsigned id, place_t *q, unsigned *n) {
  int p = of_id(id); *n = P[p].n;
  for (unsigned i = 0; q && i < *n; i++) { q[i].start = P[p].starts[i]; q[i].size = P[p].size; }
  return 0;
}
int nvmlDeviceGetGpuInstances(dev_t_ d, unsigned id, dev_t_ *out, unsigned *n) {
  load(); if (number("FAKE_DENIED")) return 4;
  *n = 0;
  for (int i = 0; i < 8; i++)
    if (S.parts[i].used && P[S.parts[i].profile].id == id) { GI[i].i = i; out[(*n)++] = &GI[i]; }
  return 0;
}
typedef struct { dev_t_ d; unsigned id, profile; place_t at; } gi_t;
int nvmlGpuInstanceGetInfo(dev_t_ g, gi_t *o) {
  load(); struct part *s = &S.parts[g->i];
  o->d = &D[0]; o->id = g->i + 1; o->profile = P[s->profile].id;
  o->at.start = s->start; o->at.size = s->size; return 0;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(dev_t_ d, unsigned id, place_t *q, dev_t_ *out) {
  load(); if (number("FAKE_DENIED")) return 4;
  unsigned bits = ((1u << q->size) - 1) << q->start;
  int slot = -1;
  for (int i = 7; i >= 0; i--) {
    if (!S.parts[i].used) { slot = i; continue; }
    if (bits & ((1u << S.parts[i].size) - 1) << S.parts[i].start) return 7;
  }
  struct part s = {1, of_id(id), q->start, q->size, 0};
  S.parts[slot] = s; save(); GI[slot].i = slot; *out = &GI[slot]; return 0;
}
int nvmlGpuInstanceDestroy(dev_t_ g) {
  load(); if (S.parts[g->i].compute || number("FAKE_BUSY")) return 19;
  S.parts[g->i].used = 0; save(); return 0;
}
typedef struct { unsigned v, id, slices, n; } cip_t;
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(dev_t_ g, unsigned p, unsigned e, cip_t *c) {
  static const unsigned sizes[] = {1, 2, 3, 4, 7};
  if (p > 4) return 3;
  c->id = p; c->slices = sizes[p]; c->n = 1; return 0;
}
int nvmlGpuInstanceCreateComputeInstance(dev_t_ g, unsigned id, dev_t_ *out) {
  load(); if (number("FAKE_DIES")) _exit(9);
  S.parts[g->i].compute = id + 1; save(); *out = g; return 0;
}
int nvmlGpuInstanceGetComputeInstances(dev_t_ g, unsigned id, dev_t_ *out, unsigned *n) {
  load(); *n = S.parts[g->i].compute == (int)id + 1; out[0] = g; return 0;
}
int nvmlComputeInstanceDestroy(dev_t_ g) {
  load(); if (number("FAKE_BUSY")) return 19;
  S.parts[g->i].compute = 0; save(); return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(dev_t_ d, unsigned *n) { *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(dev_t_ d, unsigned i, dev_t_ *out) {
  load(); if (!S.parts[i].used || !S.parts[i].compute) return 6;
  MD[i].i = 100 + i; *out = &MD[i]; return 0;
}
int nvmlDeviceGetGpuInstanceId(dev_t_ d, unsigned *id) { *id = d->i - 100 + 1; return 0; }
"""


@pytest.fixture(scope="session")
def mig_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build a driver library")
    directory = tmp_path_factory.mktemp("nvml-mig")
    source = LIBRARY.replace(
        'snprintf(s, n, "GPU-%d", d->i)',
        'snprintf(s, n, d->i < 100 ? "GPU-%d" : "MIG-%d", d->i)',
    ).replace(': "error"', ': r == 19 ? "In use" : r == 4 ? "No Permission" : "error"')
    (directory / "nv.c").write_text(source + MIG)
    name = "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-o", name, "nv.c"],
        cwd=directory,
        check=True,
    )
    return directory


@pytest.fixture
def card(mig_driver: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(mig_driver))
    monkeypatch.setenv("FAKE_COUNT", "1")
    monkeypatch.setenv("FAKE_MIG", str(tmp_path / "card"))
    return monkeypatch


def seen() -> MigSpec | None:
    return reader()(lambda _: True).devices[0].mig


def order(*parts: tuple[str, int, int], is_on: bool = True) -> ReconfigureDevice:
    slices = tuple(MigSlice(profile=name, start=start, size=size) for name, start, size in parts)
    return ReconfigureDevice(
        effect_id=EffectId("slices:n1/0/1"), epoch=1, deadline_s=0.0, site=SiteName("here"),
        node=NodeName("n1"), index=0, number=1, uuid="GPU-0", is_on=is_on, slices=slices,
    )  # fmt: skip


def test_a_card_says_whether_it_can_be_cut_and_how(card: pytest.MonkeyPatch) -> None:
    assert seen() == MigSpec(), "the mode is off, and the driver names no profiles then"
    done = cut_device(order(("1g.10gb", 6, 1)))
    assert done.is_done, done.message
    mig = seen()
    assert mig == done.mig
    assert mig is not None
    assert [p.name for p in mig.profiles] == ["1g.10gb", "3g.40gb", "7g.80gb"]
    packaged = {profile.name: profile for profile in packaged_profiles("H100", 80 * 10**9)}
    assert all(packaged[profile.name] == profile for profile in mig.profiles)
    card.delenv("FAKE_MIG")
    assert seen() is None


def test_wanted_slices_stay_others_go_and_a_card_becomes_whole(card: pytest.MonkeyPatch) -> None:
    first = cut_device(order(("1g.10gb", 6, 1), ("1g.10gb", 5, 1)))
    second = cut_device(order(("1g.10gb", 6, 1), ("3g.40gb", 0, 4)))
    assert first.mig is not None
    assert second.mig is not None
    uuid = {part.start: part.uuid for part in first.mig.slices}
    assert [(p.profile, p.start) for p in second.mig.slices] == [("3g.40gb", 0), ("1g.10gb", 6)]
    assert second.mig.slices[1].uuid == uuid[6]
    assert cut_device(order(is_on=False)).mig == MigSpec()


def test_what_the_driver_refuses_is_said_in_its_words(card: pytest.MonkeyPatch) -> None:
    cut_device(order(("1g.10gb", 6, 1)))
    card.setenv("FAKE_BUSY", "1")
    busy = cut_device(order(is_on=False))
    assert (busy.is_done, busy.is_retryable) == (False, True)
    assert "use" in busy.message.lower()
    assert busy.mig == seen()
    card.delenv("FAKE_BUSY")
    card.setenv("FAKE_DENIED", "1")
    denied = cut_device(order(("1g.10gb", 6, 1), ("1g.10gb", 5, 1)))
    assert (denied.is_done, denied.is_retryable) == (False, False)
    assert "permission" in denied.message.lower()
    card.delenv("FAKE_DENIED")
    wrong = cut_device(order(("2g.20gb", 0, 2)))
    assert wrong.message == "the card has no 2g.20gb at 0"


def test_a_maker_that_dies_half_way_is_made_good(card: pytest.MonkeyPatch) -> None:
    card.setenv("FAKE_DIES", "1")
    died = cut_device(order(("1g.10gb", 6, 1)))
    assert (died.is_done, died.is_retryable) == (False, True)
    card.delenv("FAKE_DIES")
    half = seen()
    assert half is not None
    assert [part.uuid for part in half.slices] == [""]
    done = cut_device(order(("1g.10gb", 6, 1)))
    assert done.mig is not None
    assert [part.uuid for part in done.mig.slices] == ["MIG-100"]


def test_a_server_that_is_not_root_says_so_in_the_facts(card: pytest.MonkeyPatch) -> None:
    assert reader(fixed=NOT_ROOT)(lambda _: True).devices[0].mig == MigSpec(fixed=NOT_ROOT)


@pytest.mark.parametrize("check", [c for c in CHECKS if c.needs == ("cuts_devices",)],
                         ids=lambda check: check.id)  # fmt: skip
def test_the_local_engine_keeps_the_contract(
    check: object, card: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def connect() -> Engine:
        return LocalEngine(
            site=SiteName("here"),
            settings=LocalSettings(
                tasks_dir=str(tmp_path / "tasks"), run_as="root" if os.geteuid() == 0 else None
            ),
            clock=time.time,
            read_node=reader(),
            cut=cut_device,
        )

    outcome = asyncio.run(run_check(check, connect, programs=ShellPrograms()))  # type: ignore[arg-type]
    assert outcome.status == "passed", outcome.reason


def test_a_task_sees_its_slices_by_their_own_identity() -> None:
    share = DeviceShare(index=0, milli=142, mig_profile="1g.10gb", mig_start=6, mig_size=1)
    launch = LaunchTask(
        effect_id=EffectId("launch:job-00001/1/0"), epoch=1, deadline_s=0.0,
        site=SiteName("here"), node=NodeName("n1"), job_id=JobId("job-00001"), attempt=1, task=0,
        user="ana", command="true",
        devices=(DeviceOrder(share=share, type="H100", vendor="nvidia", uuid="MIG-100"),),
    )  # fmt: skip
    env = device_environment(launch, vendors=frozenset(("nvidia",)))
    assert env["CUDA_VISIBLE_DEVICES"] == "MIG-100"
