"""Which tool a file was written for, and the one door to the readers of foreign files."""

from __future__ import annotations

import re
from typing import Final, Protocol

from tercio.errors import UserError
from tercio.formats.document import read_documents
from tercio.formats.foreign.draft import Converted, Fate, SiteMap
from tercio.formats.foreign.dstack import TYPES, read_dstack
from tercio.formats.foreign.kubernetes import read_kubernetes
from tercio.formats.foreign.sbatch import read_sbatch
from tercio.formats.foreign.sky import is_sky_group, looks_like_sky, read_sky

NATIVE: Final = "native"
KINDS: Final = (NATIVE, "sbatch", "sky", "dstack", "kubernetes")


def detect(text: str, source: str) -> str:
    """Return one of `KINDS`: by `#SBATCH` lines and a shebang, else by the keys of the YAML."""
    if text.startswith("#!") or re.search(r"^#SBATCH(\s|$)", text, re.MULTILINE):
        return "sbatch"
    if source.endswith((".sbatch", ".slurm", ".sh")):
        return "sbatch"
    try:
        documents = read_documents(text, source=source)
    except UserError:
        return NATIVE  # its reader says what is wrong
    if is_sky_group(documents):
        return "sky"
    for document in documents:
        value = document.value
        if not isinstance(value, dict):
            continue
        if "apiVersion" in value and "kind" in value:
            return "kubernetes"
        kind = value.get("type")
        if kind is not None and kind.raw in TYPES and "run" not in value:
            return "dstack"
        if looks_like_sky(document):
            return "sky"
    return NATIVE


def read_foreign(
    text: str,
    *,
    source: str,
    kind: str,
    sites: SiteMap | None = None,
    now_s: float | None = None,
) -> Converted:
    """Read a file of a foreign kind.

    Raises:
        UserError: it cannot be read, with line, field and fix.
    """
    if kind == "sbatch":
        return read_sbatch(text, source=source, sites=sites, now_s=now_s)
    reader = _READERS.get(kind)
    if reader is None:
        hint = f"write one of {', '.join(KINDS)}"
        raise UserError(f"'{kind}' is no kind of job file", hint=hint, field="from")
    return reader(text, source=source)


class _Reader(Protocol):
    def __call__(self, text: str, *, source: str) -> Converted:
        """Read a file."""


_READERS: Final[dict[str, _Reader]] = {
    "sky": read_sky,
    "dstack": read_dstack,
    "kubernetes": read_kubernetes,
}


def refuse_lost(found: Converted, source: str) -> None:
    """Raise for what the job must not run without.

    Raises:
        UserError: `unsupported`, naming each such field.
    """
    refused = [loss for loss in found.losses if loss.fate is Fate.REFUSED]
    if refused:
        first = refused[0]
        where = f"{source}:{first.line}" if first.line else source
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise UserError(
            f"{where}: {first.field}: {first.why}{more}",
            code="unsupported",
            hint=f"'tercio convert {source}' tells all that is lost",
            field=first.field,
        )
    if not found.jobs:
        raise UserError(f"{source}: there is no job in the file", hint="see tercio convert")
