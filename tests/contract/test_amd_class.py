"""The real AMD draft class, loaded and configured by vLLM's own path on a CPU."""

import pytest

from tests.support.amd_class import Answers

pytestmark = pytest.mark.real

AMD_CLASS = {"module": "vllm.models.deepseek_v4.amd.dspark", "class": "DSparkDeepseekV4ForCausalLM"}
SHARED = {"shares_embedding": True, "shares_lm_head": True}


def test_unpatched_probabilistic_dies_of_the_missing_attribute(pristine: Answers) -> None:
    """0.27.1 as released fails exactly as PR 51145 says, while it loads the draft."""
    assert pristine["load probabilistic"] == {
        "error": "AttributeError: 'DSparkDeepseekV4ForCausalLM' object has no attribute"
        " 'draft_id_to_target_id'"
    }


def test_unpatched_greedy_loads(pristine: Answers) -> None:
    """Greedy drafting never reads the attribute, so a greedy start proves nothing."""
    assert pristine["load greedy"] == AMD_CLASS | SHARED | {"keeps_draft_logits": False}


@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_patched_loads_and_shares(method: str, patched: Answers) -> None:
    """With the series the draft loads and uses the target's embedding and lm_head."""
    expected = AMD_CLASS | SHARED | {"keeps_draft_logits": method == "probabilistic"}
    assert patched[f"load {method}"] == expected


def test_draft_has_the_targets_quantization_if_model_is_omitted(patched: Answers) -> None:
    """Without "model" in the speculative config the draft is quantized as the target is."""
    assert patched["model omitted"] == {
        "method": "dspark",
        "draft_architecture": "DSparkDraftModel",
        "target_quantization": "DeepseekV4FP8Config",
        "draft_quantization": "DeepseekV4FP8Config",
        "steps": 5,
        "sample_method": "probabilistic",
        "v2_runner": True,
        "pipeline": 1,
    }


def test_draft_has_another_quantization_if_model_is_spelled_out(patched: Answers) -> None:
    """With "model" it gets plain FP8, and dies of KeyError while loading (issues 51758, 51916)."""
    found = patched["model spelled out"]
    assert found["target_quantization"] == "DeepseekV4FP8Config"
    assert found["draft_quantization"] == "Fp8Config"


def test_fewer_tokens_than_a_block_are_refused(patched: Answers) -> None:
    """K below dspark_block_size is refused by vLLM's own check."""
    error = patched["fewer than a block"]["error"]
    assert "num_speculative_tokens >= dspark_block_size (5); got 4" in error


def test_more_tokens_than_a_block_pass_unseen(patched: Answers) -> None:
    """K above dspark_block_size is accepted, so warning of it is left to the plan."""
    assert patched["more than a block"]["steps"] == 7


def test_pipeline_parallel_is_refused(patched: Answers) -> None:
    """vLLM has no pipeline parallelism for this model."""
    assert "Pipeline parallelism is not supported" in patched["pipeline"]["error"]
