"""A policy in shadow, in a process of its own: `python -m tercio.api.shadow_child STATE_DIR`.

It reads the journal of the server as anybody may, so that the server pays nothing for it. Each
line on stdin asks for a report, which is one line on stdout. It gives way to the server, is the
first to go when memory runs out, and ends when stdin does.

The state that it began with is kept beside the journal. After a restart the journal is read
again from there on; where that is not whole any more, it begins anew and says so.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tercio.api.shadow_bodies import BEGUN_FILE, ORDER_FILE, ShadowAnswer, ShadowOrder
from tercio.core.promises import check_policy
from tercio.errors import StoreError, UserError
from tercio.formats.policy import read_policy
from tercio.model.queue import Policy
from tercio.runtime.recovery import read_state
from tercio.store.reader import JournalReader
from tercio.twin.shadow import Shadow

JOURNAL_FILE: Final = "journal.db"
POLL_S: Final = 1.0
ANSWER_S: Final = 3.0
"""Longest time that an answer waits for entries to be read."""
SETTLED_S: Final = 5.0
"""No entry that is older than this comes: turns are written at once."""
PAGE: Final = 500
_NICE: Final = 10
_OOM_SCORE: Final = "500"
_OTHER: Final = "another shadow"


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shadow began: the state after entry `seq`. `note` says why it began anew."""

    order: str
    seq: int
    image: bytes
    note: str = ""


class Follower:
    """A shadow and the journal that it reads."""

    def __init__(self, state_dir: Path) -> None:
        self.order = msgspec.json.decode((state_dir / ORDER_FILE).read_bytes(), type=ShadowOrder)
        policy = read_policy(
            self.order.file, source=self.order.source, overcommit=self.order.overcommit
        )
        self.reader = JournalReader(state_dir / JOURNAL_FILE)
        begun = self._begin(state_dir / BEGUN_FILE, policy)
        self.note = begun.note
        self.shadow = Shadow(begun.image, policy, seq=begun.seq, lag_s=self.order.lag_s)

    def _begin(self, path: Path, policy: Policy) -> Begun:
        note = ""
        try:
            kept = msgspec.msgpack.decode(path.read_bytes(), type=Begun)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            note = f"began anew: what it began with cannot be read ({error})"
        else:
            note = self._why_not(kept)
            if not note:
                return kept
            note = "" if note == _OTHER else note
        cluster, seq = read_state(self.reader)
        check_policy(cluster, policy)
        begun = Begun(order=self.order.id, seq=seq, image=cluster.image(), note=note)
        _save(path, msgspec.msgpack.encode(begun))
        return begun

    def _why_not(self, kept: Begun) -> str:
        """Why the journal cannot be read again from where a shadow began; empty if it can."""
        if kept.order != self.order.id:
            return _OTHER
        first, last = self.reader.first_seq, self.reader.last_seq
        if first > kept.seq + 1:
            return f"began anew: entries before {first} are no longer kept"
        if last < kept.seq:
            return "began anew: the journal was restored from a backup"
        return ""

    def read(self) -> bool:
        """Read one page; return whether there is more."""
        page = self.reader.read(self.shadow.seq, PAGE)
        if page and page[0].seq != self.shadow.seq + 1:
            raise StoreError(
                f"entries from {self.shadow.seq + 1} on were dropped before it read them"
            )
        self.shadow.take(page)
        if len(page) == PAGE:
            return True
        self.shadow.settle(time.time() - SETTLED_S)
        return False

    def answer(self) -> bytes:
        """Read what there is, within reason, and return a report as a line."""
        until_s = time.monotonic() + ANSWER_S
        while self.read() and time.monotonic() < until_s:
            pass
        said = ShadowAnswer(report=self.shadow.report(), note=self.note)
        return msgspec.json.encode(said) + b"\n"


def _save(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    part.replace(path)


def _give_way() -> None:
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def main(state_dir: str) -> int:
    """Follow the journal until stdin ends; returns the exit code."""
    _give_way()
    try:
        follower = Follower(Path(state_dir))
        _follow(follower)
    except (StoreError, UserError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _follow(follower: Follower) -> None:
    has_more = True
    while True:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], 0.0 if has_more else POLL_S)
        if ready:
            asked = os.read(sys.stdin.fileno(), 4096)
            if not asked:
                return
            for _ in range(asked.count(b"\n")):
                sys.stdout.buffer.write(follower.answer())
            sys.stdout.buffer.flush()
        has_more = follower.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
