"""The garbage collector for the length of a long computation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 100_000
"""Objects made between two looks at the youngest; Python's own default is 700."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for cyclic garbage seldom, and never among what was there before.

    A replay makes millions of short-lived values, hardly any of them in cycles, beside a trace of
    many thousand jobs that stays: to look through all that again and again is time for nothing.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
