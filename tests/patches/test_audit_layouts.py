"""One cache, two sides: whether the audit reads off the sources how each lays it out."""

import re
import textwrap
from pathlib import Path

import pytest

from patches.audit.audit import Report, Scope, audit
from patches.audit.gap import Gap, Severity
from patches.audit.layouts import LayoutFinder, Place, SharedCache
from patches.audit.modules import ModuleIndex
from patches.audit.registry import Registry
from patches.audit.tree import open_tree
from tests.support import audit_trees, vllm_trees

ARCH = "DSparkDraftModel"
WRITER_FILE = "vllm/models/deepseek_v4/common/ops/fused_compress_quant_cache.py"
READER_FILE = "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py"
WRITER = "_fused_kv_compress_norm_rope_insert_indexer_attn"

ROWS = """
page = slot // PAGE
tl.store(cache + page * stride + slot % PAGE * DIM + lane, value)
"""
TILES = """
row = slot % PAGE
tile = row // TILE * TILE * DIM + row % TILE * 16
tl.store(cache + slot // PAGE * stride + tile + lane, value)
"""
READS_ROWS = ROWS.replace("tl.store(", "value = tl.load(").replace(", value)", ")")
READS_TILES = TILES.replace("tl.store(", "value = tl.load(").replace(", value)", ")")
KERNELS = """
from vllm.triton_utils import tl, triton

@triton.jit
def tiled_offset(row, TILE):
    return row // TILE * TILE * 8 + row % TILE * 16

@triton.jit
def write(cache, slots, value, stride, PAGE, TILE, DIM):
    slot = tl.load(slots + tl.program_id(0))
    lane = tl.arange(0, DIM)
{writes}

@triton.jit
def read(cache, slots, out, stride, PAGE, TILE, DIM, LAYOUT=None, FLAT=False):
    slot = tl.load(slots + tl.program_id(0))
    lane = tl.arange(0, DIM)
{reads}
    tl.store(out + lane, value)
"""
HOST = """
from vllm.models.tiny.amd.kernels import read
import outside

ON_NEW = outside.probe()

def flat(ratio):
    return ratio == 4

def gather(pages, layout=None, is_flat=False):
    pages = pages.view(pages.shape[0], -1)
    page_size = pages.size(1)
    if layout is None:
        layout = "ROWS" if is_flat or page_size == 1 else "TILES"
    args = (pages[:, :8], 0, 0)
    read[(1,)](*args, pages.stride(0), page_size, 16, 8, LAYOUT=layout)

def attend(cache, queries, ratio=1):
{attend}
"""
PAIR = SharedCache(
    name="keys",
    package="vllm.models.tiny",
    platform="amd",
    writer=Place("vllm/models/tiny/amd/kernels.py", "write", "cache"),
    reader=Place("vllm/tiny_host.py", "attend", "cache"),
    phases={"prefill": {"prefilling": True}, "decode": {"prefilling": False}},
    cards={"old": {"ON_NEW": False}, "new": {"ON_NEW": True}},
    known={"ratio": 4, "page_size": 64},
    foreign={"scores_of_pages": "Shuffled"},
)
DRAFT = "from .kernels import write\n" + audit_trees.model()
BY_LAYOUT = f"""
if LAYOUT == "TILES":
{textwrap.indent(READS_TILES, "    ")}
else:
{textwrap.indent(READS_ROWS, "    ")}
"""


def tree(root: Path, attend: str, reads: str = BY_LAYOUT, writes: str = ROWS) -> Path:
    """Write a tree whose cache is written by `writes` and read when `attend` runs."""
    audit_trees.tree(root, propose="self.model.model", amd=DRAFT)
    kernels = KERNELS.format(
        writes=textwrap.indent(writes.strip(), "    "), reads=textwrap.indent(reads.strip(), "    ")
    )
    host = HOST.format(attend=textwrap.indent(textwrap.dedent(attend).strip(), "    "))
    audit_trees.write(root, PAIR.writer.path, kernels)
    audit_trees.write(root, PAIR.reader.path, host)
    return root


def found(root: Path) -> list[Gap]:
    """What is said of the small tree's cache."""
    registry = Registry(ModuleIndex(open_tree(root)))
    (entry,) = registry.drafts.values()
    return list(LayoutFinder(registry, (PAIR,)).gaps(entry))


def said(root: Path) -> list[str]:
    """The reading function and the condition of each gap of the small tree's cache."""
    gaps = found(root)
    assert {gap.severity for gap in gaps} <= {Severity.WRONG_ANSWERS}, gaps
    return [f"{gap.reader}: {gap.condition}" for gap in gaps]


