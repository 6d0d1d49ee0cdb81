"""AITER's fault past 2 GiB, and whether a tree's sparse indexer still meets it.

AITER before 0.1.20 scores the indexer's pages with offsets of 32 bits: what lies past 2 GiB of the
cache scores zero (aiter PR 4774). Patch 0004, as vLLM from 0.31.0 on, scores a decode by a Triton
kernel of its own. Whether AITER's is asked is read from the tree, not taken from a version.
"""

from collections.abc import Mapping
from pathlib import Path

from deploy.versions import is_at_least
from patches.audit.layouts import CACHES, LayoutFinder
from patches.audit.modules import ModuleIndex
from patches.audit.registry import Registry
from patches.audit.tree import open_tree

RIGHT = "0.1.20"
SOURCE = "https://github.com/ROCm/aiter/pull/4774"
OP = "deepgemm_fp8_paged_mqa_logits"
#: What stands for a version, or a reader, that cannot be told.
UNKNOWN = "unknown"


def readers(root: Path) -> dict[str, tuple[str, ...]]:
    """What reads the indexer's pages in the tree at `root`, by phase and card: kernels and ops.

    ("unknown",) where the sources do not tell. Raises what `open_tree` raises.
    """
    finder = LayoutFinder(Registry(ModuleIndex(open_tree(root))))
    (cache,) = (cache for cache in CACHES if OP in cache.foreign)
    return {when: ops or (UNKNOWN,) for when, ops in finder.readers(cache).items()}


def is_met(version: str, read_by: Mapping[str, tuple[str, ...]]) -> bool | None:
    """Whether a server with this AITER and these readers meets the fault; None: cannot be told."""
    ops = {op for found in read_by.values() for op in found}
    if OP in ops:
        return None if version == UNKNOWN else not is_at_least(version, RIGHT)
    return None if UNKNOWN in ops and not is_right(version) else False


def is_right(version: str) -> bool:
    """Whether an AITER is known to be without the fault."""
    return version != UNKNOWN and is_at_least(version, RIGHT)


def sentence(version: str, read_by: Mapping[str, tuple[str, ...]]) -> str:
    """One line for a reader: the version, whether it has the fault, and who reads the pages."""
    ops = ", ".join(dict.fromkeys(op for found in read_by.values() for op in found))
    if is_right(version):
        return f"AITER {version}: right past 2 GiB of cache; the indexer's pages are read by {ops}"
    has = "may have" if version == UNKNOWN else "has"
    met = {True: "met", False: "not met", None: "met as far as is known"}[is_met(version, read_by)]
    return (
        f"AITER {version}: {has} 32-bit page offsets, {met}: the indexer's pages are read by {ops}"
    )
