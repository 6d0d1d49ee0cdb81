"""One launch: vLLM's own code, called as a profile's path calls it, and the kernels it launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from patches.compile.shapes import Shapes

Run = Callable[[Shapes], None]


@dataclass(frozen=True)
class Launch:
    """`kernels`: the names of all that it launches, no more and no less, at least one.

    `archs`: the architectures whose path has it. `series`: it is there by a patch of the series.
    """

    name: str
    run: Run
    kernels: tuple[str, ...]
    archs: tuple[str, ...]
    series: bool


def launches(
    *kernels: str, archs: tuple[str, ...] = ("gfx942", "gfx950"), series: bool = False
) -> Callable[[Run], Launch]:
    """Make a `Launch` of a function, which is called with the shapes for what it launches."""

    def made(run: Run) -> Launch:
        return Launch(run.__name__, run, kernels, archs, series)

    return made


def of(module: Any) -> tuple[Launch, ...]:
    """Every launch of a module, in its order."""
    return tuple(value for value in vars(module).values() if isinstance(value, Launch))
