"""The audit against real releases: every known gap is found, and nothing is called a crash falsely.

The gaps were established by reading the wheels; the AMD and XPU classes of 0.26.0 to 0.27.1 lack
what PR 51145 adds for AMD in 0.28.0.
"""

import json
from pathlib import Path

import pytest

from deploy import recipe
from patches import apply, series
from patches.audit.audit import Report, Scope, audit
from patches.audit.cli import main
from patches.audit.gap import Severity
from patches.audit.tree import open_tree
from tests.support import vllm_trees

DSPARK, MTP, V32 = "DSparkDraftModel", "DeepSeekV4MTPModel", "DeepseekV32MTPModel"
AMD_DSPARK = "vllm/models/deepseek_v4/amd/dspark.py"
DRAFT_ID, CONFIDENCE = "draft_id_to_target_id", "compute_confidence"
HEAD, COMPACT, TOP = "model.confidence_head", "model.compact_topk_indices", "get_top_tokens"

PROBABILISTIC = {("amd", DSPARK, DRAFT_ID), ("xpu", DSPARK, DRAFT_ID)}
XPU = {("xpu", DSPARK, name) for name in (DRAFT_ID, HEAD, CONFIDENCE)}
AMD_CONFIDENCE = {("amd", DSPARK, HEAD), ("amd", DSPARK, CONFIDENCE)}
CRASHES: dict[str, set[tuple[str, str, str]]] = {
    "0.25.1": set(),
    "0.26.0": PROBABILISTIC,
    "0.27.0": PROBABILISTIC,
    "0.27.1": PROBABILISTIC,
    "0.28.0": XPU | AMD_CONFIDENCE,
    "0.29.0": XPU | AMD_CONFIDENCE,
    "0.30.0": XPU | AMD_CONFIDENCE,
    "0.31.0": XPU | {("amd", V32, COMPACT)},
    "0.32.0": XPU,
    "0.33.0": XPU,
}
"""All crash-level gaps of a release: platform, architecture, attribute."""

V32_TOP = {("amd", V32, TOP)}
MTP_TOP = {("nvidia", MTP, TOP), ("xpu", MTP, TOP)}
FEATURES: dict[str, set[tuple[str, str, str]]] = {
    "0.25.1": set(),
    "0.26.0": set(),
    "0.27.0": set(),
    "0.27.1": set(),
    "0.28.0": set(),
    "0.29.0": V32_TOP,
    "0.30.0": V32_TOP,
    "0.31.0": V32_TOP | MTP_TOP | {("amd", V32, COMPACT)},
    "0.32.0": V32_TOP | MTP_TOP,
    "0.33.0": V32_TOP | MTP_TOP,
}
"""What speculators ask for or refuse without; the audit may report further features."""

V4, M3 = "DeepseekV4ForCausalLM", "MiniMaxM3SparseForCausalLM"
CLAMP = {
    ("amd", arch, "swiglu_limit")
    for arch in (DSPARK, MTP, V4, M3, "MiniMaxM3MTP", "MiniMaxM3SparseForConditionalGeneration")
}
KEYS = {("amd", arch, "indexer keys") for arch in (DSPARK, MTP, V4)}
WRONG = {
    "0.25.1": {gap for gap in CLAMP | KEYS if DSPARK not in gap},
    **dict.fromkeys(("0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0"), CLAMP | KEYS),
    "0.30.0": KEYS,
}
"""All that is answered wrongly.

Up to 0.29.0 AITER's fused MoE is called without the clamp. Up to 0.30.0 the indexer's keys are
written row by row and read in tiles (vLLM issue 52109).
"""

WITHOUT_CLASS = {"0.25.1": {("amd", DSPARK, "no-class"), ("xpu", DSPARK, "no-class")}}
CPU_STUBS = {("cpu", DSPARK, "stub"), ("cpu", MTP, "stub")}
WITHOUT_CLASS |= dict.fromkeys(("0.30.0", "0.31.0", "0.32.0", "0.33.0"), CPU_STUBS)

