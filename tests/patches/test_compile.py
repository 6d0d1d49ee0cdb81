"""The compile proof without compiling: what it counts, what it refuses, what it asks for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import recipe
from patches import apply, series
from patches.compile import cli, figures, judge, kernels, overlay, path, proof, render
from patches.compile.ask import Answer, Card
from patches.compile.launch import launches
from patches.compile.launches import ALL
from patches.compile.recorder import Kernel
from patches.compile.shapes import Shapes
from patches.tree import find
from tests.support import vllm_trees

SHAPES = Shapes("one", 64, 16, 2048, 524_288, 256, 5)
CARD = Card("gfx942", 304, (SHAPES,))
FITS = {
    "vgprs": 96,
    "agprs": 0,
    "sgprs": 45,
    "vgpr_spills": 0,
    "sgpr_spills": 0,
    "lds": 8192,
    "warps": 4,
    "waves": 5.0,
}
COMPILED = Kernel("vllm.module._one_kernel", "scores", ["vllm/module.py"], ["one"], "a", FITS)


@launches("_one_kernel")
def scores(s: Shapes) -> None:
    """A launch that no process runs here."""


def said(*compiled: Kernel, stopped: tuple[dict[str, str], ...] = ()) -> Answer:
    """What a card's process answers."""
    return Answer({"triton": "3"}, compiled, stopped)


def test_a_card_that_compiled_what_its_launches_name_has_no_fault() -> None:
    """One kernel named, one compiled."""
    assert judge.answered(CARD, [scores], said(COMPILED)) == []


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (said(), "gfx942: scores (one): did not launch _one_kernel"),
        (
            said(COMPILED, replace(COMPILED, name="vllm.module._other_kernel")),
            "gfx942: scores (one): launched _other_kernel as well",
        ),
        (
            said(replace(COMPILED, profiles=["two"])),
            "gfx942: scores (one): did not launch _one_kernel",
        ),
        (
            said(replace(COMPILED, figures={}, error="CompilationError: no such op")),
            "gfx942: _one_kernel (scores): does not compile: CompilationError: no such op",
        ),
        (
            said(replace(COMPILED, figures={**FITS, "lds": 65_537})),
            "gfx942: _one_kernel (scores): takes 65537 bytes of LDS, the card has 65536",
        ),
        (
            said(stopped=({"launch": "scores", "profile": "one", "why": "TypeError: no"},)),
            "gfx942: scores (one): TypeError: no",
        ),
        (
            Answer({}, (), (), "the process ended with 1: no"),
            "gfx942: the process ended with 1: no",
        ),
    ],
    ids=["nothing", "more", "another profile", "refused", "too large", "stopped", "died"],
)
def test_what_is_not_compiled_or_does_not_fit_is_a_fault(answer: Answer, fault: str) -> None:
    """Each in one line; a path that launched nothing is among them."""
    assert judge.answered(CARD, [scores], answer) == [fault]


def test_the_lds_of_each_architecture_is_its_own() -> None:
    """160 KiB fit gfx950 and not gfx942."""
    large = replace(COMPILED, figures={**FITS, "lds": 160 << 10})
    assert judge.unfit("gfx950", large) is None
    assert judge.unfit("gfx942", large) is not None
    assert judge.unfit("gfx950", replace(large, figures={**FITS, "lds": (160 << 10) + 1}))


def test_what_the_series_changes_must_be_compiled_on_every_architecture() -> None:
    """A kernel that one architecture lacks, or that did not compile there, is named with it."""
    refused = replace(COMPILED, error="CompilationError: no")
    compiled = {"gfx942": [COMPILED], "gfx950": [refused]}
    assert judge.met(compiled, {"_one_kernel"}, None) == [
        "gfx950: _one_kernel: the series changes it, and it was not compiled"
    ]


def test_a_kernel_of_the_path_is_compiled_or_left_out_by_name() -> None:
    """One that is neither is a fault, and so is a name that stands for nothing any more."""
    of_path = {"_one_kernel", "_new_kernel", *list(path.LEFT_OUT)[1:]}
    gone = next(iter(path.LEFT_OUT))
    assert judge.met({"gfx942": [COMPILED]}, set(), of_path) == [
        "_new_kernel: is of the path, and neither compiled nor left out",
        f"{gone}: is left out, and not of the path",
    ]


