"""A real Prometheus scrapes server and agent: DCGM's names, the stock dashboard's queries."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest

import fake_nvml
from tercio.collect.dcgm import METRICS

from .room import Room, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
# The queries and variables of Grafana dashboard 12239, https://grafana.com/grafana/dashboards/12239,
# as its repositories hold them: the revision of 2020 (NVIDIA/gpu-monitoring-tools,
# grafana/dcgm-exporter-dashboard.json at 0494408752ab) and the present one (NVIDIA/dcgm-exporter,
# same path, at 068798b0a1cb). Between the two, `instance` became `Hostname`.
INSTANCE = '{instance=~"$instance", gpu=~"$gpu"}'
HOST = '{Hostname=~"$Hostname", gpu=~"$gpu"}'
PARTS = "by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)"
DASHBOARD_12239 = (
    f"DCGM_FI_DEV_GPU_TEMP{INSTANCE}",
    f"avg(DCGM_FI_DEV_GPU_TEMP{INSTANCE})",
    f"DCGM_FI_DEV_POWER_USAGE{INSTANCE}",
    f"sum(DCGM_FI_DEV_POWER_USAGE{INSTANCE})",
    f"DCGM_FI_DEV_SM_CLOCK{INSTANCE}",
    f"DCGM_FI_DEV_MEM_CLOCK{INSTANCE}",
    f"DCGM_FI_DEV_GPU_UTIL{INSTANCE}",
    f"DCGM_FI_DEV_MEM_COPY_UTIL{INSTANCE}",
    f"max(DCGM_FI_DEV_GPU_TEMP{HOST}) by (Hostname, gpu, uuid)",
    f"avg(DCGM_FI_DEV_GPU_TEMP{HOST})",
    f"max(DCGM_FI_DEV_POWER_USAGE{HOST}) by (Hostname, gpu, uuid)",
    f"sum(max(DCGM_FI_DEV_POWER_USAGE{HOST}) by (gpu))",
    f"max(DCGM_FI_DEV_SM_CLOCK{HOST} * 1000000) by (Hostname, UUID, gpu)",
    f"max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{HOST}) {PARTS}",
    f"max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{HOST}) {PARTS}",
    f"max(DCGM_FI_DEV_FB_USED{HOST}) {PARTS}",
)
VARIABLES_12239 = (
    ("instance", "DCGM_FI_DEV_GPU_TEMP"),
    ("Hostname", "DCGM_FI_DEV_FB_FREE"),
    ("gpu", 'DCGM_FI_DEV_FB_FREE{Hostname=~".*"}'),
)
# What promtool remarks on DCGM's own names and labels, which dashboards need as they are. It ends
# with code 3 for remarks, whatever they are about; each must be of this list and of a DCGM metric.
DCGM_STYLE = re.compile(
    r"(?P<metric>DCGM_\w+) (label names should be written in 'snake_case' not 'camelCase'"
    r"|metric name should not include type 'counter')$"
)


@pytest.fixture
def driver(tmp_path: Path) -> fake_nvml.FakeDriver:
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian package prometheus)")
    library = tmp_path / "nvml"
    library.mkdir()
    fake = fake_nvml.FakeDriver(fake_nvml.build(library), tmp_path / "gpus")
    fake.set({"-1.count": 2, "*.util": 90, "*.power_mw": 500_000, "*.tensor": 40, "*.sm": 70,
              "*.used": 10 * 2**30})  # fmt: skip
    return fake


@contextmanager
def agent(room: Room, driver: fake_nvml.FakeDriver) -> Iterator[str]:
    """An agent that only exports; yields host and port."""
    with subprocess.Popen(
        [*fake_tercio(), "agent", "--no-server", "--node", "g1", "--exporter", "127.0.0.1:0",
         "--kernel-log", "", "--poll", "300ms", "--state-dir", str(room.path)],
        env={**room.env, **driver.env}, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        try:
            yield urllib.parse.urlsplit(url).netloc
        finally:
            program.send_signal(signal.SIGTERM)
            program.wait(20)


def fake_tercio() -> tuple[str, ...]:
    from .room import TERCIO

    return TERCIO


def get(url: str, token: str = "") -> str:
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def lint(text: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    remarks = [line for line in done.stderr.splitlines() if line]
    ours = [line for line in remarks if not DCGM_STYLE.fullmatch(line)]
    assert not ours, ours
    # Code 3 stands for remarks alone; without any it is 0, and anything else is a defect.
    assert done.returncode == (3 if remarks else 0), done.stdout + done.stderr
    known = {name for name, _, _ in METRICS} | {"DCGM_FI_DEV_XID_ERRORS"}
    named = {found["metric"] for line in remarks if (found := DCGM_STYLE.fullmatch(line))}
    assert named <= known, named - known


class Prometheus:
    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, **query: str) -> object:
        text = get(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        answer = json.loads(text)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, object]]:
        data = self.ask("query", query=expr)
        assert isinstance(data, dict)
        return list(data["result"])

    def is_up(self) -> bool:
        try:
            return len(self.query("up == 1")) == 2
        except OSError:
            return False


@contextmanager
def prometheus(path: Path, targets: dict[str, tuple[str, str]]) -> Iterator[Prometheus]:
    jobs = "".join(
        f"- job_name: {name}\n  scrape_interval: 500ms\n  scrape_timeout: 400ms\n"
        f"  authorization: {{credentials: '{token or 'none'}'}}\n"
        f"  static_configs: [{{targets: ['{place}']}}]\n"
        for name, (place, token) in targets.items()
    )
    (path / "prometheus.yml").write_text("scrape_configs:\n" + jobs)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (path / "prometheus.log").open("wb") as log, subprocess.Popen(
        ["prometheus", f"--config.file={path}/prometheus.yml", f"--storage.tsdb.path={path}/tsdb",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=log, stderr=log,
    ) as program:  # fmt: skip
        try:
            yield Prometheus(port)
        finally:
            program.terminate()
            program.wait(30)


def test_the_stock_dashboard_resolves(room: Room, driver: fake_nvml.FakeDriver) -> None:
    room.up(
        **driver.env, TERCIO_LOCAL__CPU_DEVICES="0", TERCIO_HEALTH__KERNEL_LOG="",
        TERCIO_HEALTH__POLL_S="0.3",
    )  # fmt: skip
    client = room.client()
    told = room.told()
    assert told is not None
    server = urllib.parse.urlsplit(str(told["url"])).netloc
    token = (room.state / "token").read_text().strip()
    until(lambda: "PIPE_TENSOR" in client.metrics(), "the first activity")
    lint(client.metrics())
    room.cli("submit", "--gpus", "1", "--name", "busy", "--", "sleep", "600")
    with agent(room, driver) as place:
        until(lambda: "PIPE_TENSOR" in get(f"http://{place}/metrics"), "the agent's activity")
        lint(get(f"http://{place}/metrics"))
        targets = {"server": (server, token), "agent": (place, "")}
        with prometheus(room.path, targets) as prom:
            until(prom.is_up, "Prometheus to scrape")
            until(lambda: prom.query('DCGM_FI_DEV_POWER_USAGE{hpc_job="job-00001"}'), "the job")
            for label, metric in VARIABLES_12239:
                assert prom.ask(f"label/{label}/values", **{"match[]": metric})
            for expr in DASHBOARD_12239:
                filled = re.sub(r"\$\w+", ".*", expr)
                assert prom.query(filled), expr
            (labels,) = {
                tuple(sorted(row["metric"]))  # type: ignore[arg-type]
                for row in prom.query(f'DCGM_FI_DEV_GPU_UTIL{{instance="{place}"}}')
            }
            assert {"gpu", "UUID", "device", "modelName", "Hostname"} <= set(labels)
            for expr in own_queries():
                assert prom.query(expr) or "XID" in expr, expr


def own_queries() -> list[str]:
    text = (resources.files("tercio") / "collect/tables/tercio-gpus.json").read_text()
    found = [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    return [re.sub(r"\$\w+", ".*", expr) for expr in found]


def test_the_alert_rules_are_right(driver: fake_nvml.FakeDriver) -> None:
    rules = resources.files("tercio") / "collect/tables/tercio-alerts.yaml"
    with resources.as_file(rules) as path:
        done = subprocess.run(
            ["promtool", "check", "rules", str(path)], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_hung_driver_exports_nothing_old(room: Room, driver: fake_nvml.FakeDriver) -> None:
    with agent(room, driver) as place:
        until(lambda: "GPU_UTIL" in get(f"http://{place}/metrics"), "the first reading")
        driver.set({"-1.init": 9, "*.lost": 1})
        until(lambda: "DCGM_FI_DEV_GPU_UTIL{" not in get(f"http://{place}/metrics"), "silence")
