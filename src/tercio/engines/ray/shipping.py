"""The agents' code, put once into the cluster's key-value store."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Final

import msgspec
from ray.experimental.internal_kv import _internal_kv_exists, _internal_kv_put

import tercio

_PARTS: Final = (
    "__init__.py",
    "errors.py",
    "logs.py",
    "health/*.py",
    "launch/__init__.py",
    "launch/containers.py",
    "model/*.py",
    "engines/*.py",
    "engines/local/*.py",
    "engines/ray/*.py",
)
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def archive() -> bytes:
    """Return the code as a zip with the same bytes every time: `code/` and `libraries/`."""
    target = io.BytesIO()
    package = Path(tercio.__file__).parent
    library = Path(msgspec.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for part in _PARTS:
            for path in sorted(package.glob(part)):
                name = f"code/tercio/{path.relative_to(package)}"
                file.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes())
        for path in sorted(library.glob("*")):
            if path.suffix in (".py", ".so"):
                name = f"libraries/msgspec/{path.name}"
                file.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes())
    return target.getvalue()


def ship() -> bytes:
    """Store the code under a key of its content, once, and return the key."""
    code = archive()
    key = b"tercio-code:" + hashlib.sha256(code).hexdigest()[:16].encode()
    if not _internal_kv_exists(key):
        _internal_kv_put(key, code)
    return key
