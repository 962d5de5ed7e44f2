"""What the server and its bridge say to each other: frames of msgpack, length first.

>>> decode_request(encode(Request(id=1, body=Release(names=("a",))))).body.names
('a',)
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from tercio.engines.base import TaskRef
from tercio.model.node import DeviceSpec

FRAME_BYTES_MAX: Final = 256 * 1024**2
CHUNK_BYTES: Final = 4 * 1024**2
DECOY: Final = "decoy/"
"""Begins the name, after our prefix, of a group that is held for a moment only."""


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start or find the agent of a node; answered by `AgentFacts`."""

    node_id: str
    name: str
    site: str
    address: str
    devices: tuple[DeviceSpec, ...]
    node_dir: str | None
    log_cap_bytes: int


class Adopt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take over a node's tasks and listen to its agent; answered by a list of `TaskRef`."""

    node_id: str
    known: tuple[TaskRef, ...]


class Reserve(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Hold devices, cores and memory on one node; answered by `Held`.

    `ids` are the accelerators by the names that Ray gives them; `device_milli` is less than
    1000 times their number for a share of one.
    """

    node_id: str
    name: str
    ids: tuple[str, ...] = ()
    device_milli: int = 0
    cpus_milli: int = 0
    memory_bytes: int = 0


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give back what was held under these names; unknown ones are no error."""

    names: tuple[str, ...]


class Call(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Call a method of a node's agent with encoded arguments; answered by its encoded answer."""

    node_id: str
    method: str
    payload: bytes = b""
    timeout_s: float = 30.0


class Survey(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Read nodes, placement groups and foreign use; answered by `Facts`."""


Body = Attach | Adopt | Reserve | Release | Call | Survey


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One question to the bridge."""

    id: int
    body: Body


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to a request; `error` is why there is none."""

    id: int
    payload: bytes = b""
    error: str | None = None
    is_retryable: bool = True


class Told(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Encoded observations of a node's agent; none when it listens to somebody else now.

    `number` grows with every one that a listener is told: what comes again is known by it.
    """

    node_id: str
    payload: bytes
    listener: str = ""
    number: int = 0


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent knows of its node.

    Attributes:
        ids: names of the accelerators in the order of Ray's slots; empty when they are 0, 1, ...
        abilities: fields of `Capabilities` that hold there.
        notes: see `Capabilities.notes`.
    """

    ids: tuple[str, ...] = ()
    abilities: tuple[str, ...] = ()
    notes: dict[str, str] = {}


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a reservation stands, whether it is new, and why it does not."""

    is_held: bool
    is_new: bool = False
    message: str = ""


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as Ray tells it."""

    id: str
    name: str
    address: str
    hostname: str
    is_alive: bool
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle of a placement group that holds resources of a node."""

    group_id: str
    name: str
    node_id: str
    resources: dict[str, float] = {}


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker uses of its node: amounts by resource, then by slot."""

    node_id: str
    slots: dict[str, dict[int, float]] = {}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One survey of the cluster.

    Attributes:
        blind: nodes whose workers could not be read; their use is not known.
        waiting: names of groups that Ray has not placed yet.
        stranded: names of groups whose nodes have all died; ours fit no other node.
    """

    nodes: tuple[RayNode, ...] = ()
    bundles: tuple[Bundle, ...] = ()
    uses: tuple[WorkerUse, ...] = ()
    blind: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    stranded: tuple[str, ...] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final = msgspec.msgpack.Decoder(Request)
_answers: Final = msgspec.msgpack.Decoder(Reply | Told)


def encode(message: object) -> bytes:
    """Return a message as bytes."""
    return _encoder.encode(message)


def decode_request(frame: bytes) -> Request:
    """Return the request in a frame."""
    return _requests.decode(frame)


def decode_answer(frame: bytes) -> Reply | Told:
    """Return what the bridge said."""
    return _answers.decode(frame)


def framed(message: object) -> bytes:
    """Return a message with its length before it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read_frame(stream: asyncio.StreamReader) -> bytes | None:
    """Return the next frame, or None when the other end has gone."""
    try:
        size = int.from_bytes(await stream.readexactly(4), "big")
        if size > FRAME_BYTES_MAX:
            return None
        return await stream.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
