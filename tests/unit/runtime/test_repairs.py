"""The site's repair command: what it is told, and what its end means."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tercio.model.effects import RepairNode
from tercio.model.ids import EffectId, NodeName
from tercio.runtime import repairs

ORDER = RepairNode(
    effect_id=EffectId("repair:n1/1"), epoch=1, deadline_s=9.0, node=NodeName("n1"),
    action="reboot_node", reason="Xid 79", serial="S1",
)  # fmt: skip


def run(command: str, *, until_s: float = 60.0) -> tuple[bool, str]:
    return asyncio.run(repairs.run(command, ORDER, until_s=until_s))


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mend node"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"'{path}' --force"


def test_it_is_told_what_to_mend_and_zero_means_mended(tmp_path: Path) -> None:
    command = script(tmp_path, 'echo "$@ $TERCIO_NODE $TERCIO_ACTION $TERCIO_SERIAL"')
    assert run(command) == (True, "--force reboot_node n1 n1 reboot_node S1")


def test_another_exit_code_means_not_mended_and_says_the_last_line(tmp_path: Path) -> None:
    command = script(tmp_path, "echo trying; echo the BMC does not answer >&2; exit 3")
    assert run(command) == (False, "the BMC does not answer")


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    done, told = run(script(tmp_path, "exec sleep 600"), until_s=0.2)
    assert (done, told) == (False, "the repair command did not end in time")


def test_none_and_one_that_is_not_there_are_told() -> None:
    assert "no repair command is configured" in run("")[1]
    done, told = run("/nowhere/mend")
    assert not done
    assert "could not start" in told
