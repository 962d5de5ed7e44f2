"""A job file of any kind: native ones as they stand, others through their converter."""

from __future__ import annotations

from collections.abc import Mapping

from tercio.formats.document import Json
from tercio.formats.foreign.detect import NATIVE, detect, read_foreign, refuse_lost
from tercio.formats.foreign.draft import SiteMap
from tercio.formats.native import JobFile, read_job, read_job_object
from tercio.model.queue import Policy, walk_queues


def read_any(
    text: str,
    *,
    source: str,
    policy: Policy | None = None,
    overrides: Mapping[str, Json] | None = None,
    partitions: Mapping[str, str] | None = None,
    now_s: float | None = None,
) -> JobFile:
    """Read a file of any kind; what a foreign one loses becomes warnings.

    Args:
        text: the file.
        source: its name; a native job without a name is called after it.
        policy: checks queue names and topology levels, where given.
        overrides: see `formats.overrides`; they go into every job.
        partitions: device type by Slurm partition.
        now_s: seconds since the epoch, for times that count from now.

    Raises:
        UserError: naming line, field, value and fix; `unsupported` for a foreign file that asks
            for what must not be left out.
    """
    kind = detect(text, source)
    if kind == NATIVE:
        return read_job(text, source=source, policy=policy, overrides=overrides)
    queues = frozenset(walk_queues(policy)) if policy else frozenset[str]()
    sites = SiteMap(partitions=partitions or {}, queues=queues)
    found = read_foreign(text, source=source, kind=kind, sites=sites, now_s=now_s)
    refuse_lost(found, source)
    files = [
        read_job_object(job, source=source, policy=policy, overrides=overrides)
        for job in found.jobs
    ]
    return JobFile(
        specs=tuple(spec for file in files for spec in file.specs),
        warnings=(
            *(loss.text for loss in found.losses),
            *(warning for file in files for warning in file.warnings),
        ),
        is_held=found.is_held,
    )
