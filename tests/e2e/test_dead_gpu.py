"""A GPU dies under a training job: the gang goes on on the spare, from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fake_nvml

from .room import ENDED, ROOT, Room, until

pytest.importorskip("torch", reason="the example needs PyTorch")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
XID = (
    "[ 4711.081543] NVRM: Xid (PCI:0000:11:00): 79, pid='<unknown>', name=<unknown>,"
    " GPU has fallen off the bus.\n"
)


@pytest.fixture
def driver(tmp_path: Path) -> fake_nvml.FakeDriver:
    library = tmp_path / "nvml"
    library.mkdir()
    fake = fake_nvml.FakeDriver(fake_nvml.build(library), tmp_path / "gpus")
    fake.set({"-1.count": 3, "*.util": 80, "*.power_mw": 350_000})
    return fake


def test_an_xid_79_costs_one_node_swap(room: Room, driver: fake_nvml.FakeDriver) -> None:
    kernel_log = room.path / "kern.log"
    kernel_log.write_text("")
    room.up(
        **driver.env,
        TERCIO_LOCAL__NODES="n1=0; n2=1; n3=2 spare",
        TERCIO_LOCAL__CPU_DEVICES="0",
        TERCIO_HEALTH__KERNEL_LOG=str(kernel_log),
        TERCIO_HEALTH__POLL_S="0.2",
    )
    room.cli("health", "policy", "set", "mode=act")
    client = room.client()
    until(lambda: client.live().rows[1].devices, "the first reading")
    checkpoint = room.work / "checkpoint.pt"
    train = ROOT / "examples" / "train-ddp" / "train.py"
    room.work.joinpath("job.yaml").write_text(
        "name: train-ddp\n"
        "tasks: 2\n"
        "per_task: {devices: 1, cpus: 0.5, memory: 1GiB}\n"
        "framework: torch\n"
        f"run: python {train} --epochs 30 --pause 0.1 --save-every 5 --checkpoint {checkpoint}\n"
        "checkpoint: {grace: 5s}\n"
    )
    room.cli("submit", str(room.work / "job.yaml"))
    job_id = client.jobs().rows[0].id
    until(checkpoint.exists, "the first checkpoint", timeout_s=120)
    # The kernel tells first: a reading in between would quarantine the node for a silent driver.
    with kernel_log.open("a") as file:
        file.write(XID)
    driver.set({"1.lost": 1})
    until(lambda: client.job(job_id).state in ENDED, "the job to end", timeout_s=200)

    view = client.job(job_id)
    assert (view.state, view.attempt) == ("succeeded", 2)
    assert sorted(task.node for task in view.tasks) == ["n1", "n3"]
    log = [line.text for line in client.logs(job_id)]
    assert any(line.startswith("resumed at epoch ") for line in log), log
    story = room.story(job_id)
    told = "\n".join(story)
    assert "node n2: quarantined: Xid 79 on GPU 0 (serial 1650301)" in told, told
    assert "spare n3 takes the place of n2" in told, told
    assert len(story) == 10, told
    first = b"".join(p.read_bytes() for p in room.state.glob(f"tasks/{job_id}/1/*/logs/*"))
    assert b"n2 was taken out: Xid 79 on GPU 0 (serial 1650301)" in first
    node = json.loads(room.cli("node", "show", "n2", "-o", "json"))
    assert [cordon["owner"] for cordon in node["cordons"]] == ["health"]
    assert "Xid 79" in node["cordons"][0]["reason"]
    shown = room.cli("node", "show", "n2")
    assert "quarantined" in shown, shown
    assert "1650301" in shown, shown
