"""Lengths and rates of recorded requests: what a trace says of a serving load.

Two published forms are read: CSV with TIMESTAMP, ContextTokens, GeneratedTokens (Azure, 2023) and
JSON lines with timestamp in milliseconds, input_length, output_length and hash_ids of 512-token
prompt blocks (Mooncake, 2407.00079).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from datetime import datetime

import msgspec
import numpy as np

from tercio.errors import UserError

BLOCK_TOKENS = 512
WINDOW_S = 60.0
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says. Lengths in tokens, rates in requests per second.

    Attributes:
        prompt_cv: standard deviation of the prompt length over its mean.
        peak_rps: of the busiest minute.
        prefix_hit_ratio: share of the prompt tokens that a cache which forgets nothing would
            hold; None where the trace has no hashes.
    """

    requests: int
    span_s: float
    isl: float
    isl_p50: float
    isl_p95: float
    prompt_cv: float
    osl: float
    osl_p50: float
    osl_p95: float
    rps: float
    peak_rps: float
    prefix_hit_ratio: float | None


def read_lengths(text: str, *, name: str) -> Lengths:
    """Read a trace in one of the two forms. Raises UserError naming line and column."""
    if text.lstrip().startswith("{"):
        return _mooncake(text, name)
    return _azure(text, name)


def _azure(text: str, name: str) -> Lengths:
    rows = csv.DictReader(io.StringIO(text))
    missing = [column for column in AZURE_COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise UserError(
            f"{name}: no column {', '.join(missing)}",
            field="trace",
            hint="give CSV with " + ", ".join(AZURE_COLUMNS) + ", or JSON lines with timestamp, "
            "input_length and output_length",
        )
    found: list[tuple[float, float, float]] = []
    for number, row in enumerate(rows, start=2):
        try:
            # Seven digits of a second are one more than a datetime has.
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            found.append((at_s, float(row["ContextTokens"]), float(row["GeneratedTokens"])))
        except (ValueError, TypeError):
            raise _wrong(name, number) from None
    return _lengths(found, None, name)


def _mooncake(text: str, name: str) -> Lengths:
    found: list[tuple[float, float, float]] = []
    known: set[int] = set()
    held = 0.0
    has_hashes = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            size = float(row["input_length"])
            found.append((float(row["timestamp"]) / 1e3, size, float(row["output_length"])))
            blocks = [int(block) for block in row.get("hash_ids", ())]
        except (ValueError, KeyError, TypeError):
            raise _wrong(name, number) from None
        has_hashes = has_hashes or bool(blocks)
        held += min(_prefix(blocks, known) * BLOCK_TOKENS, size)
        known.update(blocks)
    total = sum(size for _, size, _ in found)
    return _lengths(found, held / total if has_hashes and total else None, name)


def _prefix(blocks: Iterable[int], known: set[int]) -> int:
    """Leading blocks that were seen before."""
    count = 0
    for block in blocks:
        if block not in known:
            break
        count += 1
    return count


def _wrong(name: str, number: int) -> UserError:
    return UserError(
        f"{name}, line {number}: no time and lengths", field="trace", hint="mend or drop the line"
    )


def _lengths(
    found: list[tuple[float, float, float]], hit_ratio: float | None, name: str
) -> Lengths:
    if len(found) < 2:
        raise UserError(f"{name}: {len(found)} requests, too few", field="trace")
    at_s, isl, osl = (np.array(column) for column in zip(*found, strict=True))
    if not (np.isfinite(isl).all() and np.isfinite(osl).all() and isl.min() >= 0 <= osl.min()):
        raise UserError(f"{name}: a length is negative or no number", field="trace")
    span_s = float(at_s.max() - at_s.min())
    if span_s <= 0 or isl.mean() <= 0 or osl.mean() <= 0:
        raise UserError(f"{name}: no time passes, or nothing is asked", field="trace")
    minutes = np.floor((at_s - at_s.min()) / WINDOW_S).astype(int)
    busiest = float(np.bincount(minutes).max()) / min(WINDOW_S, span_s)
    return Lengths(
        requests=len(found),
        span_s=span_s,
        isl=float(isl.mean()),
        isl_p50=float(np.quantile(isl, 0.5)),
        isl_p95=float(np.quantile(isl, 0.95)),
        prompt_cv=float(isl.std() / isl.mean()),
        osl=float(osl.mean()),
        osl_p50=float(np.quantile(osl, 0.5)),
        osl_p95=float(np.quantile(osl, 0.95)),
        rps=len(found) / span_s,
        peak_rps=busiest,
        prefix_hit_ratio=hit_ratio,
    )
