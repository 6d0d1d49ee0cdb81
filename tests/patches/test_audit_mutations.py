"""The audit notices every attribute that goes missing from the AMD class.

Each test copies a real release, takes one thing out of the copy's source and audits the copy.
"""

import ast
import json
from pathlib import Path

import pytest

from patches.audit.cli import main
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
REQUIRED_0_32_0 = REQUIRED_0_27_1 | {"compute_confidence", "model.confidence_head"}
OPTIONAL = {"get_draft_kv_cache_layer_names", "has_own_embed_tokens", "has_own_lm_head"}
NEVER_ON_AMD = {("0.27.1", "draft_id_to_target_id")}
REQUIRED = {"0.27.1": REQUIRED_0_27_1, "0.32.0": REQUIRED_0_32_0}


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
def test_removing_an_attribute_is_a_gap_of_its_weight(
    version: str, copies: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each attribute that shared code requires is a crash where it is gone, each that it only asks
    for a missing feature."""
    tree, required = copies[version], REQUIRED[version]
    original = text = (tree / AMD_DSPARK).read_text(encoding="utf-8")
    for attribute in required | OPTIONAL:
        if (version, attribute) not in NEVER_ON_AMD:
            text = without_attribute(text, attribute)
    replace_file(tree, AMD_DSPARK, text)
    try:
        code, gaps = audit(tree, capsys)
    finally:
        replace_file(tree, AMD_DSPARK, original)
    assert code == 1
    severities = {name: gap["severity"] for name, gap in gaps.items()}
    told = {name for name, s in severities.items() if s in ("crash", "crash-conditional")}
    assert told == required
    assert {severities[name] for name in OPTIONAL} == {"feature-missing"}
    assert all(gaps[name]["class_where"].startswith(AMD_DSPARK) for name in told)


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
