"""`tercio site`: what is kept, refused and shown. No server runs here."""

from __future__ import annotations

import json

import msgspec
import pytest

import tercio.cli.commands.site  # noqa: F401 - its options are made when it is imported
from tercio.engines import registry, sites
from tercio.engines.registry import EngineKind, SiteRoom
from tercio.engines.sites import connect_site, read_sites
from tercio.errors import UserError


class GridOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    address: str = ""
    seats: int = 1
    tag: tuple[str, ...] = ()


class Grid:
    def __init__(self, site, options, room):
        self.site, self.options, self.room = site, options, room


@pytest.fixture(autouse=True)
def _grid(monkeypatch, tmp_path):
    entry = EngineKind(
        path=f"{__name__}:Grid", install="none", options=f"{__name__}:GridOptions",
        connect=f"{__name__}:Grid",
    )  # fmt: skip
    monkeypatch.setattr(registry, "_KINDS", {**registry._KINDS, "grid": entry})
    monkeypatch.setenv("TERCIO_STATE_DIR", str(tmp_path / "state"))


def write(tmp_path, *found):
    sites.write_sites(tmp_path / "state", found)


def site(name="hpc", **options):
    return sites.Site(name=name, kind="grid", options=options)


def test_a_site_is_kept_and_connected_with_typed_options(tmp_path):
    write(tmp_path, site(address="there:1", seats=3))
    (kept,) = read_sites(tmp_path / "state")
    room = SiteRoom(clock=lambda: 0.0, state_dir=tmp_path, workdir_of=lambda name: tmp_path / name)
    grid = connect_site(kept, room)
    assert (grid.site, grid.options) == ("hpc", GridOptions(address="there:1", seats=3))
    assert (tmp_path / "state" / "sites.json").stat().st_mode & 0o777 == 0o600


def test_list_show_and_remove(tercio, tmp_path):
    code, out, err = tercio("site")
    assert (code, out) == (0, "")
    assert "no site was added" in err
    write(tmp_path, site(address="there:1"), site("lab", tag=["a", "b"]))
    out = tercio("site", "list").out
    assert "address=there:1" in out or "there:1" in out
    assert "no server runs" in out
    rows = [json.loads(line) for line in tercio("site", "list", "-o", "jsonl").out.splitlines()]
    assert [row["name"] for row in rows] == ["hpc", "lab"]
    assert "there:1" in tercio("site", "show", "hpc").out
    assert tercio("site", "remove", "hpc").code == 0
    assert [kept.name for kept in read_sites(tmp_path / "state")] == ["lab"]
    code, _, err = tercio("site", "remove", "lap")
    assert code == 3
    assert "did you mean 'lab'?" in err


@pytest.mark.parametrize(
    ("options", "told"),
    [({"adress": "x"}, "did you mean 'address'?"), ({"seats": "many"}, "seats")],
)
def test_wrong_options_are_named(options, told):
    with pytest.raises(UserError) as error:
        sites.read_options("grid", options)
    assert told in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize(
    ("name", "code"), [("Hpc", "invalid"), ("local", "conflict"), ("hpc", "conflict")]
)
def test_names_are_checked(name, code):
    with pytest.raises(UserError) as error:
        sites.check_name(name, (site(),))
    assert error.value.code == code


def test_a_damaged_file_says_which(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "sites.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"sites\.json"):
        read_sites(tmp_path / "state")


def test_a_site_of_an_unknown_kind_names_the_site(tmp_path):
    room = SiteRoom(clock=lambda: 0.0, state_dir=tmp_path, workdir_of=lambda name: tmp_path / name)
    with pytest.raises(UserError, match="site old:"):
        connect_site(sites.Site(name="old", kind="gird"), room)
    with pytest.raises(UserError, match="site mine: a local site cannot be added"):
        connect_site(sites.Site(name="mine", kind="local"), room)


def test_slurm_sites_are_added_with_their_own_options(tercio, tmp_path):
    code, _, err = tercio(
        "site", "add", "slurm", "hpc", "--ssh", "ana@login", "--partition", "a", "--partition", "b",
        "--poll-s", "5",
    )  # fmt: skip
    assert code == 0, err
    assert "tercio site check hpc" in err
    (kept,) = read_sites(tmp_path / "state")
    assert kept.options == {"ssh": "ana@login", "partition": ["a", "b"], "poll_s": 5.0}
    room = SiteRoom(clock=lambda: 0.0, state_dir=tmp_path, workdir_of=lambda name: tmp_path / name)
    assert connect_site(kept, room).kind == "slurm"
    assert "ssh=ana@login" in tercio("site", "list").out
    code, _, err = tercio("site", "add", "slurm", "hpc")
    assert (code, "was added before" in err) == (4, True)
    code, _, err = tercio("site", "add", "slurm", "x", "--mode", "placd")
    assert code == 2
    assert "did you mean 'placed'?" in err
    code, _, err = tercio("site", "add", "slurm", "x", "--rest", "there")
    assert (code, "neither http" in err) == (2, True)
    code, _, err = tercio("site", "add", "slurn", "x")
    assert "did you mean 'slurm'?" in err
