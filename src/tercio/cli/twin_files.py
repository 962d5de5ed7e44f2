"""Opens what the twin reads: plain or gzipped files, folders, journals and profile folders."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tercio.cli.twin_input import cannot_read
from tercio.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tercio.model.events import AnyEvent
    from tercio.twin.progress.book import ProfileBook
    from tercio.twin.trace import Trace
    from tercio.twin.traces.source import Source

_SQLITE: Final = b"SQLite format 3\x00"
_GZIP: Final = b"\x1f\x8b"
_TEXT_MAX: Final = 2 << 30
_FOLDER_MAX: Final = 1000
_HOPS: Final = 4
"""How many folders above a trace its profiles are looked for."""


def open_trace(
    paths: Sequence[Path],
    *,
    format_name: str | None = None,
    filters: Sequence[str] = (),
    devices_per_node: int = 8,
    is_lenient: bool = False,
    profiles: Path | None = None,
    reference: str | None = None,
    ignores_types: bool = False,
) -> Trace:
    """Read a trace: files, gzipped files, or folders of files of one format.

    Args:
        paths: files or folders; several are one log.
        format_name: one of `twin.traces.formats`, `journal`, or None to recognise it.
        filters: conditions such as `cluster=103959`.
        devices_per_node: size of a node, to split gangs of which only the total is recorded.
        is_lenient: leave unreadable lines out, and count them.
        profiles: folder or file of throughput profiles; None looks beside the trace.
        reference: device type whose profile turns recorded work into a run time.
        ignores_types: let every job run on any device type.

    Raises:
        UserError: naming file, line, field and value.
    """
    from tercio.twin.traces.formats import detect, needs_profiles, read_trace
    from tercio.twin.traces.journal import read_journal
    from tercio.twin.traces.reading import Reading
    from tercio.twin.workload import select

    files = [file for path in paths for file in _files(path)]
    if not files:
        raise UserError(f"{paths[0]} holds no file", field="trace")
    if format_name == "journal" or (format_name is None and _is_sqlite(files[0])):
        trace = read_journal(_journal_events(files[0]), str(files[0]))
    else:
        sources = [read_source(file) for file in files]
        name = format_name or detect(sources[0])
        book = None
        if name is not None and needs_profiles(name):
            book = find_profiles(files[0]) if profiles is None else load_profiles(profiles)
        reading = Reading(
            devices_per_node=devices_per_node,
            is_lenient=is_lenient,
            profiles=book,
            reference=reference,
        )
        trace = read_trace(sources, reading, name=name)
    if ignores_types:
        jobs = tuple(msgspec.structs.replace(job, device_type=None) for job in trace.jobs)
        trace = msgspec.structs.replace(trace, jobs=jobs)
    trace = select(trace, filters)
    if not trace.jobs:
        raise UserError(f"no job of {trace.source} passes the filters", field="filter")
    return trace


def read_source(path: Path) -> Source:
    """Read one text, gzipped or not.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    from tercio.twin.traces.source import Source

    try:
        with path.open("rb") as file:
            content = file.read(_TEXT_MAX)
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not a text in UTF-8 (byte {error.start})", field="trace"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise cannot_read(path, error, "trace") from error
    return Source(name=str(path), text=text)


def load_profiles(path: Path) -> ProfileBook:
    """Read throughput profiles: a folder of model folders, a `*throughputs.json`, or both.

    Raises:
        UserError: there is none, or one is malformed.
    """
    from tercio.twin.progress.book import ProfileBook
    from tercio.twin.progress.tables import read_application, read_gavel_rates

    if path.is_file():
        return ProfileBook(rates=read_gavel_rates(read_source(path)))
    applications = {
        folder.name: read_application(
            folder.name,
            {
                file.name.removesuffix(".gz"): read_source(file)
                for file in sorted(folder.iterdir())
                if file.name.removesuffix(".gz").endswith(".csv")
            },
        )
        for folder in _model_folders(path)
    }
    rates = {}
    table = _rate_table(path)
    if table is not None:
        rates = read_gavel_rates(read_source(table))
    if not applications and not rates:
        raise UserError(f"{path} holds no throughput profiles", field="profiles")
    return ProfileBook(applications=applications, rates=rates)


def find_profiles(trace: Path) -> ProfileBook | None:
    """Look for profiles in the folders above a trace; None when there are none."""
    for folder in trace.resolve().parents[:_HOPS]:
        candidates = [folder / "profiles", *sorted(folder.glob("*/profiles"))]
        for found in candidates:
            if found.is_dir() and _model_folders(found):
                return load_profiles(found)
        if _rate_table(folder) is not None:
            return load_profiles(folder)
    return None


def _model_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return [
        folder for folder in sorted(path.iterdir())
        if folder.is_dir() and any(folder.glob("validation-*.csv*"))
    ]  # fmt: skip


def _rate_table(folder: Path) -> Path | None:
    names = ("simulation_throughputs.json", "simulation_throughputs.json.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if file.is_file()]
    files = [file for file in files if not file.name.lower().startswith(("readme", "licen", "."))]
    if len(files) > _FOLDER_MAX:
        raise UserError(
            f"{path} holds {len(files)} files", field="trace", hint="name the files instead"
        )
    return files


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise cannot_read(path, error, "trace") from error


def _journal_events(path: Path) -> Iterator[AnyEvent]:
    from tercio.store.journal import read_entries

    return (entry.event for entry in read_entries(path))
