"""Cards that are cut and made whole again under seeded faults: lost orders, late and repeated
answers, drivers that refuse, nodes that go, and servers that are killed while a card is cut.
"""

from __future__ import annotations

import msgspec
import pytest

from tercio.model.effects import AnyEffect, LaunchTask, ReconfigureDevice
from tercio.model.events import DeviceReconfigured, SlicePauseEnded
from tercio.model.ids import JobId
from tercio.model.job import JobSpec
from tercio.model.node import MigSpec
from tercio.model.resources import DeviceRequest

from .world import World


class SlicedWorld(World):
    """Most jobs want slices; the cards are what the orders made of them."""

    def some_job(self, known: list[JobId]) -> JobSpec:
        spec = super().some_job(known)
        profile = self.rng.choice([None, "1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"])
        if profile is None:
            return spec
        count = self.rng.choice([1, 1, 2])
        request = DeviceRequest(type="H100", count=count, mig_profile=profile)
        group = spec.groups[0]
        ask = msgspec.structs.replace(group.per_task, devices=(request,))
        return msgspec.structs.replace(spec, groups=(msgspec.structs.replace(group, per_task=ask),))

    def act(self, effect: AnyEffect) -> None:
        if isinstance(effect, ReconfigureDevice):
            self.reconfigure(effect)
        else:
            super().act(effect)

    def reconfigure(self, order: ReconfigureDevice) -> None:
        if order.node in self.down or order.epoch < self.epoch:
            return
        where = (order.node, order.index)
        numbers = self.__dict__.setdefault("numbers", {})
        if order.number < numbers.get(where, 0):
            return
        spec = self.specs[order.node]
        mig = spec.devices[order.index].mig
        assert mig is not None
        is_done = not self.chance(0.1)
        # What has failed is not carried out any more, even if it comes a second time.
        numbers[where] = order.number + (not is_done)
        if is_done:
            slices = tuple(
                msgspec.structs.replace(part, uuid=f"MIG-{part.profile}-{part.start}")
                for part in order.slices
            )
            mig = MigSpec(is_on=order.is_on, slices=slices)
            devices = list(spec.devices)
            devices[order.index] = msgspec.structs.replace(devices[order.index], mig=mig)
            self.specs[order.node] = msgspec.structs.replace(spec, devices=tuple(devices))
            for launch in self.live.values():
                if launch.node == order.node:
                    self.check_form(launch)
        self.feed(
            [
                DeviceReconfigured(
                    at_s=self.now_s, node=order.node, effect_id=order.effect_id,
                    index=order.index, mig=mig, is_done=is_done,
                    message="" if is_done else "in use", is_retryable=self.chance(0.5),
                )
            ]
        )  # fmt: skip

    def launch(self, order: LaunchTask) -> None:
        super().launch(order)
        if self.live.get((order.job_id, order.attempt, order.task)) is order:
            self.check_form(order)

    def check_form(self, order: LaunchTask) -> None:
        """What a task runs on is there, in the form that it was given."""
        for held in order.devices:
            mig = self.specs[order.node].devices[held.share.index].mig
            assert mig is not None
            if held.share.mig_profile is None:
                assert not mig.is_on, f"{order.effect_id} is whole on a card that is cut"
                continue
            uuids = {part.uuid for part in mig.slices if part.start == held.share.mig_start}
            assert held.uuid in uuids, f"{order.effect_id} has lost {held.uuid}: {mig}"


@pytest.mark.parametrize("seed", range(16))
def test_no_card_is_changed_under_a_task_and_every_job_ends(seed: int) -> None:
    world = SlicedWorld(seed, jobs=40)
    start_s = world.now_s
    world.run(start_s + 6_000.0)
    world.calm()
    world.run(start_s + 90_000.0)
    world.check_ended()
    world.check_replay()
    told = [entry.event for entry in world.journal]
    assert any(isinstance(event, DeviceReconfigured) and event.is_done for event in told)
    assert any(isinstance(event, SlicePauseEnded) for event in told) or seed > 3
    assert not world.driver.cluster.held_launches
