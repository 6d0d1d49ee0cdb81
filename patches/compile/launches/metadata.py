"""What the attention's metadata builders launch once a step."""

from __future__ import annotations

from patches.compile.launch import launches
from patches.compile.shapes import DRAFT_WINDOW, INDEX_TOPK, PREFILLS, WINDOW, WINDOW_ROWS, Shapes


@launches("ComputePrefillMetadataKernel.kernel")
def window_prefills(s: Shapes) -> None:
    """How much of the window each prefill gathers."""
    from vllm.v1.attention.backends.mla import sparse_swa

    lengths, starts = s.int32(s.max_requests), s.int32(s.max_requests + 1)
    for prefills in (1, PREFILLS):
        sparse_swa._COMPUTE_PREFILL_METADATA_KERNEL(lengths, lengths, starts, prefills, 0, WINDOW)


@launches("_compute_swa_indices_and_lens_kernel", "_compute_dspark_noncausal_swa_indices_kernel")
def window_indices(s: Shapes) -> None:
    """The slots of each token's window, for target and draft."""
    from vllm.v1.attention.backends.mla import sparse_swa

    rows, valid = s.int32(s.max_tokens), s.tensor(s.max_tokens, dtype="bool")
    starts, lengths = s.int32(s.max_requests + 1), s.int32(s.max_requests)
    table = s.int32(s.max_requests, s.context // WINDOW_ROWS)
    shared = (starts, lengths, rows, valid, table, table.stride(0), WINDOW_ROWS)
    for offset in (0, s.verified):
        found = s.int32(s.max_tokens, 1, WINDOW)
        sparse_swa._compute_swa_indices_and_lens_kernel[(s.max_tokens,)](
            *(found, found.stride(0), rows, WINDOW, *shared),
            token_offset=offset,
            TRITON_BLOCK_SIZE=1024,
        )
    found = s.int32(s.max_tokens, 1, DRAFT_WINDOW)
    sparse_swa._compute_dspark_noncausal_swa_indices_kernel[(s.requests * s.steps,)](
        *(found, found.stride(0), rows, WINDOW, DRAFT_WINDOW, *shared),
        token_offset=0,
        TRITON_BLOCK_SIZE=1024,
    )


@launches("_build_c128a_topk_metadata_kernel")
def strided_indices(s: Shapes) -> None:
    """Every 128th position, which the layers without an indexer look at."""
    from vllm.models.deepseek_v4.sparse_mla import build_c128a_topk_metadata

    width = max(128, s.context // 128)
    build_c128a_topk_metadata(
        s.int64(s.max_tokens),
        128,
        s.verified,
        s.int32(s.max_tokens),
        s.int32(s.requests, s.context // s.block_size),
        s.block_size // 128,
        s.int64(s.max_tokens),
        s.int32(s.max_tokens, width),
        s.int32(s.max_tokens),
        s.int32(s.max_tokens, width),
        width,
    )


@launches("_compressed_slot_mapping_kernel")
def compressed_slots(s: Shapes) -> None:
    """The slots of compressed tokens."""
    from vllm.v1.attention.backends.mla.compressor_utils import get_compressed_slot_mapping

    for ratio in (4, 128):
        get_compressed_slot_mapping(
            s.max_tokens,
            s.int32(s.requests + 1),
            s.int32(s.requests),
            s.int32(s.requests, s.context // s.block_size),
            s.block_size // ratio,
            ratio,
            out=s.int64(s.max_tokens),
        )


@launches("_prepare_uniform_decode_kernel", "BuildPrefillChunkMetadataKernel.kernel")
def indexer_steps(s: Shapes) -> None:
    """A decode's rows one by one, and the rows of a prefill's chunk."""
    from vllm.v1.attention.backends.mla import indexer

    rows, table = s.verified, s.int32(s.verified, s.context // s.block_size)
    numbers = s.int32(rows)
    indexer._prepare_uniform_decode_kernel[(rows,)](
        *(s.int32(s.requests), numbers, table, table.stride(0)),
        *(table, table.stride(0), numbers, s.steps + 1),
        BLOCK_SIZE=1024,
    )
    chunk = [s.int32(s.max_tokens)] * 7
    indexer._BUILD_PREFILL_CHUNK_METADATA_KERNEL(
        *(*chunk, 0, s.max_tokens, 0, 1, 1), num_reqs=PREFILLS, COMPRESS_RATIO=4
    )


@launches("_fill_short_context_topk_indices")
def short_contexts(s: Shapes) -> None:
    """Up to 2,048 tokens every compressed one is picked."""
    from vllm.models.deepseek_v4 import attention

    attention._fill_short_context_topk_indices[(s.verified,)](
        s.int32(s.max_tokens, INDEX_TOPK),
        s.int64(s.max_tokens),
        TOP_K=INDEX_TOPK,
        COMPRESS_RATIO=4,
        PADDED_TOP_K=INDEX_TOPK,
        num_warps=8,
    )
