"""The fake driver, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

import fake_nvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.build(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def gpus(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> fake_nvml.FakeDriver:
    """Two GPUs, as child processes of the test see them."""
    driver = fake_nvml.FakeDriver(nvml_library, tmp_path / "gpus")
    driver.set({"-1.count": 2, "*.util": 50})
    for name, value in driver.env.items():
        monkeypatch.setenv(name, value)
    return driver