BOTH = [
    "gather: the request is in prefill on old or new",
    "gather: the request is in decode on old or new",
]


@pytest.mark.parametrize(
    ("reads", "is_tiled"),
    [
        (READS_ROWS, False),
        (READS_TILES, True),
        ("value = tl.load(cache + slot * DIM + lane)", False),
        ("row = slot % PAGE\nvalue = tl.load(cache + tiled_offset(row, TILE) + lane)", True),
        ("value = tl.load(cache + slot % PAGE * DIM + lane[None, :] * (DIM // 4))", False),
        ("for row in tl.range(0, PAGE):\n    value = tl.load(cache + row * DIM + lane)", False),
        ("at = slot % PAGE\nat += lane // 16 * 256\nvalue = tl.load(cache + at)", True),
        ("value = tl.load((cache + slot % PAGE // 16 * DIM).to(tl.pointer_type(tl.int8)))", True),
        ("wide = slot // TILE % 16\nvalue = tl.load(cache + slot % PAGE)", False),
        ("at = tl.load(slots + slot // 7)\nvalue = tl.load(cache + at * DIM + slot % PAGE)", False),
    ],
    ids=["rows", "tiles", "no page", "helper", "parameters divided", "loop", "added to", "cast",
         "not in an address", "looked up"],
)  # fmt: skip
def test_the_layout_of_a_kernel_is_read_off_its_addresses(
    tmp_path: Path, reads: str, is_tiled: bool
) -> None:
    """Positions divided by the page only are rows; divided again on the way to an address, tiles."""
    root = tree(tmp_path / "tree", "gather(cache)", reads)
    assert said(root) == (BOTH if is_tiled else [])


@pytest.mark.parametrize(
    ("attend", "expected"),
    [
        ("gather(cache)", BOTH),
        ("gather(cache, 'ROWS')", []),
        ("gather(cache, is_flat=flat(ratio))", []),
        ("gather(cache, is_flat=ratio > 4)", BOTH),
        ("page_size = cache.size(1)\ngather(cache, 'ROWS' if page_size > 1 else 'TILES')", []),
        ("layout = 'ROWS'\nif queries is None:\n    layout = 'TILES'\n    return\ngather(cache, layout)",
         []),
        ("gather(cache, 'ROWS' if queries.any() else None)", BOTH),
        ("gather(cache, is_flat=getattr(queries.layer, 'ratio', 1) > 1)", []),
        ("if prefilling:\n    gather(cache)\nelse:\n    gather(cache, 'ROWS')", BOTH[:1]),
        ("gather(cache.unsqueeze(-2)[:, 0], 'ROWS' if not ON_NEW else 'TILES')",
         [text.replace("old or ", "") for text in BOTH]),
        ("if queries is not None and ratio == 4:\n    return gather(cache, 'ROWS')\ngather(cache)",
         BOTH),
        ("if ratio == 4:\n    return gather(cache, 'ROWS')\ngather(cache)", []),
        ("outside.scores_of_pages(queries, cache, Shuffled=page_size > 1)",
         [text.replace("gather", "attend") for text in BOTH]),
        ("outside.scores_of_pages(queries, cache, Shuffled=False)", []),
    ],
    ids=["default", "given", "predicate", "predicate that fails", "named value", "branch that ends", "not known", "attribute", "phase",
         "card", "unknown test", "known test", "foreign tiles", "foreign rows"],
)  # fmt: skip
def test_the_reads_are_followed_through_the_code_that_launches_them(
    tmp_path: Path, attend: str, expected: list[str]
) -> None:
    """Tests are decided by what is known to hold; where nothing is, both ways are followed."""
    assert said(tree(tmp_path / "tree", attend)) == expected


