"""What target and draft launch in a layer's attention, apart from the indexer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from patches.compile.launch import launches
from patches.compile.shapes import (
    C4_ROWS,
    C128_ROWS,
    DRAFT_WINDOW,
    HEAD_DIM,
    HIDDEN,
    INDEX_BYTES,
    INDEX_DIM,
    INDEX_TOPK,
    KV_BYTES,
    MIXES,
    PAGES,
    PREFILLS,
    Q_RANK,
    ROPE_DIM,
    WINDOW,
    WINDOW_ROWS,
    Shapes,
)

_DIMS = {
    "scale": HEAD_DIM**-0.5,
    "head_dim": HEAD_DIM,
    "nope_head_dim": HEAD_DIM - ROPE_DIM,
    "rope_head_dim": ROPE_DIM,
}
_ALIGNED = 128  # to which a prefill's indices are filled up (0.27.1, amd/rocm.py)


@launches("_fused_q_kv_rmsnorm_kernel")
def norms(s: Shapes) -> None:
    """The norms of queries and keys."""
    from vllm.models.common.ops import fused_q_kv_rmsnorm

    both = s.bfloat16(s.max_tokens, Q_RANK + HEAD_DIM)
    q, kv = both.split([Q_RANK, HEAD_DIM], -1)
    weights = s.bfloat16(Q_RANK), s.bfloat16(HEAD_DIM)
    fused_q_kv_rmsnorm(q, kv, *weights, 1e-6)


@launches(
    "_save_partial_states_kernel",
    "_fused_kv_compress_norm_rope_insert_sparse_attn",
    "_fused_kv_compress_norm_rope_insert_indexer_attn",
)
def compressor_overlapping(s: Shapes) -> None:
    """Four tokens become one, for attention and indexer."""
    from vllm.models.deepseek_v4.common.ops.fused_compress_quant_cache import (
        compress_norm_rope_store_triton,
    )

    for dim in (HEAD_DIM, INDEX_DIM):
        compress_norm_rope_store_triton(**_compressed(s, dim, 4))


@launches(
    "_save_partial_states_kernel",
    "_fused_kv_compress_norm_rope_insert_sparse_attn",
    "_compress_gather_split_sparse_attn",
    "_finalize_norm_rope_quant_store_sparse_attn",
)
def compressor_deep(s: Shapes) -> None:
    """128 tokens become one: at once for a decode, in two steps for a prefill."""
    from vllm.models.deepseek_v4.common.ops.fused_compress_quant_cache import (
        compress_norm_rope_store_two_stage_triton,
    )

    for decodes in (s.verified, 0):
        compress_norm_rope_store_two_stage_triton(
            **_compressed(s, HEAD_DIM, 128),
            num_decode_tokens=decodes,
            compress_scratch=s.tensor(s.max_tokens, HEAD_DIM),
        )


def _compressed(s: Shapes, dim: int, ratio: int) -> dict[str, Any]:
    """Store the state of a compressor as its layer does; what it then hands on."""
    from vllm.models.deepseek_v4.common.ops.save_partial_states import save_partial_states

    is_index, overlap = dim == INDEX_DIM, ratio == 4
    width = (1 + overlap) * dim
    rows = C4_ROWS if overlap else C128_ROWS
    state = s.tensor(PAGES, 4 if overlap else 8, 2 * width)
    both = s.bfloat16(s.max_tokens, 2 * width)
    kv, score = both.split([width, width], -1)
    shared: dict[str, Any] = {
        "positions": s.int64(s.max_tokens),
        "slot_mapping": s.int64(s.max_tokens),
        "state_cache": state,
        "block_size": state.shape[1],
        "state_width": width,
        "compress_ratio": ratio,
        "pdl_kwargs": {},
    }
    save_partial_states(kv=kv, score=score, ape=s.tensor(ratio, width), **shared)
    return shared | {
        "num_actual": s.max_tokens,
        "token_to_req_indices": s.int32(s.max_tokens),
        "block_table": s.int32(s.requests, s.context // s.block_size),
        "cos_sin_cache": s.tensor(s.context, ROPE_DIM),
        "kv_cache": s.cache(rows, INDEX_BYTES if is_index else KV_BYTES),
        "k_cache_metadata": SimpleNamespace(slot_mapping=s.int64(s.max_tokens)),
        "head_dim": dim,
        "rope_head_dim": ROPE_DIM,
        "overlap": overlap,
        "use_fp4_cache": False,
        "rms_norm_weight": s.bfloat16(dim),
        "rms_norm_eps": 1e-6,
        "quant_block": 128 if is_index else 64,
        "token_stride": dim if is_index else dim + ROPE_DIM,
        "scale_dim": 4 if is_index else 8,
    }


@launches("_sparse_attn_decode_partial_kernel", "_sparse_attn_decode_reduce_kernel")
def decode(s: Shapes) -> None:
    """A draft's block, which looks at its window only; layers of the target that do so too, that
    look at what their indexer picked as well, or at every 128th position."""
    for requests in {1, s.requests}:
        _decode(s, requests * s.steps, DRAFT_WINDOW, 0)
        for picked in (0, INDEX_TOPK, max(128, s.context // 128)):
            _decode(s, requests * (s.steps + 1), WINDOW, picked)


def _decode(s: Shapes, tokens: int, window: int, picked: int) -> None:
    from vllm.v1.attention.ops.rocm_aiter_mla_sparse import rocm_sparse_attn_decode

    def ragged(width: int) -> tuple[Any, Any]:
        return s.int32(tokens * width), s.int32(tokens + 1)

    window_indices, window_starts = ragged(window)
    picked_indices, picked_starts = ragged(picked) if picked else (None, None)
    rows = C128_ROWS if picked > INDEX_TOPK else C4_ROWS
    rocm_sparse_attn_decode(
        q=s.bfloat16(tokens, s.heads, HEAD_DIM),
        kv_cache=s.cache(rows, KV_BYTES) if picked else None,
        swa_k_cache=s.cache(WINDOW_ROWS, KV_BYTES),
        swa_only=not picked,
        topk_indices=None,
        topk_lens=s.int32(tokens),
        swa_indices=s.int32(tokens, 1, window),
        swa_lens=s.int32(tokens),
        swa_ragged_indices=window_indices,
        swa_ragged_indptr=window_starts,
        topk_ragged_indices=picked_indices,
        topk_ragged_indptr=picked_starts,
        attn_sink=s.tensor(s.heads),
        output=s.bfloat16(tokens, s.heads, HEAD_DIM),
        **_DIMS,
    )


@launches("_dequantize_and_gather_k_kernel")
def prefill_gather(s: Shapes) -> None:
    """The keys of a prefill, from the compressed cache and from the window's."""
    from vllm.models.deepseek_v4.common.ops import dequantize_and_gather_k_cache
    from vllm.platforms import current_platform

    keys = s.bfloat16(PREFILLS, _workspace(s, 4), HEAD_DIM)
    lengths = s.int32(PREFILLS)
    table = s.int32(PREFILLS, s.context // s.block_size)
    for rows, gathered, offset, is_fnuz in (
        (C4_ROWS, None, 0, False),
        (C128_ROWS, None, 0, False),
        (WINDOW_ROWS, lengths, s.context // 4, current_platform.is_fp8_fnuz()),
    ):
        dequantize_and_gather_k_cache(
            keys,
            s.cache(rows, KV_BYTES),
            seq_lens=lengths,
            gather_lens=gathered,
            block_table=table,
            block_size=rows,
            offset=offset,
            use_fnuz=is_fnuz,
        )


@launches("_combine_topk_swa_indices_kernel")
def prefill_indices(s: Shapes) -> None:
    """What each token of a prefill looks at: window and picked, strided, or window only."""
    from vllm.models.deepseek_v4.amd.rocm import combine_topk_swa_indices

    lengths, starts = s.int32(PREFILLS), s.int32(PREFILLS + 1)
    strided = max(128, s.context // 128)
    for ratio, top, width in (
        (4, INDEX_TOPK, INDEX_TOPK),
        (128, strided, strided),
        (1, 0, INDEX_TOPK),
    ):
        combine_topk_swa_indices(
            s.int32(s.max_tokens, width),
            *(starts, lengths, lengths, WINDOW, ratio, top, _workspace(s, ratio)),
            s.context // ratio if top else 0,
        )


@launches("_sparse_attn_prefill_ragged_kernel", "_pack_dense_prefix_to_ragged_kernel")
def prefill_attention(s: Shapes) -> None:
    """A prefill's attention over what was gathered."""
    from vllm.v1.attention.ops.rocm_aiter_mla_sparse import rocm_sparse_attn_prefill

    looked_at = -(-(INDEX_TOPK + WINDOW) // _ALIGNED) * _ALIGNED
    rocm_sparse_attn_prefill(
        q=s.bfloat16(s.max_tokens, s.heads, HEAD_DIM),
        kv=s.bfloat16(PREFILLS * _workspace(s, 4), 1, HEAD_DIM),
        indices=s.int32(s.max_tokens, looked_at),
        topk_length=s.int32(s.max_tokens),
        attn_sink=s.tensor(s.heads),
        output=s.bfloat16(s.max_tokens, s.heads, HEAD_DIM),
        **_DIMS,
    )


def _workspace(s: Shapes, ratio: int) -> int:
    """Rows of a prefill's gathered keys (0.27.1, amd/rocm.py)."""
    return (s.context // ratio if ratio > 1 else 0) + WINDOW + s.max_tokens


@launches("_compute_topk_lens_kernel", "_pack_global_topk_ragged_kernel")
def picked_slots(s: Shapes) -> None:
    """The slots of what the indexer picked for a decode."""
    from vllm.models.deepseek_v4.amd.rocm import compute_global_topk_ragged_indices_and_indptr

    compute_global_topk_ragged_indices_and_indptr(
        s.int32(s.verified, INDEX_TOPK),
        s.int32(s.max_tokens),
        s.int32(s.requests, s.context // s.block_size),
        s.block_size // 4,
        s.tensor(s.max_tokens, dtype="bool"),
    )


@launches("_inverse_rope_gptj_kernel")
def inverse_rope(s: Shapes) -> None:
    """The rotation taken off again before the output projection."""
    from vllm.v1.attention.ops.rocm_aiter_mla_sparse import _fused_inverse_rope_gptj

    heads = s.bfloat16(s.max_tokens, s.heads, HEAD_DIM)
    positions = s.int64(s.max_tokens)
    _fused_inverse_rope_gptj(heads, positions, s.tensor(s.context, ROPE_DIM), ROPE_DIM)


@launches("_rmsnorm_nw_kernel", "_hc_head_reduce_store_kernel")
def connections_head(s: Shapes) -> None:
    """The hyper-connections become one hidden state."""
    from vllm.model_executor.kernels.mhc.triton import _hc_head_triton

    _hc_head_triton(
        s.bfloat16(s.max_tokens, MIXES, HIDDEN),
        s.tensor(MIXES, MIXES * HIDDEN),
        *(s.tensor(1), s.tensor(MIXES)),
        s.bfloat16(s.max_tokens, HIDDEN),
        *(HIDDEN, 1e-6, 1e-6, MIXES),
    )
