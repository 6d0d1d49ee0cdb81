"""The GPUs as amdgpu shows them in sysfs, which a container has too.

Unverified on a card: the files are those of the kernel's own documentation of amdgpu. Throttling
is in none of them as text (gpu_metrics is a table of bytes that changes with the driver), and a
read of xgmi_error would clear what it shows; the errors of XGMI are those that RAS counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from healthcheck.signs.model import LONGEST_WORD, MOST, Card

AMD = "0x1002"
# An idle card may show one percent for a moment.
BUSY_PERCENT = 2
_LINE_LIMIT = 4096
_COUNT = re.compile(r"^(ue|ce):\s*(\d{1,15})\s*$", re.MULTILINE)


class Cards:
    """Looks at the cards whose render nodes are here; errors count from the first look."""

    def __init__(self, sysfs: Path = Path("/sys"), devices: Path = Path("/dev")) -> None:
        self._sysfs = sysfs
        self._devices = devices
        self._busy_at: dict[str, float] = {}
        self._before: dict[str, dict[str, int]] = {}

    def look(self, at: float) -> tuple[Card, ...] | None:
        """The cards now; none without the driver's device, None if there is no card to be read."""
        if not (self._devices / "kfd").exists():
            return ()
        # A card in partitions may have several nodes.
        folders = dict.fromkeys(self._folders())
        return tuple(self._card(folder, at) for folder in folders)[:MOST] or None

    def _folders(self) -> Iterator[Path]:
        for node in sorted((self._devices / "dri").glob("renderD*")):
            folder = (self._sysfs / "class/drm" / node.name / "device").resolve()
            if _text(folder / "vendor").strip() == AMD:
                yield folder

    def _card(self, folder: Path, at: float) -> Card:
        name = folder.name[:LONGEST_WORD]  # the PCI address
        busy = _number(folder / "gpu_busy_percent")
        if busy is not None and busy >= BUSY_PERCENT:
            self._busy_at[name] = at
        counted = _errors(folder / "ras")
        before = self._before.setdefault(name, counted)
        # A reset of the card begins the counts anew.
        new = {key: max(n - before.get(key, 0), 0) for key, n in counted.items()}
        return Card(
            name,
            busy,
            self._busy_at.get(name),
            _number(folder / "mem_info_vram_used"),
            _number(folder / "mem_info_vram_total"),
            new.get("ue"),
            new.get("ce"),
            new.get("xgmi"),
        )


def _errors(folder: Path) -> dict[str, int]:
    """Errors that RAS counted over all blocks of a card, and all that XGMI had."""
    found: dict[str, int] = {}
    for file in sorted(folder.glob("*_err_count")):
        for kind, count in _COUNT.findall(_text(file)):
            found[kind] = found.get(kind, 0) + int(count)
            if file.name.startswith("xgmi"):
                found["xgmi"] = found.get("xgmi", 0) + int(count)
    return found


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


def _text(file: Path) -> str:
    """A file of sysfs, empty if the driver does not give it."""
    try:
        with file.open("rb") as opened:
            return opened.read(_LINE_LIMIT).decode("ascii", "replace")
    except OSError:
        return ""
