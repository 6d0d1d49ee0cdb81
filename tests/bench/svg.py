"""Draws the plots as SVG files: one hand-written file each, readable on light and dark pages."""

from __future__ import annotations

import math
import statistics
from xml.sax.saxutils import escape

from tests.bench.figure import Figure, Matrix, Strip

WIDTH = 760
LABEL = 250  # what the longest row label takes, in pixels
RIGHT = 110  # what the medians take
ROW = 30
TOP = 62
BOTTOM = 48
CELL = 34

# Both palettes of the page that shows the file; the first is what a viewer without dark mode sees.
STYLE = """
svg { --paper: #ffffff; --ink: #1f2328; --faint: #656d76; --line: #d0d7de; --bar: #b6d4fe;
  --dot: #0550ae; --goal: #9a3412; --good: #dafbe1; --bad: #ffdcd7; --plain: #eaeef2; }
@media (prefers-color-scheme: dark) { svg { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1;
  --line: #3d444d; --bar: #1b3a66; --dot: #79c0ff; --goal: #ffa657; --good: #12361f;
  --bad: #561c1a; --plain: #21262d; } }
text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.title { font-weight: 600; font-size: 15px; }
.small { font-size: 12px; fill: var(--faint); }
.goal { fill: var(--goal); font-size: 12px; }
"""


def draw(figure: Figure) -> str:
    """The plot of a figure, as the text of an SVG file."""
    if isinstance(figure.plot, Strip):
        return _strip(figure, figure.plot)
    return _matrix(figure, figure.plot)


def _page(figure: Figure, height: int, body: list[str], width: int = WIDTH) -> str:
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(figure.title)}</title>',
        f'<desc id="d">{escape(figure.how)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="var(--paper)"/>',
        _text(16, 26, figure.title, "title"),
    ]
    return "\n".join([*head, *body, "</svg>"]) + "\n"


def _strip(figure: Figure, plot: Strip) -> str:
    height = TOP + ROW * len(plot.rows) + BOTTOM
    bottom = height - BOTTOM
    shown = [v for _, values in plot.rows for v in values]
    ticks = axis_ticks(plot.low, max([*shown, plot.goal or plot.low], default=1.0))
    span = ticks[-1] - ticks[0]

    def x(value: float) -> float:
        part = min(max((value - ticks[0]) / span, 0.0), 1.0)
        return LABEL + part * (WIDTH - LABEL - RIGHT)

    body = []
    if any(len(values) > 1 for _, values in plot.rows):
        body.append(_text(WIDTH - 12, TOP - 7, "median", "small", "end"))
    for tick in ticks:
        body.append(_line(x(tick), TOP, x(tick), bottom, "--line"))
        body.append(_text(x(tick), bottom + 16, number(tick), "small", "middle"))
    axis = f"{plot.axis} ({plot.unit})" if plot.unit else plot.axis
    body.append(_text((LABEL + WIDTH - RIGHT) / 2, bottom + 36, axis, "small", "middle"))
    for index, (label, values) in enumerate(plot.rows):
        middle = TOP + ROW * index + ROW / 2
        body.append(_text(LABEL - 10, middle + 4, label, "", "end"))
        if not values:
            body.append(_text(LABEL + 6, middle + 4, "none", "small"))
            continue
        median = statistics.median(values)
        long = max(x(median) - LABEL, 0.0)
        body.append(
            f'<rect x="{LABEL}" y="{middle - 8:.1f}" width="{long:.1f}" height="16" '
            'fill="var(--bar)"/>'
        )
        if len(values) > 1:
            body += [
                f'<circle cx="{x(v):.1f}" cy="{middle:.1f}" r="3.5" fill="var(--dot)" '
                'fill-opacity="0.7"/>'
                for v in values
            ]
        shown_value = f"{number(median)} {plot.unit}".strip()
        body.append(_text(WIDTH - 12, middle + 4, shown_value, "small", "end"))
    if plot.goal is not None:
        body.append(
            _line(x(plot.goal), TOP - 4, x(plot.goal), bottom, "--goal", 'stroke-dasharray="5 3"')
        )
        body.append(_text(x(plot.goal), TOP - 7, plot.goal_label, "goal", "middle"))
    return _page(figure, height, body)


def _matrix(figure: Figure, plot: Matrix) -> str:
    wide = 150
    width = LABEL + wide * len(plot.columns) + 16
    height = TOP + 30 + CELL * len(plot.rows) + 16
    body = [
        _text(LABEL + wide * i + wide / 2, TOP + 16, name, "small", "middle")
        for i, name in enumerate(plot.columns)
    ]
    for row, (label, cells) in enumerate(plot.rows):
        y = TOP + 28 + CELL * row
        body.append(_text(LABEL - 10, y + CELL / 2 + 4, label, "", "end"))
        for column, (word, mood) in enumerate(cells):
            x = LABEL + wide * column
            body.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{wide - 4}" height="{CELL - 4}" rx="4" '
                f'fill="var(--{mood})"/>'
            )
            body.append(_text(x + wide / 2, y + CELL / 2 + 4, word, "", "middle"))
    return _page(figure, height, body, width)


def axis_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` or below to `high` or above, 4 to 9 of them."""
    span = high - low if high > low else abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= 7:
            step *= factor
            break
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(step * n, 12) for n in range(first, last + 1)]


def number(value: float) -> str:
    """A number as people write it: three or four digits that count, thousands set apart."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-12))
    text = f"{value:.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "") -> str:
    named = f' class="{style}"' if style else ""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}{where}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="var({colour})" {more}/>'
    )
