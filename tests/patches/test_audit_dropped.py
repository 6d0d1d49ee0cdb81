"""Options that a model sets for its routed experts and that a backend's call leaves out."""

import ast
import json
from pathlib import Path

import pytest

from patches.audit.audit import Report, Scope, audit
from patches.audit.cli import main
from patches.audit.gap import Gap, Severity
from patches.audit.tree import open_tree
from tests.support import expert_trees, vllm_trees

ARCH = "DSparkDraftModel"
AITER = "vllm/model_executor/layers/fused_moe/experts/rocm_aiter_moe.py"
OTHER = """
class Slow:
    def apply(self, x):
        return run(x, 1, scale=self.quant_config.clamp_limit)
"""


def wrong(report: Report) -> list[Gap]:
    """The gaps of the level that says wrong answers."""
    return [gap for gap in report.gaps if gap.severity is Severity.WRONG_ANSWERS]


def dropped(tmp_path: Path, **parts: str) -> list[tuple[str, str]]:
    """The option and the calling function of each wrong-answers gap of a small tree."""
    report = audit(open_tree(expert_trees.tree(tmp_path / "tree", **parts)), Scope())
    return [(gap.attribute, gap.reader) for gap in wrong(report)]


def test_a_call_that_leaves_the_option_out_is_found(tmp_path: Path) -> None:
    """The gap names option, call, op, default, the line that sets it, and fails the run."""
    report = audit(open_tree(expert_trees.tree(tmp_path / "tree")), Scope())
    (gap,) = wrong(report)
    assert (gap.platform, gap.arch, gap.attribute) == ("amd", ARCH, "limit")
    assert gap.class_name == "vllm.model_executor.layers.fused_moe.experts.backend.Fast"
    assert gap.where.startswith(f"{expert_trees.BACKEND_FILE}:")
    assert gap.condition == "the experts are Fast"
    assert gap.note == (
        f"ops.run() at {gap.where} is not given limit, which it takes (default 0.0); "
        f"the model sets limit at {expert_trees.MODEL_FILE}:7"
    )
    assert report.fails(gap)


@pytest.mark.parametrize(
    "parts",
    [
        {"apply": "return ops.run(x, 1, limit=self.moe_config.limit)"},
        {"apply": "return ops.run(x, 1, self.moe_config.limit)"},
        {"apply": "return ops.run(x, 1, **self.options)"},
        {"apply": "return ops.run(x, *self.rest)"},
        {"apply": "y = ops.run(x, 1)\n        return clamp(y, self.moe_config.limit)"},
        {"body": "def activation(self, x):\n        return clamp(x, self.quant.clamp_limit)\n"},
        {"apply": "return forward(x, 1)", "forward": "return ops.run(x, 1, config.limit)"},
        {"apply": "return self.run(x, 0.5)", "body": "def run(self, x, limit=0.0):\n        ..."},
        {"states": "nothing"},
    ],
    ids=["keyword", "position", "unknown keywords", "unknown positions", "apart", "own method",
         "helper", "position of a method", "a base of backends"],
)  # fmt: skip
def test_an_option_that_something_on_the_way_reads_is_not_dropped(
    tmp_path: Path, parts: dict[str, str]
) -> None:
    """Passed, perhaps passed, or read by anything that the backend runs: nothing is said."""
    assert dropped(tmp_path, **parts) == []


def test_a_call_in_a_function_that_apply_runs_is_found(tmp_path: Path) -> None:
    """The way from apply to the call is followed and told."""
    root = expert_trees.tree(tmp_path / "tree", apply="return forward(x, self.moe_config)")
    (gap,) = wrong(audit(open_tree(root), Scope()))
    assert gap.reader == "forward"
    assert any(line.endswith("Fast.apply() calls forward()") for line in gap.explanation)


@pytest.mark.parametrize(
    ("runs", "is_found"),
    [
        ("return ops.is_enabled()", True),
        ("return current_platform.is_cuda()", False),
        ("p = current_platform\n        return p.is_cuda() and p.has(9)", False),
        ("return current_platform.is_rocm() and other()", True),
        ("if not ops.is_enabled():\n            return False\n        return True", True),
        ("if ops.is_enabled():\n            return False\n        return False", False),
        ("raise NotImplementedError", False),
        ("return ops.is_elsewhere()", False),
        ("return not ops.is_perhaps()", True),
        ("if current_platform.is_cuda():\n            return True", False),
        ("return True", True),
    ],
)
def test_only_backends_that_may_run_on_the_platform_are_accused(
    tmp_path: Path, runs: str, is_found: bool
) -> None:
    """What a backend asks of its platform is followed, through functions and decorators."""
    assert bool(dropped(tmp_path, runs=runs)) is is_found


def test_a_backend_of_another_platform_is_not_accused(tmp_path: Path) -> None:
    """An op behind a decorator that asks for ROCm is no backend of an NVIDIA model."""
    root = expert_trees.tree(tmp_path / "tree")
    amd = root / expert_trees.MODEL_FILE
    amd.rename(root / "vllm/models/tiny/nvidia/model.py")
    (root / "vllm/models/tiny/nvidia/dspark.py").write_text(expert_trees.DRAFT)
    assert wrong(audit(open_tree(root), Scope())) == []


