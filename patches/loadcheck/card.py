"""Which AMD card vLLM is told it runs on, on a machine without one: a stand-in, in one place.

The platform, the FP8 format and the constants of the architecture are what vLLM's AMD code asks a
card for before it chooses a kernel. `play` answers for a card; kernels then run wherever Triton
runs them. vLLM must stand on the CPU already (`draft.stand_on_cpu`).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Card:
    """What vLLM's AMD code asks of an architecture.

    `is_fnuz`: its matrix cores read FP8 as e4m3fnuz (0x80 is NaN, no negative zero, half the value
    of the same OCP bits), not as OCP's e4m3fn. `lds_bytes`: the local memory of a compute unit.
    """

    arch: str
    is_fnuz: bool
    compute_units: int
    lds_bytes: int


CARDS = {
    "gfx942": Card("gfx942", is_fnuz=True, compute_units=304, lds_bytes=64 << 10),  # MI300X, MI325X
    "gfx950": Card(
        "gfx950", is_fnuz=False, compute_units=256, lds_bytes=160 << 10
    ),  # MI350X, MI355X
}
"""FP8 formats and LDS after AMD's CDNA3 and CDNA4 instruction set guides; units as the recipe has
them."""

_ASKS_THE_PLATFORM = (
    "vllm.model_executor.custom_op",
    "vllm.model_executor.layers.quantization.utils.quant_utils",
    "vllm.model_executor.layers.sparse_attn_indexer",
    "vllm.models.deepseek_v4.amd.model",
    "vllm.models.deepseek_v4.amd.rocm",
    "vllm.models.deepseek_v4.common.ops.cache_utils",
    "vllm.models.deepseek_v4.common.ops.fused_indexer_q",
    "vllm.models.deepseek_v4.compressor",
    "vllm.v1.attention.backends.mla.indexer",
    "vllm.v1.attention.backends.mla.sparse_swa",
    "vllm.v1.attention.ops.rocm_aiter_mla_sparse",
)
"""The modules of the DeepSeek V4 path that hold `current_platform` under their own name."""

_MAY_ASK = (
    *_ASKS_THE_PLATFORM,
    "vllm.model_executor.layers.fused_moe.router.router_factory",
    "vllm.models.deepseek_v4.common.ops.fused_compress_quant_cache",
)
"""The modules that hold it too, or what it said when they were imported, in some releases."""


class _Platform:
    """vLLM's platform as seen from the AMD path: the real one, but for what a card decides."""

    def __init__(self, real: Any, card: Card) -> None:
        self._real, self._card = real, card

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def is_rocm(self) -> bool:
        return True

    def is_cpu(self) -> bool:
        return False

    def is_fp8_fnuz(self) -> bool:
        return self._card.is_fnuz

    def fp8_dtype(self) -> Any:
        return fp8_dtype(self._card)


def fp8_dtype(card: Card) -> Any:
    """The torch type of the FP8 format that the card computes with."""
    import torch

    return torch.float8_e4m3fnuz if card.is_fnuz else torch.float8_e4m3fn


@contextlib.contextmanager
def play(card: Card) -> Iterator[None]:
    """Let the modules of the DeepSeek V4 path see `card`; what they saw before comes back after."""
    platform = _Platform(importlib.import_module("vllm.platforms").current_platform, card)
    answers: dict[str, Any] = {"current_platform": platform, "FP8_DTYPE": fp8_dtype(card)}
    for arch in CARDS:
        is_it = arch == card.arch
        answers[f"_ON_{arch.upper()}"] = is_it
        answers[f"on_{arch}"] = lambda is_it=is_it: is_it
    changes: list[tuple[Any, str, Any]] = [
        (importlib.import_module(name), "current_platform", platform) for name in _ASKS_THE_PLATFORM
    ]
    for module in map(importlib.import_module, _MAY_ASK):
        kept = vars(module).keys() & answers.keys()
        changes += [(module, name, answers[name]) for name in kept]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
