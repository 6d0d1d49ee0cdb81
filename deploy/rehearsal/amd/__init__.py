"""The AMD classes of DeepSeek V4 in the rehearsal's engine, on a machine without a card.

vLLM's own are: engine, scheduler, runner, speculator, sampler, the AMD target and draft through
vLLM's dispatch, their metadata builders, caches and Triton kernels, which are interpreted. What
cannot run here is listed in `substitutes`, with its reason; `guard` ends what asks for more.

`stand.stand` does all of it in a process of vLLM. Without REHEARSAL_ARCH nothing here is imported.
"""