@pytest.mark.parametrize(
    ("takes", "given", "is_found"),
    [
        ("return activation == MoEActivation.SILU", "limit=config.limit", True),
        ("return activation == MoEActivation.GELU", "limit=config.limit", False),
        ("return activation != MoEActivation.GELU", "limit=config.limit", True),
        ("return True", "limit=config.limit, activation=config.act", True),
        (expert_trees.TAKES_SILU, "limit=config.limit, activation='gelu'", True),
        (expert_trees.TAKES_SILU, "limit=config.limit, activation='relu'", False),
        (expert_trees.TAKES_SILU, "limit=config.limit, activation=config.act", False),
    ],
)
def test_a_backend_must_take_the_activation_of_the_model(
    tmp_path: Path, takes: str, given: str, is_found: bool
) -> None:
    """A backend that names its activations is accused only by a model known to have one of them."""
    assert bool(dropped(tmp_path, takes=takes, given=given)) is is_found


@pytest.mark.parametrize(
    "given",
    [
        "",
        "limit=None",
        "label=config.name",
        "num_experts=config.n",
        "act=Other(limit=config.limit)",
    ],
)
def test_an_option_that_the_model_leaves_off_is_not_missed(tmp_path: Path, given: str) -> None:
    """Not set, set to a constant, not off by default, or set elsewhere: nothing to apply."""
    assert dropped(tmp_path, given=given, takes="return True") == []


def test_a_draft_that_does_not_use_the_configured_layers_is_not_accused(tmp_path: Path) -> None:
    """The line that sets the option must be in the draft's own file or in one that it imports."""
    draft = expert_trees.DRAFT.replace("from .model import Layer\n", "")
    assert dropped(tmp_path, draft=draft) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from ..amd.model import Layer",
        "from vllm.models.tiny.amd.model import Layer",
        "from . import other, model",
        "from . import (\n    other,\n    model as layers,\n)",
        "import vllm.models.tiny.amd.model",
        "def load():\n    from .model import Layer",
    ],
)
def test_every_form_of_an_import_leads_to_the_configured_layers(
    tmp_path: Path, statement: str
) -> None:
    """Relative, absolute, of a module, of a name in it, in a function."""
    draft = expert_trees.DRAFT.replace("from .model import Layer", statement)
    assert dropped(tmp_path, draft=draft) == [("limit", "Fast.apply")]


def test_a_parameter_of_another_name_is_known_by_who_fills_it(tmp_path: Path) -> None:
    """An op's parameter is the option once another backend fills it with the option."""
    apply = "return ops.run(x, 1, limit=0.5)"
    assert dropped(tmp_path, apply=apply) == []
    assert dropped(tmp_path, apply=apply, more=OTHER) == [("limit", "Fast.apply")]


def test_every_format_tells_the_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, JSON, SARIF and annotations show the gap as an error; a baseline lets it pass."""
    tree, baseline = str(expert_trees.tree(tmp_path / "tree")), tmp_path / "baseline.json"
    assert main([tree]) == 1
    told = capsys.readouterr().out
    assert "1 wrong-answers" in told
    assert "Fast on amd if the experts are Fast: ops.run() at " in told
    assert main([tree, "--format", "json"]) == 1
    baseline.write_text(capsys.readouterr().out)
    (gap,) = json.loads(baseline.read_text())["trees"][0]["gaps"]
    assert (gap["severity"], gap["fails"]) == ("wrong-answers", True)
    assert gap["key"] == "wrong-answers|amd|DSparkDraftModel|limit|Fast.apply"
    assert main([tree, "--format", "sarif"]) == 1
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("wrong-answers", "error")
    assert main([tree, "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=")
    assert main([tree, "--baseline", str(baseline)]) == 0
    assert main([tree, "--since", tree]) == 0


@pytest.mark.parametrize("version", ["0.30.0", "0.32.0"])
def test_taking_the_clamp_away_from_a_real_release_is_found(version: str, tmp_path: Path) -> None:
    """Without its swiglu_limit the call of AITER's fused MoE is accused, for draft and target."""
    copy = vllm_trees.link_copy(vllm_trees.tree(version), tmp_path / version)
    text = (copy / AITER).read_text(encoding="utf-8")
    (copy / AITER).unlink()
    (copy / AITER).write_text(without_keyword(text, "fused_moe", "swiglu_limit"), encoding="utf-8")
    report = audit(open_tree(copy), Scope("amd"))
    gaps = [gap for gap in wrong(report) if gap.where.startswith(f"{AITER}:")]
    assert {gap.attribute for gap in gaps} == {"swiglu_limit"}
    assert {ARCH, "DeepseekV4ForCausalLM", "DeepSeekV4MTPModel"} <= {gap.arch for gap in gaps}


def without_keyword(text: str, function: str, keyword: str) -> str:
    """Return the source in which calls of `function` no longer pass `keyword`."""
    tree = ast.parse(text)
    removed = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f".{function}"):
            kept = [given for given in node.keywords if given.arg != keyword]
            removed += len(node.keywords) - len(kept)
            node.keywords = kept
    assert removed, f"{function}() is not given {keyword} in the source"
    return ast.unparse(tree)
