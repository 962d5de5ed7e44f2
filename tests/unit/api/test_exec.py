"""Commands inside running tasks of the local engine, and their sessions."""

import asyncio
import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest
from live_server import LiveServer, job

from tercio.api.connect import make_engines
from tercio.api.execs import SESSIONS_MAX, SESSIONS_PER_USER_MAX, ExecSessions
from tercio.client import Client, JobRequest
from tercio.config import Config, LocalConfig
from tercio.errors import UserError
from tercio.model.events import TaskExited, TaskStarted
from tercio.model.identity import Principal

# A server that is root runs no task as root.
RUN_AS = "nobody" if os.geteuid() == 0 else ""


def local_engines(clock, state):
    config = Config(state_dir=str(state), local=LocalConfig(cpu_devices=2, run_as=RUN_AS))
    return make_engines(config, clock=clock.now_s, workdir_of=lambda name: state / name)


@pytest.fixture(scope="module")
def live():
    # Tasks of another user must be able to pass through to their directories.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        state = Path(directory) / "state"
        with LiveServer(state, engines=local_engines, nodes=(socket.gethostname(),)) as server:
            yield server


@pytest.fixture(scope="module")
def client(live):
    with Client(live.url, live.admin_secret) as client:
        yield client


@pytest.fixture(scope="module")
def name(live, client):
    """The id of a job whose one task does nothing for long."""
    box = {"name": "box", "run": "sleep 600", "per_task": {"devices": "CPU:1"}}
    box["checkpoint"] = {"grace": "0s"}
    (name,) = client.submit(JobRequest(job=box)).ids
    live.wait_for(TaskStarted, name)
    yield name
    client.cancel(name)
    live.wait_for(TaskExited, name)


def refused(call, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        call(*args, **kwargs)
    return caught.value


def test_a_command_runs_inside_the_task(client, name):
    command = client.execute(name, ["sh", "-c", "echo $TERCIO_JOB; exit 7"])
    assert b"".join(command.output()).decode().strip() == name
    assert command.exit_code == 7


def test_its_input_arrives_and_ends(client, name):
    command = client.execute(name, ["cat"])
    command.write(b"binary \x00\xff\n")
    command.write(b"")
    assert b"".join(command.output()) == b"binary \x00\xff\n"
    assert command.exit_code == 0


def test_a_terminal_has_the_size_it_was_given(client, name):
    command = client.execute(name, ["stty", "size"], has_terminal=True, rows=33, columns=77)
    assert b"33 77" in b"".join(command.output())


def test_a_closed_command_is_gone(client, name):
    command = client.execute(name, ["sleep", "600"])
    command.resize(rows=10, columns=10)
    command.close()
    assert refused(command.write, b"x").code == "not_found"


def test_output_has_one_reader(client, name):
    command = client.execute(name, ["cat"])
    opened = threading.Event()

    def read():
        for _ in command.output():
            opened.set()

    reader = threading.Thread(target=read)
    reader.start()
    command.write(b"x")
    assert opened.wait(20)
    assert refused(list, command.output()).code == "conflict"
    command.write(b"")
    reader.join(20)
    assert command.exit_code == 0


def test_a_session_is_its_owners_only(live, client, name):
    command = client.execute(name, ["cat"])
    with Client(live.url, live.token("admin", user="other")) as other:
        path = command._path
        assert refused(other._transport.raw, "DELETE", path).code == "not_found"
    command.close()


@pytest.mark.parametrize(
    ("argv", "task", "code"),
    [([""], 0, "invalid"), (["a\0b"], 0, "invalid"), (["true"], 9, "not_found")],
)
def test_a_command_that_cannot_be_is_refused(client, name, argv, task, code):
    assert refused(client.execute, name, argv, task=task).code == code


def test_only_running_tasks_take_commands(client):
    (held,) = client.submit(job("held", gpus="CPU:1", hold=True)).ids
    assert refused(client.execute, held, ["true"]).code == "conflict"


def test_an_engine_without_processes_says_why(tmp_path):
    with LiveServer(tmp_path) as live, Client(live.url, live.admin_secret) as client:
        (name,) = client.submit(job()).ids
        live.wait_for(TaskStarted, name)
        error = refused(client.execute, name, ["true"])
    assert error.code == "unsupported"
    assert "no processes" in error.message


class Session:
    """An open command that only notes that it was closed."""

    def __init__(self):
        self.closed = asyncio.Event()

    async def close(self):
        self.closed.set()


def test_a_session_that_nobody_reads_is_closed():
    async def check():
        sessions, session = ExecSessions(unread_s=0), Session()
        owner = Principal(user="ana")
        name = sessions.add(session, owner)
        await asyncio.wait_for(session.closed.wait(), 10)
        with pytest.raises(UserError):
            sessions.get(name, owner)

    asyncio.run(check())


def test_sessions_are_bounded_and_all_closed_at_the_end():
    async def check():
        sessions = ExecSessions()
        opened = [Session() for _ in range(SESSIONS_MAX)]
        users = [Principal(user=f"u{n}") for n in range(SESSIONS_MAX // SESSIONS_PER_USER_MAX)]
        for number, session in enumerate(opened):
            owner = users[number // SESSIONS_PER_USER_MAX]
            sessions.check_room(owner)
            sessions.add(session, owner)
            if number == SESSIONS_PER_USER_MAX - 1:
                with pytest.raises(UserError, match="u0 has 16 commands"):
                    sessions.check_room(owner)
        with pytest.raises(UserError, match="64 commands") as caught:
            sessions.check_room(Principal(user="late"))
        assert caught.value.code == "too_many"
        await sessions.close_all()
        assert all(session.closed.is_set() for session in opened)
        sessions.check_room(users[0])

    asyncio.run(check())
