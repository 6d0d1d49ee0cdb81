"""Engine and worker that nap while they wait for each other.

Why: for a second after each message vLLM's reader looks for the next one without a pause, so that
a step costs the process that waits as much CPU as the one that works. A host with cards has cores
to spare for that; a rehearsal has two, and computes on them.
Why it is safe: the reader looks as before, after a nap instead of at once.
Remove when: vLLM's readers sleep on a CPU by themselves.
"""

import time

NAP_S = 0.0005  # a step takes 30 ms and more


def nap() -> None:
    """Let vLLM's message queues nap where they yielded the processor."""
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = lambda: time.sleep(NAP_S)
