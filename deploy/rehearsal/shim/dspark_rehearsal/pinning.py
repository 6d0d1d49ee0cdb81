"""Guided decoding on a machine whose PyTorch pins no memory.

Why: for every step of a request with a schema vLLM 0.27.1 makes a tensor in pinned memory, which
PyTorch refuses without an accelerator: the first such request ends the engine. The other places
that pin are mended by vLLM's own CPU runner.
Why it is safe: pinning changes where a tensor lies, never what it holds.
Remove when: vLLM's CPU runner answers a request with a JSON schema by itself.
"""

import functools
from typing import Any


def pin_nothing() -> None:
    """Let `torch.tensor` pass over `pin_memory`, once in a process."""
    import torch

    made = torch.tensor
    if hasattr(made, "__wrapped__"):
        return

    @functools.wraps(made)
    def tensor(*values: Any, **how: Any) -> Any:
        return made(*values, **{**how, "pin_memory": False})

    torch.tensor = tensor
