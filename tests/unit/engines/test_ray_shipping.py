"""The code that goes to the nodes of a Ray cluster is whole: nothing else of Tercio is there."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

IMPORTS = """
import sys
sys.path[:0] = [{code!r}, {libraries!r}]
import tercio.engines.ray.agent
from tercio.engines.registry import engine_class
print(engine_class("local").kind, tercio.__file__)
"""


def test_a_node_can_import_the_agent_and_its_engine_from_what_is_shipped(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the engine needs Ray")
    from tercio.engines.ray.shipping import archive

    zipfile.ZipFile(io.BytesIO(archive())).extractall(tmp_path)
    program = IMPORTS.format(code=f"{tmp_path}/code", libraries=f"{tmp_path}/libraries")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["local", f"{tmp_path}/code/tercio/__init__.py"]
