"""What the V2 model runner launches around a forward: inputs, block tables, the draft's inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from patches.compile.launch import launches
from patches.compile.shapes import PAGE_STRIDE, VOCABULARY, WINDOW_ROWS, Shapes

# Block tables: sliding window, the two compressed caches and their states.
_GROUPS = 5
# Caches of all layers, about: a divisor in the kernel that zeroes them, and nothing else.
_CACHES = 64


@launches(
    "_prepare_prefill_inputs_kernel",
    "_prepare_pos_seq_lens_kernel",
    "_combine_sampled_and_draft_tokens_kernel",
    "_expand_idx_mapping_kernel",
)
def step_inputs(s: Shapes) -> None:
    """Tokens, positions and lengths of a step."""
    from vllm.v1.worker.gpu import input_batch as batch

    tokens, requests = s.int32(s.max_tokens), s.int32(s.requests)
    starts = s.int32(s.requests + 1)
    lengths = s.int32(s.max_requests)
    history = s.int32(s.max_requests, s.context)
    ahead = s.int32(1, s.max_requests)
    batch.prepare_prefill_inputs(tokens, ahead, requests, starts, history, lengths, lengths)
    positions = s.int64(s.max_tokens)
    batch.prepare_pos_seq_lens(requests, starts, lengths, positions, lengths)
    sampled = s.int64(s.max_requests)
    drafted = s.int64(s.max_requests, s.steps)
    batch.combine_sampled_and_draft_tokens(
        tokens, requests, sampled, starts, lengths, lengths, drafted, starts, s.verified
    )
    batch.expand_idx_mapping(requests, s.verified, starts, s.steps + 1)


@launches(
    "_get_num_sampled_and_rejected_kernel",
    "_post_update_kernel",
    "_post_update_num_computed_tokens_kernel",
)
def step_results(s: Shapes) -> None:
    """What a step leaves in the states of its requests."""
    from vllm.v1.worker.gpu import input_batch as batch

    requests, starts = s.int32(s.requests), s.int32(s.requests + 1)
    states = s.int32(s.max_requests)
    batch.get_num_sampled_and_rejected(requests, requests, starts, requests, states)
    batch.post_update(
        requests,
        states,
        s.int64(s.max_requests),
        s.int32(s.max_requests, VOCABULARY),
        s.int64(s.requests, s.steps + 1),
        requests,
        requests,
        starts,
        s.int32(s.max_requests, s.context),
        states,
    )
    batch.post_update_num_computed_tokens(requests, states, starts)


@launches("_gather_block_tables_kernel", "_compute_slot_mappings_kernel")
def block_tables(s: Shapes) -> None:
    """The pages of a step's requests, and the slots of its tokens."""
    from vllm.v1.worker.gpu.block_table import BlockTables

    pages = s.context // s.block_size
    requests = s.int32(s.requests)
    held: Any = SimpleNamespace(
        num_kv_cache_groups=_GROUPS,
        input_block_tables=[s.int32(s.max_requests, pages)] * _GROUPS,
        block_table_ptrs=s.tensor(_GROUPS, dtype="uint64"),
        input_block_table_ptrs=s.tensor(_GROUPS, dtype="uint64"),
        block_table_strides=s.int64(_GROUPS),
        num_blocks=SimpleNamespace(gpu=s.int32(_GROUPS, s.max_requests)),
        slot_mappings=s.int64(_GROUPS, s.max_tokens),
        block_sizes_tensor=s.int32(_GROUPS),
        cp_rank=0,
        cp_size=1,
        cp_interleave=1,
    )
    BlockTables.gather_block_tables(held, requests, s.requests)
    starts, positions = s.int32(s.requests + 1), s.int64(s.max_tokens)
    BlockTables.compute_slot_mappings(held, requests, starts, positions, s.max_tokens)


@launches("_apply_write_kernel")
def staged_writes(s: Shapes) -> None:
    """What the host changes in tensors of the card: one of them, and all block tables at once."""
    from vllm.v1.worker.gpu import buffer_utils as buffers

    write = buffers._apply_write_kernel[(s.requests,)]
    rows = s.int32(s.max_requests)
    for kind in ("int32", "float32"):
        table, contents = s.tensor(s.max_requests, 1024, dtype=kind), s.tensor(1024, dtype=kind)
        write(
            *(table, table.stride(0), rows, rows, contents, rows, None),
            BLOCK_SIZE=1024,
            MULTI_GROUP=False,
        )
    pointers, strides = s.tensor(_GROUPS, dtype="uint64"), s.int64(_GROUPS)
    write(
        *(pointers, strides, rows, rows, s.int32(1024), rows, rows),
        BLOCK_SIZE=1024,
        MULTI_GROUP=True,
    )


@launches("_zero_kv_blocks_kernel")
def zeroed_pages(s: Shapes) -> None:
    """New pages, zeroed because the caches of a block differ in type: FP8 keys, float32 states."""
    from vllm.utils.math_utils import largest_power_of_2_divisor
    from vllm.v1.worker import utils

    words = PAGE_STRIDE // 4
    size = min(largest_power_of_2_divisor(words), 1024)
    utils._zero_kv_blocks_kernel[(s.requests * _CACHES * (words // size),)](
        s.tensor(_CACHES, dtype="uint64"),
        s.int64(_CACHES),
        s.int64(s.requests),
        s.requests,
        N_SEGS=_CACHES,
        MAX_CHUNKS=words // size,
        BLOCK_SIZE=size,
    )


@launches("_prepare_dflash_inputs_kernel")
def draft_inputs(s: Shapes) -> None:
    """The draft's block of each request, after a decode step and after a prefill."""
    import numpy as np
    from vllm.v1.worker.gpu.spec_decode.dflash.speculator import prepare_dflash_inputs

    drafted = s.max_requests * s.steps
    numbers, states = s.int32(s.requests), s.tensor(s.max_requests)
    lengths, seeds = s.int32(s.max_requests), s.int64(s.max_requests)
    positions, tokens = s.int64(s.max_tokens), s.int32(s.max_tokens)
    buffers: Any = SimpleNamespace(
        input_ids=tokens,
        positions=positions,
        query_start_loc=s.int32(s.max_requests + 1),
        seq_lens=lengths,
    )
    for scheduled in (s.steps + 1, s.max_tokens):
        batch: Any = SimpleNamespace(
            num_reqs=s.requests,
            num_scheduled_tokens=np.full(s.requests, scheduled),
            positions=positions,
            query_start_loc=s.int32(s.requests + 1),
            idx_mapping=numbers,
        )
        prepare_dflash_inputs(
            buffers,
            *(positions, positions, positions),
            *(s.int64(drafted), s.int64(drafted)),
            s.int32(drafted),
            *(states, seeds, batch, numbers, numbers, seeds, lengths, states, seeds),
            s.int32(s.max_requests, s.context // WINDOW_ROWS),
            WINDOW_ROWS,
            VOCABULARY - 1,
            *(s.steps, s.steps, s.max_requests, s.max_tokens, s.context),
            sample_from_anchor=True,
        )
