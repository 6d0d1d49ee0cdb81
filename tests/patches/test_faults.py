"""The table of faults: held against the patches and the real trees, and asked as a plan asks it."""

import re
from pathlib import Path

import pytest

from healthcheck import symptoms
from patches import apply, faults, series
from patches.errors import FaultsError
from patches.faults import Fault
from tests.support.vllm_trees import SHA256, slim_copy, tree

ROOT = Path(__file__).resolve().parents[2]
LOADED = series.load()
TARGETS = [target.path for patch in LOADED.patches for target in patch.targets]
RELEASES = [version for version in SHA256 if version >= "0.26.0"]
OLD = {
    "draft-attribute", "draft-noise", "nan-argmax", "indexer-layout",
    "indexer-budget", "expert-clamp", "chat-encoding", "draft-rows",
}  # fmt: skip
HAVE = {
    "0.26.0": OLD,
    "0.27.0": OLD | {"page-clearing"},
    "0.27.1": OLD | {"page-clearing"},
    "0.28.0": {
        "adaptive-verification",
        "draft-noise",
        "indexer-layout",
        "indexer-budget",
        "expert-clamp",
    },
    "0.29.0": {"adaptive-verification", "indexer-layout", "indexer-budget", "expert-clamp"},
    "0.30.0": {"adaptive-verification", "indexer-layout", "indexer-budget"},
    "0.31.0": {"indexer-budget", "indexer-negative-zero"},
    "0.32.0": {"indexer-negative-zero"},
    "0.33.0": {"indexer-negative-zero"},
}
"""What each release answers wrongly, as read in its sources."""


def _keys(found: tuple[Fault, ...]) -> set[str]:
    return {fault.key for fault in found}


def test_each_patch_mends_one_fault_and_says_the_same_of_it() -> None:
    """Release and source of a fault stand in the header of its patch too, and no patch is left out."""
    table = {fault.patch: fault for fault in faults.load() if fault.patch}
    assert list(table) == [patch.name for patch in LOADED.patches]
    for patch in LOADED.patches:
        fault = table[patch.name]
        assert fault.right == patch.upstream_since
        header = (LOADED.folder / patch.name).read_text(encoding="utf-8").partition("\n---\n")[0]
        assert fault.source in header


@pytest.mark.parametrize("version", RELEASES)
def test_the_table_and_the_files_of_a_release_agree(version: str, tmp_path: Path) -> None:
    """What the table says of a release is what hashes and probes say of its real tree, but that the
    files of 0.26.0 have the code of a fault that it does not run."""
    root = slim_copy(version, tmp_path, TARGETS)
    statuses = apply.status(root, LOADED)
    unrun = {"page-clearing"} if version == "0.26.0" else set()
    assert _keys(faults.of(version)) == HAVE[version]
    assert _keys(faults.left(version, statuses)) == HAVE[version] | unrun
    if version in faults.fitting(LOADED):
        apply.apply(root, LOADED)
        assert faults.left(version, apply.status(root, LOADED)) == ()


def test_a_release_that_is_not_known_is_taken_for_wrong(tmp_path: Path) -> None:
    """Before the first release of the table the files decide alone, and none of them is right."""
    root = slim_copy("0.25.1", tmp_path, TARGETS)
    assert faults.of("0.25.1") == ()
    assert faults.left("0.25.1", apply.status(root, LOADED)) == tuple(
        fault for fault in faults.load() if fault.patch
    )


def test_a_mended_file_leaves_the_rest_wrong(tmp_path: Path) -> None:
    """A fault is gone with every file of its patch, not with the first of them."""
    root = slim_copy("0.27.1", tmp_path, TARGETS)
    apply.apply(root, LOADED)
    patch = next(patch for patch in LOADED.patches if len(patch.targets) > 1)
    path = root / patch.targets[0].path
    patched = path.read_bytes()
    path.write_bytes(patch.targets[0].diff.apply(patched, reverse=True))
    (left,) = faults.left("0.27.1", apply.status(root, LOADED))
    assert left.patch == patch.name


def _fault(**changes: str | int | None) -> Fault:
    given = {
        "key": "k",
        "symptom": "s",
        "since": "1.0.0",
        "source": "u",
        "asks": "anything",
        "effect": "warn",
    }
    return Fault(**(given | changes))  # type: ignore[arg-type]


def test_a_fault_without_a_patch_is_left_where_the_release_has_it() -> None:
    """The release decides; a tree that does not say its release is taken for one that has it."""
    fault = _fault(right="1.2.0")
    for version, expected in (
        ("0.9.0", ()),
        ("1.0.0", (fault,)),
        ("1.2.0rc1", (fault,)),
        ("1.2.0", ()),
    ):
        assert faults.left(version, [], [fault]) == expected, version
        assert faults.of(version, [fault]) == expected, version
    assert faults.left(None, [], [fault]) == (fault,)
    assert faults.left("9.9.9", [], [_fault()]) == (_fault(),)


