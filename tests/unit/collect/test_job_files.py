"""Job files for an existing dcgm-exporter: one per GPU, nothing of jobs that have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tercio.collect.job_files import JobFiles
from tercio.model.readings import DeviceTelemetry, SliceTelemetry

DEVICES = [DeviceTelemetry(index=i, uuid=f"GPU-{i}") for i in range(3)]


def content(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir()}


def test_each_gpu_in_use_has_a_file_with_a_job_a_line(tmp_path: Path) -> None:
    files = JobFiles(tmp_path / "jobs")
    files.tell(DEVICES, {"GPU-0": ["job-1"], "GPU-2": ["job-1", "job-2"], "GPU-9": ["job-3"]})
    assert content(tmp_path / "jobs") == {"0": "job-1\n", "2": "job-1\njob-2\n"}
    files.tell(DEVICES, {"GPU-1": ["job-4"]})
    assert content(tmp_path / "jobs") == {"1": "job-4\n"}
    files.tell(DEVICES, {})
    assert content(tmp_path / "jobs") == {}


def test_a_mig_instance_in_use_has_a_file_beside_that_of_its_card(tmp_path: Path) -> None:
    """Named by the number of the GPU instance, as dcgm-exporter's own tests name them (`3.1`)."""
    slices = (
        SliceTelemetry(number=1, uuid="MIG-a"),
        SliceTelemetry(number=13, uuid="MIG-b"),
        SliceTelemetry(number=2, uuid=""),
    )
    card = DeviceTelemetry(index=3, uuid="GPU-3", slices=slices)
    files = JobFiles(tmp_path)
    jobs = {"GPU-3": ["job-1", "job-2"], "MIG-a": ["job-1"], "MIG-b": ["job-2"]}
    files.tell([*DEVICES, card], jobs)
    assert content(tmp_path) == {"3": "job-1\njob-2\n", "3.1": "job-1\n", "3.13": "job-2\n"}
    files.tell([*DEVICES, card], {"GPU-3": ["job-2"], "MIG-b": ["job-2"]})
    assert content(tmp_path) == {"3": "job-2\n", "3.13": "job-2\n"}


def test_what_an_earlier_run_left_goes_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("job-old\n")
    (tmp_path / "1.2").write_text("job-old\n")
    (tmp_path / "README").write_text("of the site\n")
    JobFiles(tmp_path).tell(DEVICES, {"GPU-0": ["job-1"]})
    assert content(tmp_path) == {"0": "job-1\n", "README": "of the site\n"}


def test_a_directory_that_cannot_be_is_an_error_and_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = JobFiles(tmp_path / "file" / "jobs")
    for _ in range(2):
        with pytest.raises(OSError, match="file"):
            files.tell(DEVICES, {"GPU-0": ["job-1"]})
