"""AITER's fault past 2 GiB: which release of vLLM meets it, by its sources, and with which AITER."""

from pathlib import Path

import pytest

from patches import apply, series
from patches.audit import aiter
from tests.support import vllm_trees

RELEASES = [version for version in vllm_trees.SHA256 if version >= "0.26.0"]
ASKS = {"decode on gfx942": (aiter.OP,)}
OWN = {"decode on gfx942": ("_own_kernel",)}
UNTOLD = {"decode on gfx942": (aiter.UNKNOWN,)}


@pytest.mark.parametrize("version", RELEASES)
def test_each_release_to_0_30_asks_aiter_for_the_scores_of_a_decode(version: str) -> None:
    """On both architectures; later ones read their pages by a kernel of their own."""
    found = aiter.readers(vllm_trees.tree(version))
    decodes = [ops for when, ops in found.items() if when.startswith("decode")]
    prefills = [ops for when, ops in found.items() if when.startswith("prefill")]
    assert len(decodes) == len(prefills) == 2
    assert all((ops == (aiter.OP,)) is (version < "0.31.0") for ops in decodes)
    assert not any(aiter.OP in ops for ops in prefills)
    assert aiter.UNKNOWN not in {op for ops in found.values() for op in ops}


def test_with_the_series_no_page_is_read_by_aiter(tmp_path: Path) -> None:
    """0004's kernel reads them, so that an AITER before 0.1.20 does no harm."""
    tree = vllm_trees.link_copy(vllm_trees.tree("0.27.1"), tmp_path / "tree")
    apply.apply(tree, series.load())
    found = aiter.readers(tree)
    assert found["decode on gfx942"] == found["decode on gfx950"]
    assert found["decode on gfx942"] == ("_flat_paged_mqa_logits_kernel",)
    assert aiter.is_met("0.1.19", found) is False
    assert aiter.sentence("0.1.19", found) == (
        "AITER 0.1.19: has 32-bit page offsets, not met: the indexer's pages are read by "
        "_cp_gather_indexer_quant_cache_kernel, _flat_paged_mqa_logits_kernel"
    )


@pytest.mark.parametrize(
    ("version", "read_by", "met"),
    [
        ("0.1.19", ASKS, True),
        ("0.1.20rc1", ASKS, True),
        ("0.1.20", ASKS, False),
        ("0.1.23.post1", ASKS, False),
        ("unknown", ASKS, None),
        ("0.1.19", OWN, False),
        ("unknown", OWN, False),
        ("0.1.19", UNTOLD, None),
        ("0.1.20", UNTOLD, False),
    ],
)
def test_the_fault_is_met_by_an_old_aiter_that_is_asked(
    version: str, read_by: dict[str, tuple[str, ...]], met: bool | None
) -> None:
    """What is not known, of either, is not taken for right."""
    assert aiter.is_met(version, read_by) is met
