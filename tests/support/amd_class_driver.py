"""Runs inside the rehearsal's vLLM: the real AMD DSpark draft on a CPU, asked what tests want to know.

Usage: python -P amd_class_driver.py QUESTIONS ANSWERS, both JSON files. A question is an object with
the name of a function below, of `amd_class_parts` or of `amd_class_retrieval` as "ask" and that
function's arguments; answers keep the order.

What is real: vLLM's argument parser, the engine configuration, the speculator, the loader, the
registry, the draft class of the AMD platform, drafting, rejection sampling. What is not: weights
(dummy, or set here), hidden states, attention, and compiled kernels (Triton's interpreter).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from patches.loadcheck import draft as amd
from tests.support import amd_class_parts, amd_class_retrieval
from tests.support.asked import answer

# Position of the token that a draft continues. Any does: the model's weights ignore it.
_POSITION = 20
# Weights of tokens that shall never come out, relative to the others' sum of one.
_NEVER = 1e-7


def load(model: str, sample_method: str) -> dict[str, Any]:
    """Load the draft through the real path and say what came of it."""
    with amd.speculator(model, amd_class_parts.drafts(sample_method)) as (speculator, target):
        try:
            speculator.load_model(target)
        except AttributeError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        draft = speculator.model
        return {
            "module": type(draft).__module__,
            "class": type(draft).__name__,
            "keeps_draft_logits": speculator.draft_logits is not None,
            "shares_embedding": draft.model.embed_tokens is target.model.embed_tokens,
            "shares_lm_head": draft.lm_head is target.lm_head,
        }


def sample(
    model: str,
    draft: list[float],
    target: list[float],
    *,
    steps: int,
    requests: int,
    batches: int,
    seed: int,
    temperature: float = 1.0,
    block_verification: bool = False,
) -> dict[str, Any]:
    """Draft and verify `requests * batches` times at one position, and count what comes out.

    `draft` and `target` are the probabilities of the first tokens of the vocabulary, at every step.
    Answers with counts of the first drafted token, and of the token emitted at each step given that
    the step was reached, and with the number of accepted drafts.
    """
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    with (
        amd.speculator(model, amd_class_parts.drafts("probabilistic", steps), requests) as (
            speculator,
            target_model,
        ),
        torch.inference_mode(),
    ):
        _provide_attribute()
        speculator.load_model(target_model)
        vocabulary = speculator.vocab_size
        _make_draft_predict(speculator.model, target_model, draft, temperature)
        target_logits = _log_probabilities(target, vocabulary).float()
        _place_requests(speculator, requests, steps, temperature)
        rows = requests * (steps + 1)
        layout = _Layout(requests, steps)
        drafted = torch.zeros(vocabulary, dtype=torch.int64)
        emitted = torch.zeros(steps + 1, vocabulary, dtype=torch.int64)
        accepted = 0
        for batch in range(batches):
            speculator.seeds[:requests] = _seeds(seed, batch, requests)
            speculator._sample_sequential(
                requests, torch.zeros(requests * steps, _hidden(speculator))
            )
            tokens = speculator.draft_tokens[:requests].clone()
            drafted += torch.bincount(tokens[:, 0], minlength=vocabulary)
            sampled, lengths = rejection_sample(
                target_logits.expand(rows, vocabulary).contiguous(),
                speculator.draft_logits,
                layout.draft_sampled(tokens),
                layout.cumulative,
                layout.positions,
                layout.requests,
                layout.requests_of_rows,
                layout.steps_of_rows,
                speculator.temperature,
                speculator.seeds,
                steps,
                use_block_verification=block_verification,
            )
            for step in range(steps + 1):
                reached = sampled[lengths > step, step]
                emitted[step] += torch.bincount(reached, minlength=vocabulary)
            accepted += int((lengths - 1).sum())
    return {"drafted": drafted.tolist(), "emitted": emitted.tolist(), "accepted": accepted}


def verify_nan(
    vocabulary: int, tokens: list[int], nan_step: int, temperature: float
) -> dict[str, Any]:
    """Verify two requests that can each only say their token, the first with NaN at one step.

    The interpreter's argmax ignores NaN. Here it folds with Triton's own combine function, which is
    what a compiled kernel runs. Answers with what both requests said, at most three tokens each.
    """
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    layout = _Layout(requests=2, steps=2)
    logits = torch.full((2, 3, vocabulary), float("-inf"))
    for request, token in enumerate(tokens):
        logits[request, :, token] = 0.0
    draft_logits = logits[:, :2].clone()
    logits[0, nan_step] = float("nan")
    with _compiled_argmax():
        sampled, lengths = rejection_sample(
            logits.reshape(6, vocabulary),
            draft_logits,
            layout.draft_sampled(torch.tensor(tokens)[:, None].expand(2, 2)),
            layout.cumulative,
            layout.positions,
            layout.requests,
            layout.requests_of_rows,
            layout.steps_of_rows,
            torch.full((2,), temperature),
            torch.tensor([1, 2]),
            2,
        )
    return {
        "said": [
            row[:length].tolist() for row, length in zip(sampled, lengths.tolist(), strict=True)
        ]
    }


def configure(model: str, speculative: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """Build the engine configuration from arguments and say what vLLM made of them."""
    from vllm.model_executor.models.utils import get_draft_quant_config
    from vllm.platforms import current_platform

    # The CPU platform has no FP8 kernels; which method was chosen for the draft is decided before.
    type(current_platform).verify_quantization = classmethod(lambda cls, method: None)
    try:
        config = amd.engine_config(model, speculative, dtype="bfloat16", **arguments)
    except (ValueError, NotImplementedError) as error:
        return {"error": " ".join(str(error).split())}
    return {
        "method": config.speculative_config.method,
        "draft_architecture": config.speculative_config.draft_model_config.architectures[0],
        "target_quantization": type(config.quant_config).__name__,
        "draft_quantization": type(get_draft_quant_config(config)).__name__,
        "steps": config.speculative_config.num_speculative_tokens,
        "sample_method": config.speculative_config.draft_sample_method,
        "v2_runner": config.use_v2_model_runner,
        "pipeline": config.parallel_config.pipeline_parallel_size,
    }


class _Layout:
    """The index tensors of `rejection_sample` for requests that all have `steps` drafts."""

    def __init__(self, requests: int, steps: int) -> None:
        width = steps + 1
        self.requests = torch.arange(requests, dtype=torch.int32)
        self.requests_of_rows = self.requests.repeat_interleave(width).contiguous()
        self.steps_of_rows = torch.arange(width, dtype=torch.int32).repeat(requests)
        self.cumulative = torch.arange(requests + 1, dtype=torch.int32) * width
        self.positions = (_POSITION + torch.arange(width)).repeat(requests)

    def draft_sampled(self, tokens: torch.Tensor) -> torch.Tensor:
        """The token before the drafts, then the drafts, per request, in one row."""
        before = torch.zeros(len(tokens), 1, dtype=torch.int64)
        return torch.cat([before, tokens.to(torch.int64)], 1).reshape(-1)


def _provide_attribute() -> None:
    """On an unpatched tree, give the draft class what PR 51145 gives it, and nothing else."""
    from vllm.models.deepseek_v4.amd.dspark import DSparkDeepseekV4ForCausalLM as Draft

    if not hasattr(Draft, "draft_id_to_target_id"):
        Draft.draft_id_to_target_id = None


def _log_probabilities(weights: list[float], vocab_size: int) -> torch.Tensor:
    padded = weights + [_NEVER] * (vocab_size - len(weights))
    tensor = torch.tensor(padded, dtype=torch.float64)
    return (tensor / tensor.sum()).log()


def _make_draft_predict(draft: Any, target: Any, weights: list[float], temperature: float) -> None:
    """Set the draft's weights so that at `temperature` it predicts `weights` after any token.

    With lm_head zero only the Markov head speaks; its embedding is one number, the same for all.
    """
    vocab_size = target.lm_head.weight.shape[0]
    logits = temperature * _log_probabilities(weights, vocab_size).float()
    head = draft.model.markov_head
    draft.model.norm.weight.fill_(1.0)
    head.markov_w1.weight.zero_()
    head.markov_w1.weight[:, 0] = 1.0
    head.markov_w2.weight.zero_()
    head.markov_w2.weight[:vocab_size, 0] = logits
    for layer in (target.lm_head, head.markov_w2):
        layer.quant_method.process_weights_after_loading(layer)


def _place_requests(speculator: Any, requests: int, steps: int, temperature: float) -> None:
    """Fill the buffers that the input kernel fills, for requests at the same position."""
    drafts = requests * steps
    ids = torch.arange(requests, dtype=torch.int32)
    speculator.sample_indices[:drafts] = torch.arange(drafts)
    speculator.sample_idx_mapping[:drafts] = ids.repeat_interleave(steps)
    speculator.sample_pos[:drafts] = (_POSITION + 1 + torch.arange(steps)).repeat(requests)
    speculator.input_buffers.input_ids[speculator._anchor_idx[:requests]] = 0
    speculator.temperature[:requests] = temperature


def _seeds(seed: int, batch: int, requests: int) -> torch.Tensor:
    """A seed for each request, none given twice in a run."""
    return seed * 1_000_003 + (batch * requests + torch.arange(requests)) * 7919


def _hidden(speculator: Any) -> int:
    return int(speculator.hidden_states.shape[-1])


@contextlib.contextmanager
def _compiled_argmax() -> Iterator[None]:
    """Reduce what holds a NaN by Triton's combine function, not NumPy's NaN-ignoring argmax.

    Without a NaN both give the same, and NumPy is a thousand times faster.
    """
    from triton.language import standard
    from triton.runtime.interpreter import ReduceOps

    combines = (standard._argmax_combine_tie_break_left, standard._argmax_combine_tie_break_fast)
    original = ReduceOps.apply_impl

    def apply_impl(self: Any, values: Any) -> Any:
        if self.combine_fn in combines and np.isnan(values[0].handle.data).any():
            return tuple(self.generic_reduce(values))
        return original(self, values)

    ReduceOps.apply_impl = apply_impl
    try:
        yield
    finally:
        ReduceOps.apply_impl = original


def main() -> None:
    """Answer every question of the file."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # the rehearsal's mends of the interpreter
    amd.stand_on_cpu()
    amd.dispatch_to_amd()
    questions = (*amd_class_parts.QUESTIONS, *amd_class_retrieval.QUESTIONS)
    answer((load, sample, verify_nan, configure, *questions))


if __name__ == "__main__":
    main()
