"""Says where a figure was measured and how busy the machine was meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Watch:
    """The load of the machine from `began` on."""

    began: float = field(default_factory=time.monotonic)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def said(self) -> str:
        """Day, machine, load and the seconds that passed, on one line."""
        took = time.monotonic() - self.began
        loads = f"load {self.load_before:.1f} before, {os.getloadavg()[0]:.1f} after"
        day = time.strftime("%Y-%m-%d")
        return f"{day}, {os.cpu_count()} cores ({cpu_model()}), {loads}, took {took:.0f} s"


def cpu_model() -> str:
    """The processor's name as the kernel prints it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
