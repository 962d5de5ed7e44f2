"""The agent tells, waits while it cannot, and loses no line over restarts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tercio.agent.loop import Agent
from tercio.collect.fault_table import load_fault_table
from tercio.collect.kernel_log import KernelLog
from tercio.collect.sampling import Sample, Sampler
from tercio.collect.watch import Watcher
from tercio.errors import UserError
from tercio.model.health_views import ReadingsAnswer
from tercio.model.readings import DeviceTelemetry, NodeReading

TABLE = load_fault_table()
XID = "NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"


class OneGpu(Sampler):
    """A sampler that needs no child: one device that is well."""

    def sample(self) -> Sample:
        return Sample(devices=(DeviceTelemetry(index=0, uuid="GPU-0"),), driver="580.65")


class Server:
    """Takes readings while it is up."""

    def __init__(self) -> None:
        self.is_up = True
        self.got: list[NodeReading] = []

    def tell(self, body: bytes) -> bytes:
        if not self.is_up:
            raise UserError("no server answers", code="unavailable")
        self.got.append(msgspec.json.decode(body, type=NodeReading))
        return msgspec.json.encode(ReadingsAnswer(faults=0, poll_s=7.0))

    def lines(self) -> list[str]:
        return [line.text + "\n" for reading in self.got for line in reading.lines]


def agent(tmp_path: Path, server: Server, notes: list[str] | None = None) -> Agent:
    log = KernelLog(str(tmp_path / "kern.log"), cursor_file=tmp_path / "cursor")
    watcher = Watcher(table=TABLE, sampler=OneGpu(), log=log, ports=tmp_path / "none")
    said = notes if notes is not None else []
    return Agent(watcher=watcher, tell=server.tell, poll_s=10.0, note=said.append)


def write(tmp_path: Path, text: str) -> None:
    with (tmp_path / "kern.log").open("a") as file:
        file.write(text)


def test_lines_wait_for_the_server_and_old_values_do_not(tmp_path: Path) -> None:
    write(tmp_path, "")
    server, notes = Server(), list[str]()
    ours = agent(tmp_path, server, notes)
    assert ours.poll()
    server.is_up = False
    write(tmp_path, XID + "a line that means nothing\n")
    assert not ours.poll()
    assert not ours.poll()
    server.is_up = True
    assert ours.poll()
    assert server.lines() == [XID]
    assert [len(reading.devices) for reading in server.got] == [1, 0, 1]
    assert len(notes) == 1
    assert "no server answers" in notes[0]


def test_a_restart_while_the_server_is_away_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path, "")
    server = Server()
    assert agent(tmp_path, server).poll()
    server.is_up = False
    write(tmp_path, XID)
    assert not agent(tmp_path, server).poll()
    server.is_up = True
    after = agent(tmp_path, server)
    assert after.poll()
    assert server.lines() == [XID]
    assert after.poll()
    assert server.lines() == [XID]


def test_the_server_sets_the_pace_and_silence_slows_it(tmp_path: Path) -> None:
    write(tmp_path, "")
    server = Server()
    ours = agent(tmp_path, server)
    assert ours.pause_s == 10.0
    ours.poll()
    assert ours.pause_s == 7.0
    server.is_up = False
    pauses = []
    for _ in range(12):
        ours.poll()
        pauses.append(ours.pause_s)
    assert pauses[0] == 7.0
    assert pauses[-1] == 300.0
    assert pauses == sorted(pauses)
