"""The audit notices every attribute that goes missing from the AMD class.

Each test copies a real release, takes one thing out of the copy's source and audits the copy.
"""

import ast
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from patches.audit.cli import main
from patches.audit.conditions import DRAFT
from patches.audit.modules import ModuleIndex
from patches.audit.readgraph import Kind
from patches.audit.registry import Registry
from patches.audit.speculators import Speculators, family_of
from patches.audit.tree import open_tree
from tests.support import vllm_trees

AMD_DSPARK = "vllm/models/deepseek_v4/amd/dspark.py"
SPECULATIVE_CONFIG = "vllm/config/speculative.py"
OUTER, INNER = "DSparkDeepseekV4ForCausalLM", "DSparkDeepseekV4Model"
ARCH = "DSparkDraftModel"

REQUIRED_0_27_1 = {
    "combine_hidden_states",
    "compute_draft_logits",
    "draft_id_to_target_id",
    "forward",
    "map_draft_to_target",
    "markov_bias",
    "markov_embed",
    "model",
    "precompute_and_store_context_kv",
}
REQUIRED_0_32_0 = REQUIRED_0_27_1 | {
    "apply_markov_bias_gathered",
    "compute_confidence",
    "model.confidence_head",
}
OPTIONAL = {"get_draft_kv_cache_layer_names", "has_own_embed_tokens", "has_own_lm_head"}
NOT_NEEDED = {
    "__class__",  # every object has one
    "get_draft_attn_causal",  # read behind hasattr
    "get_draft_kv_cache_layer_names",  # read behind hasattr
    "get_top_tokens",  # refused with a message before it is read
    "lm_head",  # deleted only if it is there
    "model.embed_tokens",  # deleted only if it is there
}
NEVER_ON_AMD = {("0.27.1", "draft_id_to_target_id"), ("0.32.0", "apply_markov_bias_gathered")}
REQUIRED = {"0.27.1": REQUIRED_0_27_1, "0.32.0": REQUIRED_0_32_0}
REMOVABLE = sorted(
    (version, name)
    for version, names in REQUIRED.items()
    for name in names
    if (version, name) not in NEVER_ON_AMD
)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies of the two releases, to change and change back."""
    base = tmp_path_factory.mktemp("trees")
    return {
        version: vllm_trees.link_copy(vllm_trees.tree(version), base / version)
        for version in REQUIRED
    }


def replace_file(tree: Path, path: str, text: str) -> None:
    """Write a file anew: the copy's files are hard links that writing in place would go through."""
    (tree / path).unlink()
    (tree / path).write_text(text, encoding="utf-8")


