"""What a model's class can do, asked of it in the process that wants to know.

Why: vLLM asks in a new process for each class, which imports vLLM once more: ten seconds of a first
start, and of every start after that of another tree, whose answers lie in the same place.
Why it is safe: it spares vLLM's process from touching a GPU, and there is none. The module that is
imported is the one that the worker, a fork of this process, needs.
Remove when: a start is no longer bound by imports.
"""


def inspect_here() -> None:
    """Let vLLM's registry call what it would have another process call."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()
