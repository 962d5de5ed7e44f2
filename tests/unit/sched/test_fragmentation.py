"""The packing measure: what it counts, and that it packs better than best fit where cores bind."""

import msgspec
import numpy as np
import pytest

from tercio.model.queue import Policy
from tercio.model.resources import NO_DEVICE, DeviceRequest, Request
from tercio.model.snapshot import MixEntry
from tercio.sched.fragmentation import BLEND_RATIO, Fragmentation
from tercio.sched.table import Table
from tercio.testing.build import cluster, gang, node
from tercio.testing.rounds import Rounds


def measure(*entries: MixEntry) -> tuple[Table, Fragmentation]:
    table = Table(Policy().topology, 1000, 0)
    table.add_nodes(cluster("1n x 2g", cpus=8))
    return table, Fragmentation(entries, table, 1000)


def entry(devices: float, cpus: int, weight: float = 1.0) -> MixEntry:
    request = NO_DEVICE
    if devices >= 1:
        request = DeviceRequest(type="H100", count=int(devices))
    elif devices:
        request = DeviceRequest(type="H100", share_milli=round(devices * 1000))
    return MixEntry(request=Request(devices=(request,), cpus_milli=cpus * 1000), weight=weight)


def amount(f: Fragmentation, cpus: int, *left: int) -> float:
    devices = np.array([left])
    standing = f._stand[devices].sum(axis=1)
    free = devices.sum(axis=1)
    return float(f.amount(np.array([cpus * 1000]), free, standing, np.array([0]))[0])


@pytest.mark.parametrize(
    ("cpus", "left", "expected"),
    [
        (8, (1000, 1000), 0.0),
        (0, (1000, 1000), 2000.0),  # without cores nothing is usable
        (8, (500, 1000), 500.0),  # half a device serves no whole-device task
    ],
)
def test_unusable_part_of_a_node(cpus: int, left: tuple[int, int], expected: float):
    _, f = measure(entry(1, 1))
    assert amount(f, cpus, *left) == pytest.approx(expected)


def test_cores_that_feed_one_task_leave_the_other_device_unusable_in_part():
    _, f = measure(entry(1, 4))
    assert amount(f, 4, 1000, 1000) == pytest.approx((1 - BLEND_RATIO) * 1000)


def test_work_without_devices_can_use_none():
    _, f = measure(entry(0, 1), entry(1, 1))
    assert amount(f, 8, 1000, 1000) == pytest.approx(1000.0)


def test_a_share_goes_where_it_strands_least():
    """Half a card free serves the half; the whole card is kept for whole-card work."""
    r = Rounds(cluster("2n x 1g"), Policy(half_life_s=0.0))
    r.mix = (entry(1, 1), entry(0.5, 1))
    r.submit("a", gang("1x0.5"))
    r.settle()
    r.submit("b", gang("1x0.5"))
    r.submit("c", gang("1x1"))
    r.settle()
    assert r.where("a") == r.where("b")
    assert r.reason("c") == "Running"


def test_work_without_devices_stays_off_nodes_whose_devices_need_the_cores():
    nodes = [node("gpu", 4, cpus=16), msgspec.structs.replace(node("cpu", 0, cpus=16))]
    r = Rounds(nodes, Policy(half_life_s=0.0))
    r.mix = (entry(1, 4, 3.0), entry(0, 4, 1.0))
    for at in range(4):
        r.submit(f"c{at}", gang("1x0", cpus=4))
    r.settle()
    assert {r.where(f"c{at}")[0] for at in range(4)} == {"cpu"}