@pytest.mark.parametrize("release", path.RELEASES)
def test_every_kernel_of_the_path_is_launched_or_left_out(release: str) -> None:
    """By the sources: the launches name each, and name none that is not there."""
    tree = find(vllm_trees.tree(release))
    changed = apply.contents(tree.package.parent, series.load())[1]
    of_path = kernels.of(path.sources(tree) | changed)
    named = {name for launch in ALL for name in launch.kernels}
    assert of_path - named == path.LEFT_OUT.keys()
    assert named <= of_path
    assert all(launch.kernels for launch in ALL)


def test_the_kernels_that_the_series_changes_are_found_with_their_helpers() -> None:
    """A changed kernel, a new one, and one whose helper changed; not a helper, not the same."""
    head = "import triton\n@triton.jit\ndef "
    helper = f"{head}_help(x): return x\n"
    user = f"{head}_kernel(x): return _help(x)\n"
    before = {"a.py": f"{helper}{user}{head}_same(x): return x\n{head}_own(x): return 1\n".encode()}
    after = before["a.py"].replace(b"_help(x): return x", b"_help(x): return -x")
    after = after.replace(b"return 1", b"return 2") + f"{head}_new(x): return 0\n".encode()
    assert kernels.touched(before, {"a.py": after}) == {"_kernel", "_own", "_new"}
    assert kernels.touched(before, before) == set()
    assert kernels.of(before) == {"_kernel", "_same", "_own"}


def test_the_series_changes_the_kernels_that_it_says(tmp_path: Path) -> None:
    """0003, 0004 and 0008 reach kernels, and only launches of theirs are asked for first."""
    root = vllm_trees.tree("0.27.1")
    after = apply.contents(root, series.load())[1]
    before = {name: (root / name).read_bytes() for name in after}
    assert kernels.touched(before, after) == {
        "_cp_gather_indexer_quant_cache_kernel",
        "_flat_paged_mqa_logits_kernel",
        "_insert_resampled_kernel",
        "_prepare_dflash_inputs_kernel",
        "_rejection_kernel",
    }


def test_waves_are_what_registers_and_lds_leave() -> None:
    """By registers as LLVM counts them for gfx942; by LDS, a part of a wave where it is scarce."""
    as_llvm = {(24, 26): 8, (60, 40): 8, (68, 62): 7, (41, 89): 7, (30, 101): 6, (130, 43): 3}
    assert {taken: figures.by_registers(*taken) for taken in as_llvm} == as_llvm
    assert figures.by_registers(512, 40) == 1
    assert figures.by_lds(0, 4, 64 << 10) == 8
    assert figures.by_lds(32 << 10, 4, 64 << 10) == 2
    assert figures.by_lds(40 << 10, 4, 64 << 10) == 1
    assert figures.by_lds(64 << 10, 2, 64 << 10) == 0.5


def test_figures_are_read_or_missed_out_loud() -> None:
    """LDS is what the launch asks for or the code holds; a count that is not there is no zero."""
    names = ("agpr_count", "group_segment_fixed_size", "sgpr_count", "sgpr_spill_count")
    names += ("vgpr_count", "vgpr_spill_count")
    text = "\n".join(f"  - .{name}: {at}" for at, name in enumerate(names, 1))
    read = figures.read(text, 4096, 4, 64 << 10)
    assert (read.agprs, read.sgprs, read.sgpr_spills, read.vgprs, read.vgpr_spills) == (
        1,
        3,
        4,
        5,
        6,
    )
    assert (read.lds, figures.read(text, 0, 4, 64 << 10).lds) == (4096, 2)
    with pytest.raises(figures.FiguresError, match=r"^\.vgpr_spill_count: is not in"):
        figures.read(text.replace("vgpr_spill_count", "other"), 0, 4, 64 << 10)


def test_a_laid_tree_has_the_changed_files_and_leaves_the_other_alone(tmp_path: Path) -> None:
    """Links around what differs, the release without what a CPU build adds; nothing written through."""
    source = tmp_path / "source"
    (source / "vllm" / "a" / "b").mkdir(parents=True)
    for name in ("__init__.py", "a/changed.py", "a/same.py", "a/b/below.py"):
        (source / "vllm" / name).write_text("old")
    (source / "vllm-0.27.1+cpu.dist-info").mkdir()
    contents = {"vllm/a/changed.py": b"new"}
    laid = overlay.lay(find(source), contents, tmp_path / "laid")
    assert (laid / "vllm" / "a" / "changed.py").read_text() == "new"
    assert (source / "vllm" / "a" / "changed.py").read_text() == "old"
    assert (laid / "vllm" / "a" / "b" / "below.py").read_text() == "old"
    assert (laid / "vllm" / "a" / "b").is_symlink()
    assert find(laid).version == "0.27.1"


