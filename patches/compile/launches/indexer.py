"""What the sparse indexer launches: the part of the path that the series mends."""

from __future__ import annotations

from inspect import signature
from typing import Any

from patches.compile.launch import launches
from patches.compile.shapes import (
    C4_ROWS,
    INDEX_BYTES,
    INDEX_DIM,
    INDEX_HEADS,
    PREFILLS,
    ROPE_DIM,
    Shapes,
)


@launches("_fused_indexer_q_rope_quant_kernel")
def queries(s: Shapes) -> None:
    """The indexer's queries, rotated and quantized to the card's FP8."""
    from vllm.models.deepseek_v4.common.ops import fused_indexer_q_rope_quant

    fused_indexer_q_rope_quant(
        s.int64(s.max_tokens),
        s.bfloat16(s.max_tokens, INDEX_HEADS, INDEX_DIM),
        s.tensor(s.context, ROPE_DIM),
        s.bfloat16(s.max_tokens, INDEX_HEADS),
        *(INDEX_DIM**-0.5, INDEX_HEADS**-0.5),
    )


@launches("_cp_gather_indexer_quant_cache_kernel")
def prefill_keys(s: Shapes) -> None:
    """The keys of a prefill, gathered out of their pages: flat with the series."""
    from vllm.v1.attention.ops import rocm_aiter_mla_sparse as ops

    rows = s.context // 4
    gather: Any = ops.cp_gather_indexer_k_quant_cache_triton
    is_flat = {"is_flat": True} if "is_flat" in signature(gather).parameters else {}
    gather(
        s.cache(C4_ROWS, INDEX_BYTES),
        s.tensor(rows, INDEX_DIM, dtype=_fp8()),
        s.tensor(rows, 4, dtype="uint8"),
        s.int32(PREFILLS, s.context // s.block_size),
        s.int32(PREFILLS + 1),
        s.int32(rows),
        **is_flat,
    )


@launches("_fp8_mqa_logits_kernel", archs=("gfx942",))
def prefill_scores(s: Shapes) -> None:
    """The scores of a prefill; on gfx950 AITER's kernel makes them."""
    from vllm.v1.attention.ops.triton_fp8_mqa_logits import fp8_mqa_logits_gfx942

    rows, keys = s.max_tokens, s.context // 4
    fp8_mqa_logits_gfx942(
        s.tensor(rows, INDEX_HEADS, INDEX_DIM, dtype=_fp8()),
        s.tensor(keys, INDEX_DIM, dtype=_fp8()),
        s.tensor(keys, 1),
        s.tensor(rows, INDEX_HEADS),
        s.int32(rows),
        s.int32(rows),
    )


@launches("_flat_paged_mqa_logits_kernel", series=True)
def decode_scores(s: Shapes) -> None:
    """The scores of a decode, by the kernel of the series; AITER's is not compiled here."""
    from vllm.v1.attention.ops import rocm_aiter_mla_sparse as ops

    ops.current_workspace_manager = lambda: _Workspace(s)
    ops.flat_paged_mqa_logits(
        s.tensor(s.requests, s.steps + 1, INDEX_HEADS, INDEX_DIM, dtype=_fp8()),
        s.cache(C4_ROWS, INDEX_BYTES).unsqueeze(-2),
        s.tensor(s.verified, INDEX_HEADS),
        s.int32(s.requests, s.steps + 1),
        s.int32(s.requests, s.context // s.block_size),
        s.context // 4,
    )


class _Workspace:
    """Stands for vLLM's workspace manager, which needs an engine."""

    def __init__(self, s: Shapes) -> None:
        self._shapes = s

    def get_simultaneous(self, *wanted: tuple[tuple[int, ...], Any]) -> list[Any]:
        """A tensor of each shape and type."""
        names = [str(dtype).removeprefix("torch.") for _, dtype in wanted]
        return [
            self._shapes.tensor(*sizes, dtype=name)
            for (sizes, _), name in zip(wanted, names, strict=True)
        ]


@launches("_pack_seq_kernel", "_unpack_seq_triton_kernel")
def uneven_decodes(s: Shapes) -> None:
    """Decodes of unequal length laid side by side, and taken apart again."""
    from vllm.triton_utils import triton
    from vllm.v1.attention.ops import common

    rows, width, steps = s.verified, INDEX_HEADS * INDEX_DIM, s.steps + 1
    lengths = s.int32(s.requests)
    common._pack_seq_kernel[(s.requests, 1, triton.cdiv(width, 64))](
        *(s.tensor(rows, width, dtype=_fp8()), s.tensor(s.requests, steps, width, dtype=_fp8())),
        *(lengths, rows, width, steps),
        PAD_VALUE=float("-inf"),
        PAD_IS_UINT8=False,
        BLOCK_T=64,
        BLOCK_D=64,
        num_warps=4,
        num_stages=2,
    )
    common._unpack_seq_triton_kernel[(s.requests, 1, 8)](
        *(s.int32(s.requests, steps, 512), s.int32(rows, 512)),
        *(lengths, s.requests, steps, 512),
        BLOCK_T=64,
        BLOCK_D=64,
        num_warps=4,
        num_stages=2,
    )


def _fp8() -> str:
    """The FP8 type that the card computes with, by vLLM's own platform."""
    from vllm.platforms import current_platform

    return str(current_platform.fp8_dtype()).removeprefix("torch.")