IN_EVERY_RUN = ("0.26.0", "0.27.1", "0.28.0", "0.32.0")
RELEASES = [
    pytest.param(version, marks=[] if version in IN_EVERY_RUN else [pytest.mark.prove])
    for version in CRASHES
]


def named(report: Report, *severities: Severity) -> set[tuple[str, str, str]]:
    """The gaps of these severities as platform, architecture and attribute."""
    return {(g.platform, g.arch, g.attribute) for g in report.gaps if g.severity in severities}


@pytest.mark.parametrize("version", RELEASES)
def test_the_gaps_of_a_release_are_found(version: str) -> None:
    """Crash-level gaps are exactly the known ones; known missing features and stubs are there."""
    report = audit(open_tree(vllm_trees.tree(version)), Scope())
    assert named(report, Severity.CRASH, Severity.CRASH_CONDITIONAL) == CRASHES[version]
    assert named(report, Severity.WRONG_ANSWERS) == WRONG.get(version, set())
    assert FEATURES[version] <= named(report, Severity.FEATURE_MISSING)
    assert WITHOUT_CLASS.get(version, set()) == {
        (gap.platform, gap.arch, gap.severity.value)
        for gap in report.gaps
        if gap.severity in (Severity.STUB, Severity.NO_CLASS)
    }
    assert report.version == version
    assert not named(report, Severity.UNRESOLVED, Severity.NOT_COMPARED)
    assert report.notes == ()


@pytest.mark.parametrize("version", RELEASES)
def test_the_recipe_s_own_configuration_reaches_only_what_51145_adds(version: str) -> None:
    """With the speculative tables that the recipe serves, AMD lacks one attribute up to 0.27.1.

    Adaptive verification, for which 0.28.0 to 0.30.0 lack two more, is not served.
    """
    served = [p.speculative for p in recipe.load().profiles.values() if not p.is_rehearsal]
    tables = {json.dumps(table): table for table in served}
    for table in tables.values():
        report = audit(open_tree(vllm_trees.tree(version)), Scope("amd", DSPARK, table))
        crashes = named(report, Severity.CRASH, Severity.CRASH_CONDITIONAL)
        assert crashes == {gap for gap in CRASHES[version] if gap == ("amd", DSPARK, DRAFT_ID)}
    assert tables


def test_what_the_configuration_keeps_out_of_reach_is_a_missing_feature() -> None:
    """The attribute that only adaptive verification reads is told, with the default that is off."""
    scope = Scope("amd", DSPARK, {"method": "dspark", "num_speculative_tokens": 5})
    report = audit(open_tree(vllm_trees.tree("0.28.0")), scope)
    (gap,) = [gap for gap in report.gaps if gap.attribute == CONFIDENCE]
    assert gap.severity is Severity.FEATURE_MISSING
    assert gap.note == (
        "enable_adaptive_verification is not configured and is False at "
        "vllm/config/speculative.py:241"
    )
    adaptive = {**(scope.speculative or {}), "enable_adaptive_verification": True}
    report = audit(open_tree(vllm_trees.tree("0.28.0")), Scope("amd", DSPARK, adaptive))
    crashes = named(report, Severity.CRASH, Severity.CRASH_CONDITIONAL)
    assert crashes == AMD_CONFIDENCE


@pytest.fixture(scope="module")
def unpatched() -> Report:
    """What is said of DSpark on AMD in 0.27.1."""
    return audit(open_tree(vllm_trees.tree("0.27.1")), Scope("amd", DSPARK))


def test_the_gap_of_pr_51145_is_described(unpatched: Report) -> None:
    """The gap the patch closes names its class, line, condition and who has the attribute."""
    (gap,) = [gap for gap in unpatched.gaps if gap.attribute == DRAFT_ID]
    assert gap.severity is Severity.CRASH_CONDITIONAL
    assert gap.condition == "self.draft_logits is not None"
    assert gap.where == "vllm/v1/worker/gpu/spec_decode/dspark/speculator.py:85"
    assert gap.reader == "DSparkSpeculator.load_draft_model"
    assert gap.class_where == f"{AMD_DSPARK}:288"
    assert gap.class_name == "vllm.models.deepseek_v4.amd.dspark.DSparkDeepseekV4ForCausalLM"
    assert gap.providers == ("nvidia",)


