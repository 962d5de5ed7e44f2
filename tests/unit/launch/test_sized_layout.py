"""What a task learns of the layout that sizing chose: that of the devices it got."""

import msgspec
import pytest
from gangs import NODES

from tercio.launch.recipes import render
from tercio.model.ids import JobId, NodeName
from tercio.model.job import JobSpec, TaskGroup
from tercio.model.node import DeviceSpec
from tercio.model.placement import TaskPlacement
from tercio.model.resources import DeviceRequest, DeviceShare, Request
from tercio.model.sizing import Layout, ModelSpec, Sized, SizedChoice

GB = 10**9
LARGE = Layout(dp=2, micro_batch=2, precision="fp8")
SMALL = Layout(tp=2, sharding="zero1", microbatches=8, recompute="full")


def choice(layout, part):
    return SizedChoice(
        devices=part, part=part, type="A100", per_task=2, tasks=1, layout=layout
    )  # fmt: skip


SIZED = Sized(
    choices=(choice(LARGE, "A100-80GB"), choice(SMALL, "A100-40GB")),
    catalogue="c", calibration="c",
)  # fmt: skip


def env(card_bytes, *, devices=2, sized=SIZED):
    requests = tuple(DeviceRequest(type="A100", count=2, card_bytes=n * GB) for n in (80, 40))
    node = msgspec.structs.replace(
        NODES[NodeName("n1")],
        devices=tuple(DeviceSpec(type="A100", index=i, card_bytes=card_bytes) for i in range(2)),
    )
    held = tuple(DeviceShare(index=index) for index in range(devices))
    spec = JobSpec(
        name="x", run="x", model=ModelSpec(name="m", method="full", seq=8192), sized=sized,
        groups=(TaskGroup(per_task=Request(devices=requests)),),
    )  # fmt: skip
    (launch,) = render(
        spec, job_id=JobId("job-00001"), attempt=1, nodes={node.name: node},
        tasks=(TaskPlacement(task=0, node=node.name, devices=held),), ports={0: (1, 2)},
    )  # fmt: skip
    return launch.env


@pytest.mark.parametrize(
    ("card_bytes", "tp", "precision", "batch"),
    [(80 * GB, "1", "fp8", ("2", "1")), (40 * GB, "2", "bf16", ("1", "8"))],
)
def test_the_layout_is_that_of_the_cards_the_job_got(card_bytes, tp, precision, batch):
    found = env(card_bytes)
    assert (found["TERCIO_TP"], found["TERCIO_PRECISION"]) == (tp, precision)
    assert (found["TERCIO_MICRO_BATCH"], found["TERCIO_MICROBATCHES"]) == batch
    assert (found["TERCIO_METHOD"], found["TERCIO_SEQ"]) == ("full", "8192")


def test_no_layout_is_told_where_sizing_chose_none():
    assert "TERCIO_TP" not in env(80 * GB, sized=None)
    assert "TERCIO_TP" not in env(80 * GB, devices=1)
