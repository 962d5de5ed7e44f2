"""One device as people see it: who holds it, and how it is cut into slices."""

from __future__ import annotations

from collections.abc import Sequence

from tercio.core.cluster import Cluster
from tercio.core.records import Job
from tercio.model.ids import JobId
from tercio.model.node import DeviceSpec, SliceFault
from tercio.model.resources import WHOLE_DEVICE_MILLI, DeviceShare
from tercio.model.views import DeviceView, SliceView


def device_view(
    device: DeviceSpec,
    shares: Sequence[tuple[JobId, DeviceShare]],
    fault: SliceFault | None,
    *,
    is_outside: bool = False,
    outside_end_s: float = 0.0,
) -> DeviceView:
    """Return how a device is shown, with the shares that jobs hold of it.

    One that work outside holds is used whole, whoever else is told to have a part of it.
    """
    mig = device.mig
    held = {
        (share.mig_profile, share.mig_start): job_id
        for job_id, share in shares
        if share.mig_profile is not None and share.mig_start is not None
    }
    there = {(part.profile, part.start): "" for part in mig.slices} if mig is not None else {}
    return DeviceView(
        index=device.index,
        type=device.type,
        uuid=device.uuid,
        memory_bytes=device.memory_bytes,
        healthy=device.healthy,
        used=1.0 if is_outside else sum(share.milli for _, share in shares) / WHOLE_DEVICE_MILLI,
        jobs=tuple(dict.fromkeys(job_id for job_id, _ in shares)),
        mig="" if mig is None else "on" if mig.is_on else "off",
        slices=tuple(
            SliceView(profile=profile or "", start=start or 0, job=job_id)
            for (profile, start), job_id in sorted(
                {**there, **held}.items(), key=lambda pair: pair[0][1] or 0
            )
        ),
        is_outside=is_outside,
        outside_end_s=outside_end_s,
        slices_fault=fault.reason if fault is not None else mig.fixed if mig is not None else "",
    )


def held_words(cluster: Cluster, job: Job) -> str:
    """Say what the launches of a starting job wait for; empty when they wait for no device."""
    for order in cluster.held_launches.values():
        if order.job_id != job.id:
            continue
        node = cluster.nodes.get(order.node)
        for held in order.devices:
            fault = node.slice_fault(held.share.index) if node is not None else None
            what = "cut into slices" if held.share.mig_profile is not None else "made whole"
            where = f"device {held.share.index} of {order.node}"
            if fault is not None and fault.until_s is not None:
                return f"{where} could not be {what}, and is tried again: {fault.reason}"
            return f"waits until {where} is {what}"
    return ""
