"""What sampling launches: the draft's tokens, their verification, what a request may ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from patches.compile.launch import launches
from patches.compile.shapes import VOCABULARY, Shapes

_BIAS_TOKENS, _STOP_TOKENS, _BAD_TOKENS, _BAD_WORDS = 1024, 128, 1024, 128
_LOGPROBS = 20
"""What a request may ask for at most (0.27.1, v1/worker/gpu/sample; vLLM's --max-logprobs)."""


@launches("_gumbel_sample_kernel")
def draft_tokens(s: Shapes) -> None:
    """The draft's tokens one after another, by the DSpark speculator's own code."""
    from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

    drafted = s.requests * s.steps
    speculator: Any = SimpleNamespace(
        num_speculative_steps=s.steps,
        sample_indices=s.int64(drafted),
        sample_idx_mapping=s.int32(drafted),
        sample_pos=s.int64(drafted),
        input_buffers=SimpleNamespace(input_ids=s.int32(s.max_tokens)),
        _anchor_idx=s.int64(s.max_requests),
        _step_cols=s.int32(s.steps),
        _d2t_scatter_index=None,
        draft_logits=s.tensor(s.max_requests, s.steps, VOCABULARY),
        draft_tokens=s.int64(s.max_requests, s.steps),
        temperature=s.tensor(s.max_requests),
        seeds=s.int64(s.max_requests),
        use_fp64_gumbel=False,
        model=SimpleNamespace(
            compute_draft_logits=lambda _: s.bfloat16(drafted, VOCABULARY),
            markov_embed=lambda tokens: tokens,
            markov_bias=lambda _: s.bfloat16(s.requests, VOCABULARY),
        ),
    )
    DSparkSpeculator._sample_sequential(speculator, s.requests, s.tensor(drafted, 64))


@launches("_gumbel_sample_kernel", "_temperature_kernel", "_min_p_kernel", "_topk_topp_kernel")
def target_tokens(s: Shapes) -> None:
    """The target's own tokens: temperature, min-p, top-k, top-p and the draw."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
    from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
    from vllm.v1.worker.gpu.sample.min_p import apply_min_p

    rows = s.verified
    logits, request = s.tensor(rows, VOCABULARY), s.int32(rows)
    states, seeds = s.tensor(s.max_requests), s.int64(s.max_requests)
    apply_temperature(logits, request, states)
    apply_min_p(logits, request, states)
    k, p = s.int32(rows), s.tensor(rows)
    for asked in ((k, p), (k, None), (None, p)):
        apply_top_k_top_p(logits, *asked)
    positions = s.int64(rows)
    gumbel_sample(logits, request, states, seeds, positions, apply_temperature=False)


@launches(
    "_compute_local_logits_stats_kernel",
    "_rejection_kernel",
    "_resample_kernel",
    "_insert_resampled_kernel",
)
def verification(s: Shapes) -> None:
    """What was drafted is accepted or drawn again."""
    _verify(s, use_block_verification=False)


@launches(
    "_compute_local_logits_stats_kernel",
    "_compute_cumulative_log_p_kernel",
    "_compute_local_residual_mass_kernel",
    "_rejection_kernel",
    "_resample_kernel",
    "_insert_resampled_kernel",
)
def block_verification(s: Shapes) -> None:
    """The same by blocks, which rejection_sample_method "block" asks for."""
    _verify(s, use_block_verification=True)


def _verify(s: Shapes, **options: bool) -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    rows, numbers = s.verified, s.int32(s.verified)
    rejection_sample(
        s.tensor(rows, VOCABULARY),
        s.tensor(s.max_requests, s.steps, VOCABULARY),
        s.int64(rows),
        s.int32(s.requests + 1),
        s.int64(rows),
        s.int32(s.requests),
        *(numbers, numbers, s.tensor(s.max_requests), s.int64(s.max_requests)),
        *(s.steps, None),
        **options,
    )


@launches("_bias_kernel", "_penalties_kernel", "_bincount_kernel", "_bad_words_kernel")
def asked_for(s: Shapes) -> None:
    """Logit bias, allowed and stop tokens, penalties, bad words."""
    from vllm.v1.worker.gpu.sample.bad_words import apply_bad_words
    from vllm.v1.worker.gpu.sample.logit_bias import apply_logit_bias
    from vllm.v1.worker.gpu.sample.penalties import apply_penalties, bincount

    rows = s.verified
    logits, request = s.tensor(rows, VOCABULARY), s.int32(rows)
    numbers, floats = s.int32(s.max_requests), s.tensor(s.max_requests)
    bias = s.int32(s.max_requests, _BIAS_TOKENS)
    apply_logit_bias(
        *(logits, request, s.int64(rows), numbers, bias, numbers, bias),
        s.tensor(s.max_requests, _BIAS_TOKENS),
        *(numbers, numbers, s.int32(s.max_requests, _STOP_TOKENS)),
    )
    mask = s.int32(s.max_requests, -(-VOCABULARY // 32))
    counts = s.int32(s.max_requests, VOCABULARY)
    history = s.int32(s.max_requests, s.context)
    apply_penalties(
        *(logits, request, s.int32(rows), request, floats, floats, floats),
        *(mask, counts),
    )
    requests = s.int32(s.requests)
    bincount(requests, history, numbers, numbers, mask, counts, s.context)
    apply_bad_words(
        *(logits, request, s.int32(s.max_requests, _BAD_TOKENS)),
        s.int32(s.max_requests, _BAD_WORDS + 1),
        *(numbers, history, numbers, numbers, s.int32(rows), request, _BAD_WORDS),
    )


@launches(
    "_topk_log_softmax_kernel",
    "_ranks_kernel",
    "_fill_logprob_token_ids_kernel",
    "_flatten_sampled_kernel",
    "_prompt_logprobs_token_ids_kernel",
)
def logprobs(s: Shapes) -> None:
    """Log probabilities of what was generated and of the prompt, and of tokens that are named."""
    from vllm.v1.worker.gpu.sample import logprob, prompt_logprob
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    rows = s.verified
    logits, tokens = s.tensor(rows, VOCABULARY), s.int64(rows)
    logprob.compute_topk_scores(logits, _LOGPROBS, tokens)
    named: Any = SimpleNamespace(
        num_token_ids=SimpleNamespace(gpu=s.int32(s.max_requests)),
        token_ids=SimpleNamespace(gpu=s.int32(s.max_requests, 128)),
    )
    logprob.compute_topk_scores(*(logits, _LOGPROBS, tokens, None, named, s.int32(rows), 128))
    sampled = s.int64(s.requests, s.steps + 1)
    starts = s.int32(s.requests + 1)
    rejection_sampler._flatten_sampled_kernel[(s.requests,)](
        *(tokens, sampled, sampled.stride(0), s.int32(s.requests), starts),
        num_warps=1,
    )
    prompt_logprob.get_prompt_logprobs_token_ids(
        *(s.max_tokens, starts, s.int32(s.requests)),
        s.int32(s.max_requests),
        s.int32(s.max_requests, s.context),
    )


@launches("_apply_grammar_bitmask_kernel")
def structured_output(s: Shapes) -> None:
    """The tokens that a grammar forbids."""
    from vllm.triton_utils import triton
    from vllm.v1.worker.gpu import structured_outputs

    words = -(-VOCABULARY // 32)
    structured_outputs._apply_grammar_bitmask_kernel[(s.verified, triton.cdiv(VOCABULARY, 8192))](
        *(s.tensor(s.verified, VOCABULARY), VOCABULARY, s.int32(s.verified)),
        *(s.int32(s.verified, words), words, VOCABULARY),
        BLOCK_SIZE=8192,
    )
