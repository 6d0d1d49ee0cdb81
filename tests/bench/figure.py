"""A figure: what was measured, as a table, a plot, goals and raw numbers, kept in one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

# Of results.json; another number: this code cannot read it.
SCHEMA = 1


class BenchError(Exception):
    """A figure cannot be made; the message is one line: what, what was seen, the fix."""


@dataclass(frozen=True)
class Strip:
    """A plot of rows: a label, a dot for every value, a bar up to their median.

    `unit` is written at the axis. `goal` is a line across all rows, with `goal_label` beside it.
    `low` is where the axis begins; a ratio near 1 is not drawn from 0.
    """

    axis: str
    unit: str
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    goal: float | None = None
    goal_label: str = ""
    low: float = 0.0
    kind: str = "strip"


@dataclass(frozen=True)
class Matrix:
    """A plot of judged cells: rows by columns, each a word and a mood (good, bad, plain)."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    kind: str = "matrix"


Plot = Strip | Matrix


@dataclass(frozen=True)
class Goal:
    """What was wanted, what was seen, and whether the one meets the other; None: not decided."""

    wanted: str
    seen: str
    met: bool | None


@dataclass(frozen=True)
class Figure:
    """One measurement, ready to be written. `machine` says where, when and under what load."""

    name: str
    title: str
    how: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plot: Plot
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    machine: str = ""


def stamped(one: Figure, machine: str) -> Figure:
    """The figure with the place and the load that it was measured under."""
    return replace(one, machine=machine)


def save(path: Path, figures: Mapping[str, Figure]) -> None:
    """Write every figure, sorted by name, so that a new run changes what it measured only."""
    data = {"schema": SCHEMA, "figures": {n: asdict(figures[n]) for n in sorted(figures)}}
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Figure]:
    """The figures of an earlier run, none if there is no such file. Raises BenchError."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise BenchError(f"{path}: schema is {data['schema']}; delete it and measure again")
        return {name: _figure(made) for name, made in data["figures"].items()}
    except (ValueError, KeyError, TypeError) as e:
        raise BenchError(f"{path}: is no result file ({e}); delete it and measure again") from e


def _figure(data: dict[str, Any]) -> Figure:
    tuples = {k: tuple(tuple(r) for r in data[k]) for k in ("rows",)}
    goals = tuple(Goal(**g) for g in data["goals"])
    plot = _plot(dict(data["plot"]))
    kept = {k: tuple(data[k]) for k in ("columns", "notes")}
    return Figure(**{**data, **tuples, **kept, "goals": goals, "plot": plot})


def _plot(data: dict[str, Any]) -> Plot:
    if data["kind"] == "strip":
        return Strip(**{**data, "rows": tuple((n, tuple(v)) for n, v in data["rows"])})
    rows = tuple((n, tuple((w, m) for w, m in cells)) for n, cells in data["rows"])
    return Matrix(**{**data, "columns": tuple(data["columns"]), "rows": rows})
