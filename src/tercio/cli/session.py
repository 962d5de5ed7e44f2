"""What one run of `tercio` carries: the server to talk to, what the terminal can do, the notes."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.client import Client
    from tercio.client.transport import Transport

_PAGE_ROWS: Final = 1000
_ANSI: Final[dict[str, str]] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class Session:
    """State of one invocation, made by `main` and filled by the global options.

    Attributes:
        url: the server's address from `--url`, or None to discover it.
        token_file: file that holds the token, or None to discover it.
        color: `auto`, `always` or `never`.
        is_debug: whether errors show their traceback.
        is_quiet: whether notes and progress are left out.
        now_s: returns seconds since the epoch, for relative times.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.now_s = clock
        self.environment = os.environ if environment is None else environment
        self.url: str | None = None
        self.token_file: str | None = None
        self.color = "auto"
        self.is_debug = False
        self.is_quiet = False
        self._client: Client | None = None
        self._transport: Transport | None = None

    @property
    def client(self) -> Client:
        """The connection to the server; made when first asked for."""
        if self._client is None:
            from tercio.client import Client

            self._client = Client(self.url, self.token())
        return self._client

    def close(self) -> None:
        """Close what is open to the server."""
        if self._client is not None:
            self._client.close()
        if self._transport is not None:
            self._transport.close()

    def fetch(self, path: str, **query: object) -> bytes:
        """Return the body of a GET as the server sent it."""
        with self.progress(f"asking for {path}"):
            return self._wire().raw("GET", path, query=query)

    def post(self, path: str, body: bytes) -> bytes:
        """Return the answer to a POST as the server sent it."""
        return self.send("POST", path, body)

    def send(self, method: str, path: str, body: bytes) -> bytes:
        """Return the answer to a request with a body as the server sent it."""
        with self.progress(f"asking for {path}"):
            return self._wire().raw(method, path, body=body)

    def progress(self, text: str) -> AbstractContextManager[object]:
        """Show that something goes on while a block runs, where a terminal is there to see it."""
        if not sys.stderr.isatty():
            return nullcontext()
        from tercio.cli.progress import Progress

        return Progress(self, text)

    def fetch_pages(self, path: str, *, limit: int | None = None, **query: Any) -> list[bytes]:
        """Return the bodies of the pages of a list: all of them, or the first `limit` rows."""
        from tercio.cli.output import next_cursor

        sizes = _page_sizes(limit)
        pages = [self.fetch(path, limit=next(sizes), **query)]
        while (after := next_cursor(pages[-1])) is not None and (size := next(sizes, 0)):
            pages.append(self.fetch(path, limit=size, after=after, **query))
        return pages

    def has_color(self, stream: TextIO) -> bool:
        """Whether `stream` gets colour: the option, then NO_COLOR, CLICOLOR_FORCE, a terminal."""
        if self.color != "auto":
            return self.color == "always"
        if self.environment.get("NO_COLOR"):
            return False
        if self.environment.get("CLICOLOR_FORCE", "0") not in ("", "0"):
            return True
        return stream.isatty() and self.environment.get("TERM") != "dumb"

    def paint(self, text: str, style: str, *, stream: TextIO | None = None) -> str:
        """Return `text` in a style (`bold`, `dim`, a colour) when the stream shows colour."""
        stream = sys.stdout if stream is None else stream
        if not style or not self.has_color(stream):
            return text
        return f"\x1b[{_ANSI[style]}m{text}\x1b[0m"

    def width(self) -> int | None:
        """Columns of the terminal on stdout; None when stdout is no terminal: never cut there."""
        if not sys.stdout.isatty():
            return None
        return shutil.get_terminal_size().columns

    def can_ask(self) -> bool:
        """Whether a person is there to answer."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """Say something beside the data, on stderr; nothing with --quiet."""
        if not self.is_quiet:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Warn on stderr, --quiet or not."""
        click.echo(f"{self.paint('warning:', 'yellow', stream=sys.stderr)} {text}", err=True)

    def confirm(self, question: str, *, is_yes: bool) -> None:
        """Ask before something that cannot be undone; without a terminal `--yes` must be given."""
        if is_yes:
            return
        if not self.can_ask():
            raise UserError(
                f"'{question}' needs an answer, and there is no terminal", hint="add --yes"
            )
        if not click.confirm(question, err=True):
            raise click.Abort

    def _wire(self) -> Transport:
        if self._transport is None:
            from tercio.client.transport import Transport

            self._transport = Transport(self.client.address, timeout_s=30.0)
        return self._transport

    def token(self) -> str | None:
        """Return the token of --token-file, or None to discover one."""
        if self.token_file is None:
            return None
        with open(self.token_file, encoding="utf-8") as file:
            return file.read().strip()


def _page_sizes(limit: int | None) -> Iterator[int]:
    """How many rows to ask for, page by page: the server gives so many at once and no more."""
    left = limit
    while left is None or left > 0:
        size = _PAGE_ROWS if left is None else min(left, _PAGE_ROWS)
        yield size
        left = None if left is None else left - size
