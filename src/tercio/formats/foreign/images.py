"""Images and mounts of containers, in the words of other tools."""

from __future__ import annotations

import re
from typing import Final

from tercio.formats.parts import MOUNT
from tercio.model.job import Mount

_MODES: Final = ("ro", "rw")


def image_of_pyxis(text: str) -> str:
    """Return an image that Pyxis names: `nvcr.io#nvidia/pytorch:24.07` has its registry apart."""
    return text.replace("docker://", "").replace("#", "/", 1)


def image_for_pyxis(image: str) -> str:
    """Return an image in the words of Pyxis.

    >>> image_for_pyxis("nvcr.io/nvidia/pytorch:24.07")
    'nvcr.io#nvidia/pytorch:24.07'
    >>> image_for_pyxis("python:3.11")
    'python:3.11'
    """
    bare = image.removeprefix("docker://")
    host, slash, rest = bare.partition("/")
    is_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
    return f"{host}#{rest}" if is_host and host != "." else bare


def read_mounts(text: str) -> tuple[list[str], list[str]]:
    """Return the mounts of `SOURCE:TARGET[:FLAGS],...`, and those that have no form here.

    >>> read_mounts("/a:/b:ro,/c,$HOME:/d")
    (['/a:/b:ro', '/c'], ['$HOME:/d'])
    """
    kept: list[str] = []
    lost: list[str] = []
    for piece in filter(None, (each.strip() for each in text.split(","))):
        source, *rest = piece.split(":")
        mode = f":{rest.pop()}" if rest and rest[-1] in _MODES else ""
        mount = ":".join([source, *rest]) + ("" if mode == ":rw" else mode)
        is_known = re.match(MOUNT, mount) and len(rest) < 2 and "$" not in mount
        (kept if is_known else lost).append(mount if is_known else piece)
    return list(dict.fromkeys(kept)), lost


def mount_text(mount: Mount) -> str:
    """Return a mount as Pyxis takes it."""
    mode = ":ro" if mount.is_read_only else ""
    return f"{mount.source}:{mount.target}{mode}"
