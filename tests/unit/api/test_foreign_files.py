"""Files of other tools through a server: converted, warned about, refused."""

from __future__ import annotations

import pytest

from tercio.client import JobRequest
from tercio.errors import UserError

SCRIPT = "#!/bin/bash\n#SBATCH -N2 --gpus-per-node=2 --hold --chdir=/tmp --qos=x\nsrun true\n"


def test_a_batch_script_is_submitted_as_it_stands(client):
    answer = client.submit(JobRequest(file=SCRIPT, source="train.sbatch"))
    assert answer.warnings == ("line 2: --qos x: changed: kept as the label slurm-qos",)
    view = client.job(answer.ids[0])
    assert (view.name, view.state, view.task_count) == ("train", "held", 2)
    assert view.devices == {"any": 4.0}
    assert view.labels == {"slurm-qos": "x"}


def test_overrides_count_for_foreign_files_too(client):
    request = JobRequest(file=SCRIPT, source="a.sbatch", overrides={"gpus": "H100:1", "nodes": 1})
    view = client.job(client.submit(request).ids[0])
    assert (view.task_count, view.devices) == (1, {"H100": 1.0})


def test_what_must_not_be_left_out_is_refused(client):
    with pytest.raises(UserError) as caught:
        client.submit(JobRequest(file="run: x\nservice: {replicas: 2}", source="s.yaml"))
    assert caught.value.code == "unsupported"
    assert caught.value.message.startswith("s.yaml:2: service: services")
    assert "tercio convert" in caught.value.hint