class _Without(ast.NodeTransformer):
    """Takes an attribute out of a class: its method, class attribute or assignments to self."""

    def __init__(self, class_name: str, attribute: str) -> None:
        self.removed = 0
        self._class_name = class_name
        self._attribute = attribute

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for child in node.body:
            if isinstance(child, ast.ClassDef) and child.name == self._class_name:
                self.generic_visit(child)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        if node.name == self._attribute:
            self.removed += 1
            return None
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return self._unless_target(node, node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return self._unless_target(node, [node.target])

    def _unless_target(self, node: ast.stmt, targets: list[ast.expr]) -> ast.AST | None:
        names = {ast.unparse(target) for target in targets}
        if names & {self._attribute, f"self.{self._attribute}"}:
            self.removed += 1
            return None
        return node


def without_attribute(text: str, dotted: str) -> str:
    """Return the source of the AMD file without one attribute of the model or of its ``model``."""
    inner, _, name = dotted.rpartition(".")
    transformer = _Without(INNER if inner else OUTER, name)
    changed = ast.unparse(transformer.visit(ast.parse(text)))
    assert transformer.removed, f"{dotted} is not in the source"
    return changed


def audit(tree: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """Run the absolute check of DSpark on AMD; return the exit code and the gaps by attribute."""
    code = main([str(tree), "--arch", ARCH, "--platform", "amd", "--format", "json"])
    (report,) = json.loads(capsys.readouterr().out)["trees"]
    return code, {gap["attribute"]: gap for gap in report["gaps"]}


@pytest.mark.parametrize("version", sorted(REQUIRED))
def test_the_list_of_required_attributes_is_what_shared_code_reads(version: str) -> None:
    """The mutations below cover every attribute that the shared DSpark code requires."""
    registry = Registry(ModuleIndex(open_tree(vllm_trees.tree(version))))
    family = family_of(ARCH)
    assert family is not None
    (graph,) = Speculators(registry).of(family)
    frames, waiting = set(), list(graph.roots)
    while waiting:
        frame = waiting.pop()
        if frame not in frames:
            frames.add(frame)
            waiting += [edge.frame for edge in frame.calls]
    required = {
        ".".join(read.path)
        for frame in frames
        for read in frame.reads
        if read.role == DRAFT and read.kind is Kind.REQUIRED and read.path[:-1] in ((), ("model",))
    }
    assert required - NOT_NEEDED == REQUIRED[version]


@contextlib.contextmanager
def lacking(tree: Path, attribute: str) -> Iterator[Path]:
    """The tree, whose AMD draft class is without an attribute for as long as this lasts."""
    original = (tree / AMD_DSPARK).read_text(encoding="utf-8")
    replace_file(tree, AMD_DSPARK, without_attribute(original, attribute))
    try:
        yield tree
    finally:
        replace_file(tree, AMD_DSPARK, original)


@pytest.mark.parametrize(("version", "attribute"), REMOVABLE)
def test_removing_a_required_attribute_is_a_crash(
    version: str,
    attribute: str,
    copies: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without any one attribute that shared code requires the check of the AMD class fails."""
    with lacking(copies[version], attribute) as tree:
        code, gaps = audit(tree, capsys)
    assert code == 1
    assert gaps[attribute]["severity"] in ("crash", "crash-conditional")
    assert gaps[attribute]["class_where"].startswith(AMD_DSPARK)


@pytest.mark.parametrize("version", sorted(REQUIRED))
@pytest.mark.parametrize("attribute", sorted(OPTIONAL))
def test_removing_an_optional_attribute_is_a_missing_feature(
    version: str,
    attribute: str,
    copies: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What shared code only asks for is reported when it goes missing, but not as a crash."""
    with lacking(copies[version], attribute) as tree:
        _, gaps = audit(tree, capsys)
    assert gaps[attribute]["severity"] == "feature-missing"


def test_an_attribute_the_configuration_keeps_out_of_reach_is_not_a_crash(
    copies: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """0.32.0 reads apply_markov_bias_gathered only with an option it refuses for this class."""
    code, gaps = audit(copies["0.32.0"], capsys)
    gap = gaps["apply_markov_bias_gathered"]
    assert code == 0
    assert gap["severity"] == "feature-missing"
    assert gap["note"].startswith(f"dspark_draft_topk is refused for it at {SPECULATIVE_CONFIG}:")


def test_without_the_refusal_the_attribute_no_platform_has_is_a_crash(
    copies: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the configuration lets the option through, what every platform lacks is a crash."""
    original = (copies["0.32.0"] / SPECULATIVE_CONFIG).read_text(encoding="utf-8")
    refusal = next(
        node
        for node in ast.walk(ast.parse(original))
        if isinstance(node, ast.If)
        and ast.unparse(node.test).startswith("'Qwen3DSparkModel' not in")
    )
    lines = original.splitlines(keepends=True)
    first, last = refusal.body[0].lineno - 1, refusal.body[-1].end_lineno
    lines[first:last] = [" " * refusal.body[0].col_offset + "pass\n"]
    replace_file(copies["0.32.0"], SPECULATIVE_CONFIG, "".join(lines))
    try:
        code, gaps = audit(copies["0.32.0"], capsys)
    finally:
        replace_file(copies["0.32.0"], SPECULATIVE_CONFIG, original)
    gap = gaps["apply_markov_bias_gathered"]
    assert code == 1
    assert gap["severity"] == "crash-conditional"
    assert "self._draft_topk is not None" in gap["condition"]
    assert gap["providers"] == []


def test_a_parameter_that_goes_missing_is_a_crash(
    copies: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A method that no longer takes what shared code passes is reported like a missing one."""
    original = (copies["0.27.1"] / AMD_DSPARK).read_text(encoding="utf-8")
    tree = ast.parse(original)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "precompute_and_store_context_kv":
            node.args.args.pop()
            node.args.defaults.pop()
    replace_file(copies["0.27.1"], AMD_DSPARK, ast.unparse(tree))
    try:
        code, gaps = audit(copies["0.27.1"], capsys)
    finally:
        replace_file(copies["0.27.1"], AMD_DSPARK, original)
    assert code == 1
    assert gaps["precompute_and_store_context_kv()"]["note"] == (
        "takes 2 positional arguments, is given 3"
    )