def test_a_writer_that_tiles_agrees_with_readers_that_tile(tmp_path: Path) -> None:
    """Neither side is held to be the right one: they have to agree."""
    assert said(tree(tmp_path / "tree", "gather(cache)", writes=TILES)) == []
    assert said(tree(tmp_path / "rows", "gather(cache, 'ROWS')", writes=TILES)) == BOTH


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        (PAIR.writer.path, "def write(", "def store(", "kernels.py has no functions write()"),
        (PAIR.writer.path, "def write(cache,", "def write(pages,", "has no parameter cache"),
        (PAIR.writer.path, "def read(", "def write(", "kernels.py has 2 functions write()"),
        (PAIR.writer.path, "    tl.store(cache", "    print(cache", "not seen to write the cache"),
        (PAIR.reader.path, "def attend(", "def answer(", "has no functions attend()"),
        (
            PAIR.reader.path,
            "    gather(cache)",
            "    pass",
            "not seen to read the cache in prefill",
        ),
        (
            "vllm/models/tiny/amd/dspark.py",
            "from .kernels",
            "from .others",
            "no class of vllm.models.tiny uses",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_tree_is_said(
    tmp_path: Path, path: str, old: str, new: str, reason: str
) -> None:
    """What is gone, renamed, ambiguous or not seen at work is a gap of its own, never a pass."""
    root = tree(tmp_path / "tree", "gather(cache)")
    text = (root / path).read_text(encoding="utf-8")
    assert old in text
    (root / path).write_text(text.replace(old, new), encoding="utf-8")
    gaps = found(root)
    assert {gap.severity for gap in gaps} == {Severity.NOT_COMPARED}
    assert reason in gaps[0].note


def wrong(report: Report) -> list[str]:
    """The reading function and the condition of each gap in the layout of the indexer's keys."""
    return [
        f"{gap.reader}: {gap.condition}"
        for gap in report.gaps
        if (gap.severity, gap.attribute) == (Severity.WRONG_ANSWERS, "indexer keys")
    ]


def changed(tmp_path: Path, version: str, path: str, pattern: str, replacement: str) -> Report:
    """The absolute check of a release in whose file a pattern is replaced."""
    copy = vllm_trees.link_copy(vllm_trees.tree(version), tmp_path / version)
    text = (copy / path).read_text(encoding="utf-8")
    text, count = re.subn(pattern, replacement, text, flags=re.DOTALL)
    assert count, f"{pattern} is not in {path} of {version}"
    (copy / path).unlink()
    (copy / path).write_text(text, encoding="utf-8")
    return audit(open_tree(copy), Scope("amd", ARCH))


IN_PREFILL = "cp_gather_indexer_k_quant_cache_triton: the request is in prefill on "
IN_DECODE = "rocm_fp8_paged_mqa_logits: the request is in decode on gfx942 or gfx950"


@pytest.mark.parametrize(
    ("version", "pattern", "replacement", "expected"),
    [
        ("0.32.0", r"cache_layout=\(.*?\),", "", [f"{IN_PREFILL}gfx942", f"{IN_PREFILL}gfx950"]),
        ("0.32.0", r"(max_model_len=max_model_len,)\s+compress_ratio=compress_ratio,", r"\1",
         [IN_DECODE]),
        ("0.27.1", r"Preshuffle=block_size > 1", "Preshuffle=False",
         [f"{IN_PREFILL}gfx942 or gfx950"]),
        ("0.27.1", r'else "SHUFFLE"', 'else "NORMAL"', [IN_DECODE]),
    ],
    ids=["gather loses its layout", "decode loses its ratio", "decode mended", "gather mended"],
)  # fmt: skip
def test_a_reader_of_a_real_release_that_changes_its_layout_is_found(
    tmp_path: Path, version: str, pattern: str, replacement: str, expected: list[str]
) -> None:
    """Each of the two readers is accused by itself, on the cards whose path it is."""
    assert wrong(changed(tmp_path, version, READER_FILE, pattern, replacement)) == expected


def test_a_real_writer_that_tiles_is_held_against_its_readers(tmp_path: Path) -> None:
    """Tiled writes agree with the readers of 0.27.1 and not with those of 0.32.0."""
    pattern = rf"(def {WRITER}\(.*?)kv_pos_in_block \* TOKEN_STRIDE\n"
    tiles = r"\1kv_pos_in_block // 16 * 16 * TOKEN_STRIDE + kv_pos_in_block % 16 * 16\n"
    assert wrong(changed(tmp_path, "0.27.1", WRITER_FILE, pattern, tiles)) == []
    assert len(wrong(changed(tmp_path, "0.32.0", WRITER_FILE, pattern, tiles))) == 3


def test_a_renamed_writer_fails_the_check_of_the_image_build(tmp_path: Path) -> None:
    """A check that would prove nothing does not pass."""
    report = changed(tmp_path, "0.32.0", WRITER_FILE, rf"def {WRITER}\(", "def renamed(")
    (gap,) = [gap for gap in report.gaps if gap.severity is Severity.NOT_COMPARED]
    assert f"has no functions {WRITER}()" in gap.note
    assert report.fails(gap)
