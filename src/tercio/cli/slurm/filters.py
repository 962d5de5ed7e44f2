"""Which jobs squeue, sacct and scancel mean."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import Final

from tercio.cli.slurm.words import read_states, state_of
from tercio.model.views import JobView

VALUED: Final = {
    "user": "u", "jobs": "j", "states": "t", "partition": "p", "name": "n", "account": "A",
    "nodelist": "w", "qos": "q",
}  # fmt: skip
FLAGS: Final = {"me": ""}


def is_wanted(view: JobView, options: Mapping[str, str]) -> bool:
    """Whether a job passes every filter that is given."""
    users = options["user"].split(",") if "user" in options else []
    if "me" in options:
        users.append(getpass.getuser())
    partition = view.labels.get("slurm-partition", view.queue)
    facts = {
        "partition": [*partition.split(","), view.queue],
        "name": [view.name],
        "account": [view.labels.get("slurm-account", "")],
        "qos": [view.labels.get("slurm-qos", "")],
        "nodelist": list(view.nodes),
    }
    states = read_states(options["states"]) if "states" in options else frozenset()
    return (
        (not users or view.user in users)
        and (not states or state_of(view).word in states)
        and all(
            name not in options or set(options[name].split(",")) & set(known)
            for name, known in facts.items()
        )
    )
