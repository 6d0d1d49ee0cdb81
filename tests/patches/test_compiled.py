"""The compile proof with Triton's AMD backend: what the series changes, and all of the path."""

import dataclasses
import os
from pathlib import Path

import pytest

from deploy import recipe
from patches import series
from patches.compile import judge, overlay, path, proof, render
from patches.compile.ask import ask
from patches.compile.launches import ALL
from patches.loadcheck.card import CARDS
from patches.tree import find
from tests.support import vllm_trees

RELEASE = "0.27.1"
PAGE = series.FOLDER / "KERNELS.md"
AFRESH = f"python3 -m patches compile SITE_PACKAGES --format markdown > patches/{PAGE.name}"
OTHER = "vllm/models/common/ops/fused_qk_rmsnorm.py"
REFUSED = "vllm/models/deepseek_v4/attention.py"
SILENT = "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py"
ENDS = "vllm/model_executor/kernels/mhc/triton.py"


def cards(*names: str) -> tuple[proof.Card, ...]:
    """Every card of the recipe, or those of some profiles."""
    profiles = recipe.load().profiles
    chosen = [profiles[name] for name in names or profiles]
    used = {profile.gpu.arch for profile in chosen if profile.gpu is not None}
    return proof.cards(chosen, [arch for arch in CARDS if arch in used])


def page_rows(arch: str) -> dict[str, list[str]]:
    """The cells of the page's table of an architecture, but the last, by kernel."""
    section = PAGE.read_text().split(f"## {arch}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row[1:-1] for row in cells}


def test_what_the_series_changes_compiles_for_both_architectures() -> None:
    """With the shapes of a profile each; nothing spills, and the page of all kernels agrees."""
    asked = cards("mi300x", "mi355x")
    found = proof.prove(
        vllm_trees.tree(RELEASE), series.load(), asked, only_touched=True, compare=False
    )
    assert found.faults == ()
    for arch in CARDS:
        rows = {row.name: row for row in render.rows(found, arch)}
        assert set(found.touched) <= rows.keys()
        for name in found.touched:
            row = rows[name]
            assert (row.most["vgpr_spills"], row.most["sgpr_spills"]) == (0, 0), name
            # Other profiles may add variants that take the same.
            assert list(row.cells()[2:-1]) == page_rows(arch)[name][1:], f"{name}: {AFRESH}"


def broken(folder: Path, changes: dict[str, tuple[str, str]]) -> Path:
    """The tree with a text of each file replaced."""
    tree = find(vllm_trees.tree(RELEASE))
    contents = {}
    for name, (old, new) in changes.items():
        text = (tree.package.parent / name).read_text()
        assert old in text, name
        contents[name] = text.replace(old, new).encode()
    return overlay.lay(tree, contents, folder / "tree")


def test_what_triton_refuses_and_what_launches_nothing_is_seen(tmp_path: Path) -> None:
    """In a tree with a kernel that cannot be compiled, a wrapper that launches nothing and one that
    is called another way; what else is asked for is compiled."""
    changes = {
        REFUSED: ("offsets = tl.arange(0, PADDED_TOP_K)", "offsets = tl.no_such()"),
        SILENT: (
            "def _fused_inverse_rope_gptj(",
            "def _fused_inverse_rope_gptj(*_): ...\ndef _unused(",
        ),
        OTHER: ("def fused_q_kv_rmsnorm(", "def fused_q_kv_rmsnorm(new, *, "),
    }
    named = ("short_contexts", "inverse_rope", "norms", "compressed_slots")
    chosen = [launch for launch in ALL if launch.name in named]
    (card,) = cards("mi300x")
    answer = ask(broken(tmp_path, changes), card, chosen, tmp_path, os.environ)
    faults = judge.answered(card, chosen, answer)
    assert len(faults) == 3, faults
    assert faults[0].startswith("gfx942: norms (mi300x): TypeError: fused_q_kv_rmsnorm() ")
    assert faults[1].startswith(
        "gfx942: _fill_short_context_topk_indices (short_contexts): does not compile: "
    )
    assert "no_such" in faults[1]
    assert faults[2] == "gfx942: inverse_rope (mi300x): did not launch _inverse_rope_gptj_kernel"
    (compiled,) = {k.name for k in answer.kernels if k.error is None}
    assert compiled.endswith("._compressed_slot_mapping_kernel")


@pytest.mark.prove
def test_a_launch_that_ends_the_compiler_costs_no_other(tmp_path: Path) -> None:
    """An assertion of Triton's ends its process: the launch is named, and the rest compiled."""
    root = broken(tmp_path, {ENDS: ("x_flat = x.flatten(-2)", "__import__('os').abort()")})
    named = ("connections_head", "compressed_slots")
    chosen = [launch for launch in ALL if launch.name in named]
    (card,) = cards("mi300x")
    answer = ask(root, card, chosen, tmp_path, os.environ)
    (fault,) = judge.answered(card, chosen, answer)
    assert fault.startswith("gfx942: connections_head (mi300x): the process ended with -6: ")
    assert {k.launch for k in answer.kernels} == {"compressed_slots"}


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_every_kernel_of_the_path_compiles_and_the_page_says_what_it_takes() -> None:
    """Both architectures, every profile, and what the series makes of each: the page to the letter."""
    found = proof.prove(vllm_trees.tree(RELEASE), series.load(), cards())
    assert found.faults == ()
    assert render.as_markdown(found, RELEASE) == PAGE.read_text(), f"write it again: {AFRESH}"


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_the_other_release_that_the_series_fits_compiles_too() -> None:
    """0.27.0, on the first-class card."""
    chosen = cards("mi355x")
    other = next(release for release in path.RELEASES if release != RELEASE)
    found = proof.prove(vllm_trees.tree(other), series.load(), chosen, compare=False)
    # A kernel of gfx942 alone is of the path as well.
    assert found.faults == (
        "_fp8_mqa_logits_kernel: is of the path, and neither compiled nor left out",
    )
    assert dataclasses.asdict(found)["profiles"] == {"gfx950": ("mi355x",)}
