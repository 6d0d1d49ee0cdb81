"""Kernels that Triton compiles instead of launching, one record for each that differs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from patches.compile import figures
from patches.errors import on_one_line
from patches.loadcheck.card import Card


@dataclass
class Kernel:
    """One compiled kernel, or one that Triton refused: `error`, one line, and no figures.

    `launch` is what launched it, `files` those of the tree that the launch went through, the
    kernel's own among them; `profiles` those that came to the very same code. `code` is a hash of
    what was compiled, with its constants.
    """

    name: str
    launch: str
    files: list[str]
    profiles: list[str]
    code: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class Recorder:
    """Stands in Triton's launch of every kernel of the process."""

    def __init__(self, card: Card, root: Path) -> None:
        self.kernels: list[Kernel] = []
        self.launch = self.profile = ""
        self._card, self._root = card, root
        self._found: dict[tuple[str, str, str], Kernel] = {}

    def install(self) -> None:
        """Compile and record from here on."""
        function: Any = importlib.import_module("triton.runtime.jit").JITFunction
        original = function.run

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            del warmup
            try:
                compiled = original(kernel, *args, grid=grid, warmup=True, **options)
                taken = self._figures(compiled)
            except Exception as error:  # whatever compiling raises is the answer
                told = on_one_line(error)
                self._note(kernel, f"error {told}", {}, told[:600])
                return None
            self._note(kernel, compiled.hash, taken, None)
            return compiled

        function.run = run

    def _figures(self, compiled: Any) -> dict[str, Any]:
        metadata = compiled.metadata
        return asdict(
            figures.read(
                compiled.asm["amdgcn"], metadata.shared, metadata.num_warps, self._card.lds_bytes
            )
        )

    def _note(self, kernel: Any, code: str, taken: dict[str, Any], error: str | None) -> None:
        name = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
        files = sorted({kernel.fn.__code__.co_filename, *_callers()})
        seen = [
            str(Path(f).relative_to(self._root)) for f in files if f.startswith(f"{self._root}/")
        ]
        key = (self.launch, name, code)
        if key not in self._found:
            found = Kernel(name, self.launch, seen, [], code[:64], taken, error)
            self._found[key] = found
            self.kernels.append(found)
        if self.profile not in self._found[key].profiles:
            self._found[key].profiles.append(self.profile)


def _callers() -> Iterator[str]:
    """The files of the functions that are running."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back  # type: ignore[assignment]
