"""Sampling with top_k or top_p, without the Triton kernel that vLLM takes for it on a CPU.

Why: the interpreter of Triton 3.9.0 cannot run that kernel, whose loop index it gives as a Python
integer and which calls a method of it: the first request with either setting ends the engine. Nor
could a rehearsal wait for it: mended, it takes most of a second a step.
Why it is safe: on a GPU vLLM itself masks fewer than eight rows by PyTorch's sort.
Remove when: vLLM does so on a CPU that has Triton.
"""

from typing import Any


def mask_by_sorting() -> None:
    """Let vLLM mask by sorting, whatever the number of rows."""
    from vllm.v1.sample.ops import topk_topp_sampler

    by_sorting = topk_topp_sampler.apply_top_k_top_p_pytorch

    # What later releases say beside it is for the speed of that kernel.
    def mask(logits: Any, k: Any, p: Any, **_of_speed: Any) -> Any:
        return by_sorting(logits, k, p, allow_cpu_sync=True)

    topk_topp_sampler.apply_top_k_top_p_triton = mask