@pytest.mark.parametrize(
    ("changes", "asked", "longest", "hit"),
    [
        ({}, set(), 1, True),
        ({"asks": "draft"}, set(), None, False),
        ({"asks": "draft"}, {"draft", "probabilistic"}, 1, True),
        ({"past_tokens": 2048}, set(), 2048, False),
        ({"past_tokens": 2048}, set(), 2049, True),
        ({"past_tokens": 2048}, set(), None, True),
        ({"past_tokens": 2048, "asks": "aiter-moe"}, {"draft"}, 4096, False),
    ],
)
def test_a_plan_is_hit_by_what_it_asks_for(
    changes: dict[str, str | int], asked: set[str], longest: int | None, hit: bool
) -> None:
    """Both what is asked for and the length have to be met; an unknown length is too long."""
    assert _fault(**changes).hits(asked, longest) is hit


def test_the_way_out_is_a_release_without_any() -> None:
    """The releases that the whole series fits, and the first in which every fault is right but for
    what is right in none: that is named, and is no way out for a plan that asks for it."""
    series_way = "vLLM 0.27.0 or 0.27.1 with the series"
    but = f"{series_way}, or vLLM 0.32.0 or later, but for gfx942"
    assert faults.way_out(LOADED) == faults.way_out(LOADED, asked={"draft"}) == but
    assert faults.way_out(LOADED, asked={"draft", "gfx942"}) == series_way
    assert faults.way_out(LOADED, [*faults.load(), _fault()]) == series_way
    right = [fault for fault in faults.load() if fault.right]
    assert faults.way_out(LOADED, right) == f"{series_way}, or vLLM 0.32.0 or later"


@pytest.mark.parametrize("version", RELEASES)
def test_a_negative_zero_is_kept_by_the_releases_that_have_the_fault(version: str) -> None:
    """The indexer's keys are stored in OCP whatever the card, and nothing of their readers minds the
    byte of its -0; before the flat readers, the layout is wrong already."""
    root = tree(version) / "vllm"
    writer = (root / "models/deepseek_v4/common/ops/fused_compress_quant_cache.py").read_text()
    kernel = writer.partition("def _fused_kv_compress_norm_rope_insert_indexer_attn(")[2]
    readers = (root / "v1/attention/ops/rocm_aiter_mla_sparse.py").read_text()
    is_kept = ".to(tl.float8e4nv)" in kernel and "0x80" not in kernel + readers
    is_flat = "def _indexer_k_is_c4a_block_flat" in readers
    assert (is_kept and is_flat) == ("indexer-negative-zero" in HAVE[version])


def test_what_the_series_leaves_of_a_release() -> None:
    """Where it fits, what has no patch; elsewhere all that the release has."""
    assert _keys(faults.with_series("0.27.1", LOADED)) == set()
    for version in ("0.26.0", "0.30.0", "0.32.0"):
        assert _keys(faults.with_series(version, LOADED)) == HAVE[version], version


def test_the_health_service_tells_of_faults_what_the_table_tells() -> None:
    """Where its page names the patch of a fault, it names the release that is right, too."""
    told = {
        number[1]: known.sources
        for known in symptoms.FAULTS
        if (number := re.search(r"patch (\d{4})", known.mend))
    }
    table = {(fault.patch or "")[:4]: fault.right for fault in faults.load()}
    assert told.keys() <= table.keys() and told
    for number, sources in told.items():
        assert f"{table[number]} on" in sources, number


def test_wrong_answers_without_a_word_refuse() -> None:
    """What may only be warned of: a rare case, a changed API, a slower draft."""
    assert {fault.key for fault in faults.load() if not fault.refuses} == {
        "indexer-budget", "chat-encoding", "draft-rows",
    }  # fmt: skip


GOOD = """[one]
symptom = "s"
since = "1.0.0"
source = "https://example.invalid/1"
asks = "draft"
effect = "warn"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[one]", "[one", "is not TOML: "),
        ("[one]", "two = 1\n[one]", "two: got 1; give a table"),
        ("asks", "wants", "one.wants: got 'draft'; no such key"),
        ('"warn"', '"tell"', "one.effect: got 'tell'; give one of refuse, warn"),
        ('"draft"', '"drafts"', "one.asks: got 'drafts'; give one of anything, draft, "),
        ('"s"', "1", "one.symptom: got 1; give a str"),
        (
            'symptom = "s"',
            'symptom = "s"\npast_tokens = "2k"',
            "one.past_tokens: got '2k'; give an int",
        ),
        ('symptom = "s"\n', "", "one.symptom: is missing; add it"),
    ],
)
def test_a_malformed_table_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """The file, the fault, the field and the value."""
    file = tmp_path / "faults.toml"
    file.write_text(GOOD)
    assert _keys(faults.load(file)) == {"one"}
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(FaultsError) as caught:
        faults.load(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_an_absent_table_is_named(tmp_path: Path) -> None:
    """A file that cannot be read is told with the reason."""
    with pytest.raises(
        FaultsError, match=r"none\.toml: cannot be read \(No such file or directory\)"
    ):
        faults.load(tmp_path / "none.toml")
