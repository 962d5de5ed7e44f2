"""A spool that only the login host and the nodes see: everything goes through its shell.

The methods block, as `Spool` says, and run in threads; each is one `ssh` on the open connection.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tercio.engines.base import TaskRef
from tercio.engines.marks import BYTES_MAX, MARKS, parse_marks, whole_lines
from tercio.engines.slurm.accounts import Account
from tercio.engines.slurm.commands import SshCommands
from tercio.engines.slurm.order import Refused
from tercio.engines.slurm.spool import (
    LOGS,
    STOPPED,
    TASK,
    Parcel,
    Record,
    attempt_dir,
    control_dir,
    fingerprint,
    record_of,
)

_TIMEOUT_S: Final = 120.0
_HEAD_BYTES: Final = 64
_FILES: Final = ("number", "claim", "begun", "exit")
_RUNNER: Final = Path(__file__).with_name("runner.py")


class SshSpool:
    """See `spool.Spool`. A relative root is below the login's home."""

    def __init__(self, commands: SshCommands, root: str) -> None:
        self.root = root
        self._commands = commands

    def prepare(self) -> tuple[str, int]:
        """See `Spool.prepare`."""
        fresh = os.urandom(4).hex()
        text = self._sh(
            f"umask 077; mkdir -p {shlex.quote(self.root)}/tasks && cd {shlex.quote(self.root)} "
            f"&& {{ test -s owner || echo {fresh} > owner; }} && pwd && cat owner "
            "&& { cat epoch 2>/dev/null || echo 0; }"
        ).decode()
        self.root, owner, epoch = text.split("\n")[:3]
        return owner.strip(), int(epoch) if epoch.strip().isdigit() else 0

    def write_epoch(self, epoch: int) -> None:
        """See `Spool.write_epoch`."""
        self._put(f"{self.root}/epoch", str(epoch).encode())

    def runner_path(self) -> str:
        """See `Spool.runner_path`."""
        source = _RUNNER.read_bytes()
        path = f"{self.root}/runner-{fingerprint(source)}.py"
        if not self._sh(f"test -s {shlex.quote(path)} && echo there || true"):
            self._put(path, source)
        return path

    def write(self, ref: TaskRef, parcel: Parcel, account: Account) -> None:
        """See `Spool.write`; `account` is the login's own, whoever it names."""
        del account
        directory = control_dir(self.root, ref)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, content in parcel.texts.items():
                _add(tar, name, content)
            for name, text in parcel.files.items():
                _add(tar, f"task/{name}", text.encode(errors="surrogateescape"))
        quoted = shlex.quote(directory)
        self._sh(
            f"umask 077; mkdir -p {quoted}/task {quoted}/{LOGS} && tar -xzf - -C {quoted}",
            packed.getvalue(),
        )
        if parcel.archive is not None:
            target = shlex.quote(f"{attempt_dir(self.root, ref)}/workdir")
            try:
                self._sh(
                    f"test -d {target} && {{ cat > /dev/null; exit 0; }}; umask 077; "
                    f"mkdir -p {target}.new && tar -xzf - -C {target}.new "
                    f"&& mv {target}.new {target}",
                    parcel.archive.read_bytes(),
                )
            except OSError as failure:
                raise Refused(f"bad snapshot: {failure}") from failure

    def note(self, ref: TaskRef, name: str, text: str) -> None:
        """See `Spool.note`."""
        self._put(f"{control_dir(self.root, ref)}/{name}", text.encode())

    def look(self, refs: Sequence[TaskRef]) -> list[Record]:
        """See `Spool.look`; one command for all of them."""
        if not refs:
            return []
        paths = " ".join(shlex.quote(control_dir(self.root, ref)) for ref in refs)
        names = " ".join(_FILES)
        # A length before each file, so that any content can be told from the next.
        text = self._sh(
            f"for d in {paths}; do for n in {names}; do if test -e $d/$n; then wc -c < $d/$n; "
            "cat $d/$n; else echo 0; fi; done; done"
        )
        pieces = list(_pieces(text))
        pieces += [b""] * (len(refs) * len(_FILES) - len(pieces))
        marked = self._marked([(ref, 0) for ref in refs])
        return [
            record_of(*pieces[at : at + len(_FILES)], marks=parse_marks(raw.splitlines()))
            for at, (raw, _) in zip(range(0, len(pieces), len(_FILES)), marked, strict=True)
        ]

    def fence(self, ref: TaskRef) -> bool:
        """See `Spool.fence`."""
        directory = shlex.quote(control_dir(self.root, ref))
        text = self._sh(
            f"mkdir -p {directory}; set -C; (echo {STOPPED} > {directory}/claim) 2>/dev/null; "
            f"cat {directory}/claim"
        )
        return text.strip() == STOPPED.encode()

    def read(self, ref: TaskRef, name: str, offset: int, size: int) -> bytes | None:
        """See `Spool.read`."""
        path = shlex.quote(f"{control_dir(self.root, ref)}/{name}")
        return self._sh(f"test -e {path} && tail -c +{offset + 1} {path} | head -c {size} || true")

    def marks(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """See `Spool.marks`; one command for all of them."""
        return [whole_lines(text, end) for text, end in self._marked(wanted)]

    def _marked(self, wanted: Sequence[tuple[TaskRef, int]]) -> list[tuple[str, int]]:
        """Return what each task marked from an offset on, at most the last of it, and its end."""
        if not wanted:
            return []
        orders = "; ".join(
            f"m {shlex.quote(f'{control_dir(self.root, ref)}/{TASK}/{MARKS}')} {offset}"
            for ref, offset in wanted
        )
        text = self._sh(
            'm() { if test -f "$1" && ! test -L "$1"; then s=$(wc -c < "$1"); o=$2; '
            f"test $o -le $s || o=0; test $((s - o)) -le {BYTES_MAX} || o=$((s - {BYTES_MAX})); "
            'n=$((s - o)); echo $s; echo $n; tail -c +$((o + 1)) "$1" | head -c $n; '
            f"else echo 0; echo 0; fi; }}; {orders}"
        )
        found: list[tuple[str, int]] = []
        at = 0
        for _, offset in wanted:
            head = text[at : at + _HEAD_BYTES].split(b"\n", 2)
            if len(head) < 3 or not (head[0].strip().isdigit() and head[1].strip().isdigit()):
                # Somebody shortened a file meanwhile: the next look reads it anew.
                found += [("", offset)] * (len(wanted) - len(found))
                break
            start = at + len(head[0]) + len(head[1]) + 2
            at = start + int(head[1])
            found.append((text[start:at].decode(errors="surrogateescape"), int(head[0])))
        return found

    def segments(self, ref: TaskRef) -> dict[int, int]:
        """See `Spool.segments`."""
        folder = shlex.quote(f"{control_dir(self.root, ref)}/{LOGS}")
        text = self._sh(
            f"cd {folder} 2>/dev/null && for f in *; do test -f $f && echo $f $(wc -c < $f); done "
            "|| true"
        ).decode()
        rows = (line.split() for line in text.splitlines())
        return dict(sorted((int(r[0]), int(r[1])) for r in rows if len(r) == 2 and r[0].isdigit()))

    def remove(self, refs: Sequence[TaskRef]) -> None:
        """See `Spool.remove`."""
        for ref in refs:
            task, attempt = control_dir(self.root, ref), attempt_dir(self.root, ref)
            job = attempt.rpartition("/")[0]
            self._sh(
                f"rm -rf {shlex.quote(task)}; cd {shlex.quote(attempt)} 2>/dev/null || exit 0; "
                f"ls -d [0-9]* >/dev/null 2>&1 || {{ cd /; rm -rf {shlex.quote(attempt)}; "
                f"rmdir {shlex.quote(job)} 2>/dev/null; }}; true"
            )

    def _put(self, path: str, content: bytes) -> None:
        quoted = shlex.quote(path)
        self._sh(f"umask 077; cat > {quoted}.new && mv {quoted}.new {quoted}", content)

    def _sh(self, script: str, stdin: bytes = b"") -> bytes:
        """Run a script of the login's shell. Raises OSError."""
        command, options = self._commands.process(["sh", "-c", script], None)
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, timeout=_TIMEOUT_S, check=False,
                **options,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise OSError(f"{self._commands.where}: no answer in {_TIMEOUT_S:.0f}s") from None
        if done.returncode:
            text = done.stderr.decode(errors="replace").strip().splitlines()
            raise OSError(f"{self._commands.where}: {text[-1] if text else done.returncode}")
        return bytes(done.stdout)


def _pieces(text: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(text):
        end = text.find(b"\n", at)
        head = text[at:end].strip()
        if end < 0 or not head.isdigit():
            break
        at = end + 1 + int(head)
        found.append(text[end + 1 : at])
    return found


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    tar.addfile(entry, io.BytesIO(content))