def test_the_clamp_that_aiter_is_not_given_is_described(unpatched: Report) -> None:
    """The gap that patch 0006 closes names the call, the op's default and who sets the limit."""
    (gap,) = [gap for gap in unpatched.gaps if gap.attribute == "swiglu_limit"]
    assert gap.where == "vllm/model_executor/layers/fused_moe/experts/rocm_aiter_moe.py:395"
    assert gap.class_name.endswith(".rocm_aiter_moe.AiterExperts")
    assert gap.reader == "rocm_aiter_fused_experts"
    assert "swiglu_limit, which it takes (default 0.0)" in gap.note
    assert gap.note.endswith(" at vllm/models/deepseek_v4/amd/model.py:299")


def test_the_layouts_of_the_indexer_keys_are_described(unpatched: Report) -> None:
    """The gaps that patch 0004 closes name both readers, the writer and what each does."""
    gaps = [gap for gap in unpatched.gaps if gap.attribute == "indexer keys"]
    sparse = "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py"
    assert [(gap.reader, gap.where) for gap in gaps] == [
        ("cp_gather_indexer_k_quant_cache_triton", f"{sparse}:240"),
        ("rocm_fp8_paged_mqa_logits", f"{sparse}:432"),
    ]
    assert gaps[0].condition == "the request is in prefill on gfx942 or gfx950"
    assert gaps[1].condition == "the request is in decode on gfx942 or gfx950"
    for gap in gaps:
        assert gap.note == (
            f"reads the indexer keys in tiles at {gap.where}; "
            "_fused_kv_compress_norm_rope_insert_indexer_attn() at "
            "vllm/models/deepseek_v4/common/ops/fused_compress_quant_cache.py:658 "
            "writes them row by row"
        )


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.27.1 with the series applied, as the image has it."""
    tree = vllm_trees.link_copy(
        vllm_trees.tree("0.27.1"), tmp_path_factory.mktemp("trees") / "patched"
    )
    apply.apply(tree, series.load())
    return tree


def test_the_patched_tree_passes_the_check_of_the_image_build(patched: Path) -> None:
    """On patched 0.27.1 the absolute check of DSpark on AMD finds nothing and exits 0."""
    report = audit(open_tree(patched), Scope("amd", DSPARK))
    assert report.gaps == ()
    assert main([str(patched), "--arch", DSPARK, "--platform", "amd"]) == 0


def test_the_unpatched_tree_fails_the_check_of_the_image_build(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On unpatched 0.27.1 the absolute check of DSpark on AMD exits 1 and names the attribute."""
    tree = vllm_trees.tree("0.27.1")
    assert main([str(tree), "--arch", DSPARK, "--platform", "amd"]) == 1
    assert f"lacks {DRAFT_ID}" in capsys.readouterr().out


def test_gaps_introduced_by_a_release_are_told_from_old_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From 0.27.1 to 0.28.0 the confidence head is new on AMD and XPU; XPU's old gap is not shown."""
    new, old = str(vllm_trees.tree("0.28.0")), str(vllm_trees.tree("0.27.1"))
    assert main([new, "--since", old, "--format", "json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)["trees"]
    crashes = {(gap["platform"], gap["attribute"]) for gap in report["gaps"] if gap["fails"]}
    assert crashes == {(p, name) for p in ("amd", "xpu") for name in (HEAD, CONFIDENCE)}


@pytest.mark.prove
def test_a_release_without_the_class_fails_the_check_of_the_image_build() -> None:
    """0.25.1 has no DSpark class on ROCm: a difference, and a failure where it must work."""
    tree = str(vllm_trees.tree("0.25.1"))
    assert main([tree, "--arch", DSPARK]) == 0
    assert main([tree, "--arch", DSPARK, "--platform", "amd"]) == 1


def test_a_platform_without_a_folder_has_the_class_its_dispatch_falls_to() -> None:
    """On a CPU 0.27.1 takes the NVIDIA class, which has everything."""
    tree = str(vllm_trees.tree("0.27.1"))
    assert main([tree, "--arch", DSPARK, "--platform", "cpu"]) == 0
