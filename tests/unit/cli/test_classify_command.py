"""`tercio classify`: JSON shape, exit codes, standard input, bad input."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tercio.cli.commands.classify import command

FATAL = "[1.0] NVRM: Xid (PCI:0000:4f:00): 79, pid=7, name=python, GPU has fallen off the bus.\n"
WARNING = "[1.0] pcieport 0000:00:02.0: AER: Corrected error received: id=0010\n"


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(command, list(arguments), input=stdin)


@pytest.mark.parametrize(
    ("text", "status"), [(FATAL, 1), (WARNING, 0), ("all is well\n", 0), ("", 0)]
)
def test_exit_code_is_one_from_error_up(text: str, status: int) -> None:
    assert run("-", stdin=text).exit_code == status


def test_json_shape(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(FATAL)
    result = run(str(log), "-o", "json")
    body = json.loads(result.stdout)
    assert list(body) == ["schema", "kind", "table_date", "lines", "findings", "incidents"]
    assert (body["schema"], body["kind"], body["lines"]) == ("tercio/v1", "Classification", 1)
    [finding] = body["findings"]
    target = {"pci": "0000:4f:00.0", "gi": None, "link": None, "port": None, "rank": None, "pid": 7}
    assert finding == {
        "line": 1,
        "line_end": 1,
        "at_s": None,
        "class": "xid",
        "code": "79",
        "meaning": "GPU fell off the PCIe bus",
        "severity": "fatal",
        "scope": "node",
        "action": "reboot_node",
        "cause_code": None,
        "clears": False,
        "continuation": False,
        "target": target,
        "incident": 0,
        "evidence": [FATAL.rstrip("\n")],
    }
    assert body["incidents"] == [
        {
            "id": 0,
            "target": target,
            "root_line": 1,
            "severity": "fatal",
            "action": "reboot_node",
            "findings": [0],
        }
    ]


def test_jsonl_is_one_finding_a_line() -> None:
    result = run("-", "-o", "jsonl", stdin=FATAL + "noise\n" + WARNING.rstrip("\n"))
    assert [json.loads(line)["code"] for line in result.stdout.splitlines()] == [
        "79",
        "aer_corrected",
    ]
    assert result.exit_code == 1


def test_table_says_what_where_and_what_to_do() -> None:
    result = run("-", stdin=FATAL)
    assert "Xid 79" in result.stdout
    assert "0000:4f:00.0" in result.stdout
    assert "reboot_node" in result.stdout
    assert "1 finding in 1 incident, 1 line (" in result.stdout
    assert "no faults in 1 line (" in run("-", stdin="x\n").stdout
    assert "no faults in 2 lines (" in run("-", stdin="x\ny\n").stdout


def test_bytes_that_are_no_text_are_read() -> None:
    assert run("-", stdin=b"\xff\xfe\x00" + FATAL.encode() + b"\xff").exit_code == 1


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_unreadable_log_is_status_two_with_a_hint(tmp_path: Path, name: str) -> None:
    result = run(str(tmp_path / name))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cannot read")
    assert "hint:" in result.stderr


def test_bad_driver_and_bad_overrides_are_status_two(tmp_path: Path) -> None:
    assert run("-", "--driver", "new").exit_code == 2
    assert run("-", "--overrides", str(tmp_path / "none.toml")).exit_code == 2
    site = tmp_path / "site.toml"
    site.write_text('[[fault]]\nclass="xid"\ncode="79"\naction="observe"\nreason="lab"\n')
    result = run("-", "--overrides", str(site), "-o", "json", stdin=FATAL)
    assert json.loads(result.stdout)["findings"][0]["action"] == "observe"
