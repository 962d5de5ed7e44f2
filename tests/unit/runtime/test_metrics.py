from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from live_world import World, run
from tercio.errors import UserError
from tercio.model.job import JobState, TimeSpec
from tercio.testing.factories import make_job


def test_metrics_tell_the_state_and_what_was_done(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path) as world:
            job_id = await world.submit(make_job(devices=2, time=TimeSpec(expected_s=99.0)))
            await world.until(lambda: world.job(job_id).state is JobState.RUNNING)
            with pytest.raises(UserError):
                await world.submit(make_job(queue="nowhere"))
            text = world.running.metrics.render().decode("utf-8")
            found = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert found["tercio_jobs", "default", "running"] == 1
            assert found["tercio_nodes", "ready"] == 2
            assert found["tercio_devices", "H100"] == 16
            assert found["tercio_devices_allocated", "H100"] == 2
            assert found["tercio_epoch",] == 1
            assert found["tercio_effects_total", "LaunchTask", "done"] == 1
            assert found["tercio_commands_total", "SubmitJob", "done"] == 1
            assert found["tercio_commands_total", "SubmitJob", "refused"] == 1
            assert found["tercio_journal_entries_total", "TaskStarted"] == 1
            assert found["tercio_journal_write_seconds_count",] >= 2
            assert all(name.startswith("tercio_") for name, *_ in found)

    run(test())
