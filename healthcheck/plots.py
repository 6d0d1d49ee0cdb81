"""Columns with whiskers as SVG that stands in an HTML page and takes its colours from there."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# In units of about a pixel: a plot as wide as a phone, so that its letters stay letters there.
WIDTH, HEIGHT = 340, 230
#: The plot's own look; the page gives --bar, --ink, --mark and --none.
STYLE = """
.plot{width:100%;height:auto;max-width:34rem}
.plot text{font:11px system-ui,sans-serif;fill:var(--ink)}.plot .title,.plot .value{font-weight:600}
.plot .mid{text-anchor:middle}.plot .end{text-anchor:end;fill:var(--none)}
.plot .bar{fill:var(--bar)}.plot .grid{stroke:#8883}
.plot .whisker{stroke:var(--ink);stroke-width:1.5;fill:none}
.plot .mark{stroke:var(--mark);stroke-width:3;stroke-dasharray:6 3;fill:none}
figure{margin:0}figcaption{font-size:.85rem;color:var(--none)}
"""
WHISKERS = "whiskers: Wilson bounds, each one-sided 99 %"
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 22, 54
_TICKS = 4


@dataclass(frozen=True)
class Column:
    """A value over its label, with the ends of its whisker and a mark to stand beside; `marked`
    says what the mark is."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    marked: str = "reference"


def columns(
    title: str,
    x_title: str,
    given: Sequence[Column],
    shown: Callable[[float], str],
    top: float | None = None,
) -> str:
    """The plot; `shown` writes a value, `top` is the end of the axis (None: what is needed)."""
    highest = max((max(c.value, c.high or 0, c.mark or 0) for c in given), default=0.0)
    step = _step(top or highest or 1.0)
    end = top or step * max(math.ceil(highest / step - 1e-9), 1)
    words = "; ".join(f"{c.label}: {shown(c.value)}" for c in given)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(f"{title}. {words}")}">',
        f'<text class="title" x="{_LEFT}" y="12">{html.escape(title)}</text>',
        *_axis(end, step, shown),
    ]
    room = (WIDTH - _LEFT - _RIGHT) / max(len(given), 1)
    for i, column in enumerate(given):
        parts += _column(column, _LEFT + room * i, room, end, shown)
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="mid" x="{middle:.0f}" y="{HEIGHT - 6}">{html.escape(x_title)}</text>'
    )
    return "".join([*parts, "</svg>"])


def by_position(
    title: str,
    rates: Sequence[float],
    intervals: Sequence[tuple[float, float]],
    marks: Sequence[float | None],
    marked: str = "reference",
) -> str:
    """The plot of acceptance per draft, a column for each draft position; WHISKERS captions it."""
    given = [
        Column(str(at), rate, low, high, mark, marked)
        for at, (rate, (low, high), mark) in enumerate(zip(rates, intervals, marks, strict=True))
    ]
    return columns(title, "draft position", given, lambda rate: f"{rate:.0%}", 1.0)


def _axis(end: float, step: float, shown: Callable[[float], str]) -> Iterator[str]:
    for i in range(round(end / step) + 1):
        y = _y(step * i, end)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        label = html.escape(shown(step * i))
        yield f'<text class="end" x="{_LEFT - 5}" y="{y + 4:.1f}">{label}</text>'


def _column(
    column: Column, left: float, room: float, end: float, shown: Callable[[float], str]
) -> Iterator[str]:
    middle, width = left + room / 2, min(room * 0.55, 46)
    y = _y(column.value, end)
    told = html.escape(f"{column.label}: {shown(column.value)}")
    yield (
        f'<rect class="bar" x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{max(_y(0, end) - y, 0):.1f}"><title>{told}</title></rect>'
    )
    if column.low is not None and column.high is not None:
        low, high = _y(column.low, end), _y(column.high, end)
        cap = min(width / 4, 6)
        yield (
            f'<path class="whisker" d="M{middle:.1f} {low:.1f}V{high:.1f}'
            f"M{middle - cap:.1f} {low:.1f}h{2 * cap:.1f}"
            f'M{middle - cap:.1f} {high:.1f}h{2 * cap:.1f}"/>'
        )
    if column.mark is not None:
        at, reach = _y(column.mark, end), width / 2 + 8
        yield (
            f'<path class="mark" d="M{middle - reach:.1f} {at:.1f}h{2 * reach:.1f}">'
            f"<title>{html.escape(f'{column.marked}: {shown(column.mark)}')}</title></path>"
        )
    # Above a column its value would be taken for the whisker's end.
    for word, down, kind in ((column.label, 15, "mid"), (shown(column.value), 30, "mid value")):
        y = HEIGHT - _BOTTOM + down
        yield f'<text class="{kind}" x="{middle:.1f}" y="{y}">{html.escape(word)}</text>'


def _y(value: float, end: float) -> float:
    share = min(max(value / end, 0.0), 1.0)
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM - 8)


def _step(highest: float) -> float:
    """A step of 1, 2, 2.5 or 5 times a power of ten that gives at most the wanted ticks."""
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough * (1 - 1e-9))
