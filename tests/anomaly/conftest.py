from __future__ import annotations

import sys
from pathlib import Path

# The same state directory and simulated machines as in the unit tests of the runtime.
sys.path.append(str(Path(__file__).parents[1] / "unit" / "runtime"))
