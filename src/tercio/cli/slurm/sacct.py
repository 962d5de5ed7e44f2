"""`sacct`: jobs that run and that have ended."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Final

from tercio.cli.output import write
from tercio.cli.session import Session
from tercio.cli.slurm import filters
from tercio.cli.slurm.columns import FIELDS, Column, Seen, line, read_names
from tercio.cli.slurm.ids import find_jobs, read_ids
from tercio.cli.slurm.parsing import parse
from tercio.errors import UserError
from tercio.model.units import parse_duration_s, parse_instant_s

DEFAULT: Final = "JobID%-12,JobName%10,Partition%10,Account%10,AllocCPUS%10,State%10,ExitCode%8"
_VALUED: Final = {
    **filters.VALUED, "states": "s", "format": "o", "starttime": "S", "endtime": "E", "name": "",
    "partition": "r", "nodelist": "N", "clusters": "M", "delimiter": "",
}  # fmt: skip
_FLAGS: Final = {
    **filters.FLAGS, "allocations": "X", "parsable": "p", "parsable2": "P", "noheader": "n",
    "allusers": "a", "long": "l", "duplicates": "D", "brief": "b",
}  # fmt: skip
_LONG: Final = (
    "JobID%-12,JobName,Partition,Account,User,AllocCPUS,NNodes,State,ExitCode,Submit%19,Start%19,"
    "End%19,Elapsed,NodeList"
)
_TITLES: Final = {
    "jobid": "JobID", "name": "JobName", "partition": "Partition", "account": "Account",
    "numcpus": "AllocCPUS", "state": "State", "username": "User", "numnodes": "NNodes",
    "submittime": "Submit", "nodelist": "NodeList", "timelimit": "Timelimit", "qos": "QOS",
}  # fmt: skip


def run(session: Session, words: Sequence[str]) -> int:
    """List jobs, your own unless -u, -a or -j says otherwise. There are no steps, so -X is so."""
    options, _ = parse(words, valued=_VALUED, flags=_FLAGS)
    form = options.get("format", _LONG if "long" in options else DEFAULT)
    columns = read_names(form, width=10)
    delimiter = options.get("delimiter", "|")
    is_plain = "parsable" in options or "parsable2" in options
    end = delimiter if "parsable" in options else ""
    if not is_plain:
        columns = [c for column in columns for c in (column, " ")]

    def shown(values: dict[str, str]) -> str:
        if is_plain:
            names = [column.name for column in columns if isinstance(column, Column)]
            return delimiter.join(values[name] for name in names) + end
        return line(columns, lambda name: values[name], mark="+")

    if "noheader" not in options:
        write(shown({name: _TITLES.get(name, title) for name, (title, _) in FIELDS.items()}))
        if not is_plain:
            write(line(columns, lambda _: "-" * 200))
    ids = read_ids([options["jobs"]]) if options.get("jobs") else []
    if not ids and "allusers" not in options and "user" not in options:
        options["user"] = getpass.getuser()
    since_s = _instant_s(session, options.get("starttime"))
    until_s = _instant_s(session, options.get("endtime"))
    for view in find_jobs(session, ids, is_all=True):
        is_in = (view.ended_s or until_s) >= since_s and view.submitted_s <= until_s
        if (since_s == 0.0 or is_in) and filters.is_wanted(view, options):
            seen = Seen(session, view)
            names = [column.name for column in columns if isinstance(column, Column)]
            write(shown({name: FIELDS[name][1](seen) for name in names}))
    return 0


def _instant_s(session: Session, text: str | None) -> float:
    """Read `2026-11-30`, `2026-11-30T08:00`, `now-2hours`; no bound where nothing is given."""
    if text is None:
        return 0.0
    if text.startswith("now"):
        amount = text.removeprefix("now").removeprefix("-")
        plain = amount.rstrip("abcdefghijklmnopqrstuvwxyz")
        unit = amount[len(plain) :][:1]
        return session.now_s() - (parse_duration_s(f"{plain}{unit or 's'}") if plain else 0.0)
    if len(text) == 10:
        text += "T00:00:00"
    try:
        return parse_instant_s(text if text.endswith("Z") else f"{text}Z")
    except UserError:
        hint = "write 2026-11-30, 2026-11-30T08:00:00 (UTC) or now-2hours"
        raise UserError(f"'{text}' is no time", hint=hint) from None
