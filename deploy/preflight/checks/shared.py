"""What several checks share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from deploy.plan.memory import GIB
from deploy.preflight.facts.gpus import Gpu, Gpus
from deploy.preflight.findings import Finding, Unknown
from deploy.recipe import Gpu as Card

# 288 GiB cards show 287.7 to 288.0; the nearest other size is a quarter away.
MEMORY_TOLERANCE = 0.05


def is_memory(seen: int, card: Card) -> bool:
    """Whether bytes seen are the card's, whose data sheet counts in 2^30."""
    return abs(seen / GIB - card.memory_gb) <= MEMORY_TOLERANCE * card.memory_gb


def is_partition(gpu: Gpu, card: Card) -> bool:
    """Whether a GPU is a part of such a card: the mode says so, or the units divide evenly."""
    if isinstance(gpu.partition, str):
        return gpu.partition != "SPX"
    units = gpu.compute_units
    is_one_die = gpu.dies == 1
    return is_one_die and isinstance(units, int) and units > 0 and card.compute_units % units == 0


def read_or_unknown(gpus: Gpus | Unknown, check: str) -> Gpus | Finding:
    """The topology, or the finding that there is none to judge."""
    if isinstance(gpus, Unknown):
        return Finding(check, "unknown", gpus.reason)
    if not gpus.found:
        seen = gpus.unreadable[0] if gpus.unreadable else "no GPU in the driver's topology"
        return Finding(check, "unknown", seen)
    return gpus


def all_known(check: str, gpus: Gpus, values: Iterable[object], seen: str) -> Finding:
    """OK when each GPU's value is known, unknown with the first reason otherwise."""
    for value in values:
        if isinstance(value, Unknown):
            return Finding(check, "unknown", value.reason)
    if gpus.unreadable:
        return Finding(check, "unknown", f"{gpus.unreadable[0]}: makes no sense")
    return Finding(check, "ok", seen)


def told(value: object, show: Callable[..., str]) -> str:
    """A fact in words, or a question mark."""
    return "?" if isinstance(value, Unknown) else show(value)


def size_text(size: float) -> str:
    """Bytes in words."""
    return "unlimited" if math.isinf(size) else f"{size / (1 << 20):.0f} MiB"
