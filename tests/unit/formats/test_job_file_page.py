"""The page docs/job-file.md says what the reader does: every example in it is read."""

import re
from pathlib import Path

import pytest

from tercio.formats import groups, native
from tercio.formats.devices import parse_devices
from tercio.formats.native import read_job
from tercio.launch.environment import conveniences, tercio_variables
from tercio.launch.gang import Gang
from tercio.model.job import Framework, JobSpec
from tercio.model.node import NodeSpec
from tercio.model.placement import TaskPlacement

PAGE = (Path(__file__).parents[3] / "docs" / "job-file.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
ROWS = [
    [cell.strip().replace("\0", "|") for cell in line.replace("\\|", "\0").strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]
KEY_ROWS = [row for row in ROWS if len(row) == 4]
DEVICE_TEXTS = [text for row in ROWS if len(row) == 2 for text in re.findall("`([^`]+)`", row[0])]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_a_job(block):
    assert read_job(block, source="page.yaml").warnings == ()


@pytest.mark.parametrize("row", KEY_ROWS, ids=lambda row: row[3])
def test_every_example_of_a_key_is_read(row):
    key, example = row[0].strip("`"), row[3].strip("`")
    text = example[1:-1].replace("], ", "]\n") if example.startswith("{") else example
    assert key in example
    if key != "run":
        text = f"run: a\n{text}"
    assert read_job(text, source="page.yaml").specs


@pytest.mark.parametrize("text", DEVICE_TEXTS)
def test_every_device_text_is_read(text):
    assert parse_devices(text)


def test_there_is_something_to_read():
    assert len(BLOCKS) >= 3
    assert len(DEVICE_TEXTS) >= 12


def test_every_key_has_its_row():
    keys = [row[0].strip("`") for row in KEY_ROWS]
    for known in (native.JOB_KEYS, groups.GROUP_KEYS, groups.PER_TASK_KEYS, groups.TOPOLOGY_KEYS):
        for key in known:
            assert key in keys
    for key in ("match", "exclude", "limit", "expected", "deadline", "earliest", "flexible", "path",
                "signal", "grace", "every", "on", "max", "backoff"):  # fmt: skip
        assert key in keys


def test_every_variable_is_named():
    gang = Gang(
        JobSpec(name="x", run="a"),
        job_id="job-00001.3",
        attempt=1,
        tasks=(TaskPlacement(task=0, node="n1", cpus_milli=1000),),
        nodes={"n1": NodeSpec(name="n1", site="s")},
        ports={0: (1, 2, 3, 4)},
    )
    for name in conveniences(gang, 0) | tercio_variables(gang, 0):
        assert f"`{name}`" in PAGE
    for framework in Framework:
        assert f"`{framework.value}`" in PAGE
