"""Writes what the documents show: one SVG for each figure, and healthcheck/FIGURES.md."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench import svg
from tests.bench.figure import Figure

COMMAND = "make bench"
HEAD = f"""\
<!-- Written by `{COMMAND}` from figures/results.json; change tests/bench, not this file. -->
# Figures of the health service

For those who ask how soon a fault is seen, and at what cost: what `{COMMAND}` measured, as it came out: every figure is of one run on one machine, given below
it, and a ratio compares two things inside that run. Raw numbers: [figures/results.json]({{raw}}).
Nothing here was measured on an MI-series GPU; "real" is vLLM on the CPU (the rehearsal).
"""
MET = {True: "met", False: "**missed**", None: "not decided"}


def write(figures: Mapping[str, Figure], folder: Path, page: Path, order: tuple[str, ...]) -> None:
    """Write the plots into `folder` and the page; figures not in `order` come last."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        (folder / f"{name}.svg").write_text(svg.draw(figure), encoding="utf-8")
    page.write_text(render(figures, os.path.relpath(folder, page.parent), order), encoding="utf-8")


def render(figures: Mapping[str, Figure], plots: str, order: tuple[str, ...]) -> str:
    """The text of the page; `plots` is the folder of the plots as a link from it."""
    names = [n for n in order if n in figures] + sorted(set(figures) - set(order))
    sections = [_section(figures[name], plots) for name in names]
    return "\n".join([HEAD.format(raw=f"{plots}/results.json"), *sections])


def _section(figure: Figure, plots: str) -> str:
    parts = [
        f"## {figure.title}",
        "",
        figure.how,
        "",
        f"![{figure.title}]({plots}/{figure.name}.svg)",
        "",
    ]
    parts += [table(figure.columns, figure.rows), ""]
    if figure.goals:
        rows = [(g.wanted, g.seen, MET[g.met]) for g in figure.goals]
        parts += [table(("goal", "seen", ""), rows), ""]
    parts += [f"- {note}" for note in figure.notes]
    parts += [""] if figure.notes else []
    return "\n".join([*parts, f"*{figure.machine}*", ""])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; what would end a cell or a row is escaped."""
    lines = [_row(columns), "|" + "---|" * len(columns), *[_row(row) for row in rows]]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
