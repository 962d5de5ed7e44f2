from __future__ import annotations

import os
from pathlib import Path

import pytest

from tercio.errors import StoreError
from tercio.model.ids import JobId
from tercio.store.secrets import SecretStore

JOB = JobId("job-00001")


def test_values_come_back_also_to_the_elements_of_an_array(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "secrets")
    store.put(JOB, {"HF_TOKEN": "a=ü\n"})
    assert store.get(JOB) == store.get(JobId("job-00001.7")) == {"HF_TOKEN": "a=ü\n"}
    assert store.get(JobId("job-00002")) == {}
    store.put(JOB, {"HF_TOKEN": "b"})
    assert SecretStore(tmp_path / "secrets").get(JOB) == {"HF_TOKEN": "b"}


def test_files_are_for_the_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        SecretStore(tmp_path / "secrets").put(JOB, {"A": "b"})
    finally:
        os.umask(before)
    (path,) = (tmp_path / "secrets").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_delete_and_prune(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "secrets")
    assert store.prune([]) == 0
    store.put(JOB, {})
    assert not (tmp_path / "secrets").exists()
    for number in (1, 2, 3):
        store.put(JobId(f"job-0000{number}"), {"A": "b"})
    store.delete(JOB)
    store.delete(JOB)
    assert store.prune([JobId("job-00002.5")]) == 1
    assert store.get(JobId("job-00002"))
    assert not store.get(JobId("job-00003"))


def test_path_tricks_and_damage_are_refused_without_the_value(tmp_path: Path) -> None:
    store = SecretStore(tmp_path / "secrets")
    with pytest.raises(StoreError, match="is not a job id"):
        store.get(JobId("../../etc/passwd"))
    store.put(JOB, {"A": "hunter2"})
    (path,) = (tmp_path / "secrets").iterdir()
    path.write_text('{"A": "hunter2"', encoding="utf-8")
    with pytest.raises(StoreError, match="is damaged") as caught:
        store.get(JOB)
    assert "hunter2" not in str(caught.value)
