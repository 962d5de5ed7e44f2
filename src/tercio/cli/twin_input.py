"""Reads what `tercio twin` is given: traces, clusters, policies, faults.

The twin is imported inside the functions, as everywhere in the command line.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.model.node import NodeSpec
    from tercio.twin.faults import Fault
    from tercio.twin.policies import Discipline
    from tercio.twin.progress.book import ProfileBook
    from tercio.twin.trace import Trace

_GZIP = b"\x1f\x8b"
WHAT_TO_NAME: Final = {
    "trace": "name a log, such as the output of sacct",
    "cluster": "--cluster takes a cluster file, or NODESxDEVICES such as 4x8",
    "policy": "--policy takes a built-in name or a file; `tercio policy show` prints one",
    "faults": "--faults takes a fault trace, or what to draw, such as mean=60d,repair=20h",
    "from": "--from takes a file of `tercio snapshot save FILE`",
    "model": "--model takes a file of `tercio twin fit LOG --to FILE`",
}
"""What to do when a file is not there, by option."""


def cannot_read(path: str | Path, error: Exception, field: str) -> UserError:
    """Return what to raise for a file that cannot be read: `not_found` when there is none."""
    if isinstance(error, FileNotFoundError):
        hint = WHAT_TO_NAME.get(field)
        return UserError(f"there is no file {path}", code="not_found", hint=hint, field=field)
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(f"cannot read {path}: {reason}", field=field)


def check_target(path: str | None, field: str) -> None:
    """Refuse a file that could not be written, before the work that it is meant for.

    Raises:
        UserError: naming the option.
    """
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        reason = "it is a directory"
    elif not target.parent.is_dir():
        reason = f"there is no directory {target.parent}"
    elif not os.access(target if target.exists() else target.parent, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise UserError(f"cannot write {path}: {reason}", field=field)


def read_text(path: str, field: str) -> str:
    """Read a text file, packed with gzip or not.

    Raises:
        UserError: naming the option; `not_found` when there is none.
    """
    try:
        body = Path(path).read_bytes()
        if body.startswith(_GZIP):
            body = gzip.decompress(body)
        return body.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise cannot_read(path, error, field) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text", field=field) from error


def load_trace(path: str, filters: Sequence[str] = ()) -> Trace:
    """Read a trace of any known format and keep the jobs that pass the filters."""
    from tercio.cli.twin_files import open_trace

    return open_trace([Path(path)], filters=filters)


def load_cluster(text: str) -> tuple[NodeSpec, ...]:
    """Read a cluster file, or the short form `8x8`."""
    from tercio.formats.cluster import CLUSTER_SHAPE, read_cluster

    if CLUSTER_SHAPE.fullmatch(text):
        return read_cluster(text)
    return read_cluster(read_text(text, "cluster"), source=text)


def load_discipline(text: str, trace: Trace) -> Discipline:
    """Return a built-in policy by name, or the one in a policy file."""
    from tercio.formats.policy import read_policy
    from tercio.twin.policies import BUILT_IN, built_in, from_policy

    if text in BUILT_IN or not _looks_like_file(text):
        return built_in(text, trace.jobs)
    return from_policy(text, read_policy(read_text(text, "policy"), source=text))


def _looks_like_file(text: str) -> bool:
    return "/" in text or "." in text or Path(text).exists()


def load_faults(
    text: str | None, nodes: Sequence[NodeSpec], trace: Trace, seed: int
) -> tuple[Fault, ...]:
    """Read a recorded fault trace, or draw faults of a climate written `mean=30d,repair=20h`."""
    from tercio.twin.faults import draw_over, parse_climate, read_faults

    if text is None:
        return ()
    if "=" not in text:
        start_s = trace.jobs[0].submit_s
        return read_faults(read_text(text, "faults"), text, nodes, start_s=start_s, seed=seed)
    return draw_over(parse_climate(text), nodes, trace, seed=seed)


def load_pace(path: str, trace: Trace, profiles: str | None) -> ProfileBook | None:
    """Load the profiles by which jobs advance that name a model; None where no job does.

    Raises:
        UserError: the profiles cannot be read.
    """
    from tercio.cli.twin_files import find_profiles, load_profiles

    if all(job.model is None for job in trace.jobs):
        return None
    return find_profiles(Path(path)) if profiles is None else load_profiles(Path(profiles))