def test_the_path_of_a_laid_tree_is_read_through_its_links(tmp_path: Path) -> None:
    """Its kernels are those of the tree that it is laid over, whatever folder is a link."""
    tree = find(vllm_trees.tree("0.27.1"))
    changed = "vllm/v1/worker/gpu/spec_decode/dflash/speculator.py"
    contents = {changed: tree.path(changed).read_bytes()}
    laid = find(overlay.lay(tree, contents, tmp_path / "laid"))
    assert path.sources(laid) == path.sources(tree)


def test_a_card_is_asked_for_every_profile_that_runs_on_it() -> None:
    """By architecture and compute units, in the order asked for; with each plan's shapes."""
    profiles = recipe.load().profiles.values()
    cards = proof.cards(profiles, ("gfx950", "gfx942"))
    asked = {(c.arch, c.compute_units): [s.profile for s in c.shapes] for c in cards}
    assert asked == {
        ("gfx950", 256): ["mi355x", "mi350x"],
        ("gfx942", 304): ["mi325x", "mi300x", "mi300x-8"],
        ("gfx942", 80): ["mi308x"],
    }
    assert cards[0].shapes[0] == Shapes("mi355x", 16, 512, 8192, 393_216, 256, 5)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--profile", "mi355x", "--arch", "gfx942"],
            "no profile that is asked for runs on gfx942",
        ),
        (["--profile", "rehearsal"], "no profile that is asked for runs on any card"),
        (["--profile", "no-such"], "profile: got 'no-such'; it is one of "),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing was compiled."""
    assert cli.main([str(vllm_trees.tree("0.27.1")), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert told in line


def test_a_release_whose_path_is_not_known_is_not_proven(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its kernels are others: exit code 1, in one line."""
    assert cli.main([str(vllm_trees.tree("0.32.0"))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "vLLM 0.32.0: the kernels that it launches are known of 0.27.0 and 0.27.1 only" in line


def made(faults: tuple[str, ...] = (), before: tuple[Kernel, ...] = ()) -> proof.Proof:
    """A proof of one kernel on one architecture."""
    return proof.Proof(
        "vllm",
        {"triton": "3.9.0"},
        {"gfx942": ("one",)},
        {"gfx942": (COMPILED,)},
        {"gfx942": before} if before else {},
        ("_one_kernel",),
        faults,
    )


def test_the_table_says_what_the_series_makes_of_a_kernel() -> None:
    """New, other figures, the same ones; and nothing where it was not compared."""
    other = replace(COMPILED, figures={**FITS, "vgprs": 90, "waves": 5.0})
    (row,) = render.rows(made(before=(other,)), "gfx942")
    assert row.series == "before: VGPRs 90"
    (row,) = render.rows(made(before=(COMPILED,)), "gfx942")
    assert row.series == "changed, takes the same"
    (row,) = render.rows(made(before=(replace(COMPILED, name="vllm.module._old"),)), "gfx942")
    assert row.series == "new"
    (row,) = render.rows(made(), "gfx942")
    assert row.series == ""


def test_the_table_of_the_worst_variant() -> None:
    """The most registers and spills and the fewest waves of all that a kernel is compiled to."""
    worse = replace(
        COMPILED, code="b", figures={**FITS, "vgprs": 90, "sgpr_spills": 3, "waves": 2.0}
    )
    found = replace(made(), kernels={"gfx942": (COMPILED, worse)})
    (row,) = render.rows(found, "gfx942")
    assert row.cells() == ("_one_kernel", "2", "96", "0", "45", "8192", "0/3", "2", "")


def test_text_and_data_say_what_is_not_covered_and_what_speaks_against() -> None:
    """With every result, so that nobody reads more into it."""
    text, data = render.as_text(made(("gfx942: no",))), render.as_data(made(("gfx942: no",)))
    for what in path.NOT_COVERED:
        assert what in text
    assert data["not_covered"] == list(path.NOT_COVERED)
    assert text.splitlines()[-1] == "fault: gfx942: no"
    assert data["faults"] == ["gfx942: no"]
    assert json.loads(json.dumps(data)) == data
