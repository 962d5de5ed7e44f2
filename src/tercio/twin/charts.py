"""Charts as SVG text, drawn by us: no script, no font, no request. Colours are CSS variables.

Every chart is 480 units wide, so that its text stays readable on a phone and two charts fit side
by side on a desk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

WIDTH: Final = 480.0
LEFT: Final = 52.0
RIGHT: Final = 10.0
TOP: Final = 10.0
BOTTOM: Final = 26.0
_SAFE: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;"))
_DASHES: Final = ("", "6 3", "2 3", "8 3 2 3")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart: its number (colour and dash) and its points."""

    number: int
    points: Sequence[tuple[float, float]]
    is_stepped: bool = False


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One rectangle in chart coordinates; `tone` is a colour class, `tip` its hover text."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    tip: str = ""
    strength: float = 1.0


def escape(text: str) -> str:
    """Return text that is safe in HTML and in quoted attributes."""
    for raw, safe in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ('"', "&quot;"),
        ("'", "&#39;"),
    ):
        text = text.replace(raw, safe)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    height: float = 210.0,
) -> str:
    """Return a chart of lines with a grid, ticks on both axes and nothing else."""
    x_at, y_at = _scale(x_range, LEFT, WIDTH - RIGHT), _scale(y_range, height - BOTTOM, TOP)
    parts = [_open(label, height), *_grid(y_ticks, y_at, y_text)]
    parts += _bottom(x_ticks, x_at, x_text, height - BOTTOM)
    for line in lines:
        path = _path(line, x_at, y_at)
        dash = _DASHES[line.number % len(_DASHES)]
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<path class="line c{line.number % 4}"{extra} d="{path}"/>')
    return "".join([*parts, "</svg>"])


def bar_chart(
    bars: Sequence[Bar],
    *,
    label: str,
    rows: Sequence[str],
    row_height: float,
    x_range: tuple[float, float],
    x_text: Callable[[float], str],
    x_ticks: Sequence[float],
) -> str:
    """Return rows of rectangles over time; `y` of a bar is in rows, from the top."""
    height = TOP + row_height * len(rows) + BOTTOM
    x_at = _scale(x_range, LEFT, WIDTH - RIGHT)
    bottom = height - BOTTOM
    parts = [_open(label, height)]
    parts.append(
        f'<rect class="field" x="{LEFT:g}" y="{TOP:g}" width="{WIDTH - RIGHT - LEFT:g}"'
        f' height="{bottom - TOP:.1f}"/>'
    )
    for bar in bars:
        x = max(x_at(bar.x), LEFT)
        width = min(x_at(bar.x + bar.width), WIDTH - RIGHT) - x
        if width <= 0:
            continue
        tip = f"<title>{escape(bar.tip)}</title>" if bar.tip else ""
        faint = f' fill-opacity="{bar.strength:.2f}"' if bar.strength < 1 else ""
        parts.append(
            f'<rect class="{bar.tone}"{faint} x="{x:.1f}" y="{TOP + bar.y * row_height:.1f}"'
            f' width="{max(width, 0.5):.1f}" height="{bar.height * row_height:.2f}">{tip}</rect>'
        )
    every = max(1, math.ceil(11 / row_height))
    for number, name in enumerate(rows):
        if number % every == 0:
            y = TOP + (number + 0.5) * row_height + 3.5
            parts.append(
                f'<text x="{LEFT - 5:g}" y="{y:.1f}" class="end">{escape(name[:8])}</text>'
            )
    parts += _bottom(x_ticks, x_at, x_text, bottom)
    return "".join([*parts, "</svg>"])


def nice_ticks(
    low: float, high: float, *, most: int = 5, units: Sequence[float] = ()
) -> list[float]:
    """Return round numbers in a range: multiples of 1, 2 or 5, or of one of `units`.

    >>> nice_ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    steps = [unit for unit in units if span / unit <= most]
    if steps:
        step = min(steps)
    else:
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next((m * power for m in (1, 2, 5) if span / (m * power) <= most), 10 * power)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + i) * step, 10) for i in range(count)]


def _scale(values: tuple[float, float], start: float, stop: float) -> Callable[[float], float]:
    low, high = values
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (stop - start)


def _open(label: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:.0f}" role="img" aria-label="{escape(label)}"'
        ' xmlns="http://www.w3.org/2000/svg">'
    )


def _grid(
    ticks: Sequence[float], y_at: Callable[[float], float], text: Callable[[float], str]
) -> list[str]:
    parts = []
    for tick in ticks:
        y = y_at(tick)
        parts.append(f'<path class="grid" d="M{LEFT:g} {y:.1f}H{WIDTH - RIGHT:g}"/>')
        parts.append(f'<text x="{LEFT - 6:g}" y="{y + 4:.1f}" class="end">{text(tick)}</text>')
    return parts


def _bottom(
    ticks: Sequence[float], x_at: Callable[[float], float], text: Callable[[float], str], y: float
) -> list[str]:
    parts = []
    for tick in ticks:
        x = x_at(tick)
        anchor = "middle" if LEFT + 14 < x < WIDTH - RIGHT - 14 else "near"
        side = "end" if anchor == "near" and x > WIDTH / 2 else anchor
        parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}v4"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 17:.1f}" class="{side}">{text(tick)}</text>')
    return parts


def _path(line: Line, x_at: Callable[[float], float], y_at: Callable[[float], float]) -> str:
    parts: list[str] = []
    for x, y in line.points:
        to_x, to_y = x_at(x), y_at(y)
        if not parts:
            parts.append(f"M{to_x:.1f} {to_y:.1f}")
        elif line.is_stepped:
            parts.append(f"H{to_x:.1f}V{to_y:.1f}")
        else:
            parts.append(f"L{to_x:.1f} {to_y:.1f}")
    return "".join(parts)
