"""Counts and durations as users write them: `1T` tokens, `2k`, `40ms`, `14d`, `500k` dollars."""

from __future__ import annotations

import re

from tercio.errors import UserError

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_count(text: str, *, field: str) -> float:
    """A positive count with k, M, B or T. Raises UserError.

    >>> parse_count("1T", field="tokens")
    1000000000000.0
    """
    found = re.fullmatch(r"\$?\s*(\d+(?:\.\d+)?)\s*([kmbgt]?)", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise UserError(
            f"{field} is {text!r}",
            field=field,
            hint="write a positive count such as 2048, 2k, 1.5M or 1T",
        )
    return float(found[1]) * _COUNTS[found[2]]


def parse_seconds(text: str, *, field: str) -> float:
    """A positive duration with us, ms, s, m, h, d or w. Raises UserError.

    >>> parse_seconds("40ms", field="tpot")
    0.04
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise UserError(
            f"{field} is {text!r}",
            field=field,
            hint="write a positive duration such as 40ms, 1s, 12h or 14d",
        )
    return float(found[1]) * _SECONDS[found[2]]
