"""The path that DeepSeek V4 with DSpark takes on a card: its files, and what is not compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from patches import faults, series
from patches.tree import Tree, read_source

RELEASES = faults.fitting(series.load())
"""The releases whose path this is, those that the series fits: the launches call their wrappers."""

FILES = (
    "vllm/model_executor/kernels/mhc/triton.py",
    "vllm/models/common/ops",
    "vllm/models/deepseek_v4/amd",
    "vllm/models/deepseek_v4/attention.py",
    "vllm/models/deepseek_v4/common",
    "vllm/models/deepseek_v4/compressor.py",
    "vllm/models/deepseek_v4/sparse_mla.py",
    "vllm/v1/attention/backends/mla/compressor_utils.py",
    "vllm/v1/attention/backends/mla/indexer.py",
    "vllm/v1/attention/backends/mla/sparse_swa.py",
    "vllm/v1/attention/ops/common.py",
    "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py",
    "vllm/v1/attention/ops/triton_fp8_mqa_logits.py",
    "vllm/v1/sample/ops/topk_topp_triton.py",
    "vllm/v1/worker/gpu",
    "vllm/v1/worker/utils.py",
)
"""Files and folders: every kernel in them is compiled, or stands in LEFT_OUT."""

_MTP = "of the MTP draft"
_NVIDIA = "of NVIDIA's path"
_MXFP4 = "of the MXFP4 indexer cache, which no profile asks for"
_PARALLEL = "of context parallelism, which no profile asks for"
LEFT_OUT = {
    "CombineTopkSwaIndicesKernel.kernel": _NVIDIA,
    "_build_flashinfer_mixed_sparse_indices_kernel": _NVIDIA,
    "_cache_inputs_kernel": _MTP,
    "_compute_global_topk_indices_and_lens_kernel": _NVIDIA,
    "_correct_attn_cp_out_kernel": _PARALLEL,
    "_dcp_local_seq_lens_kernel": _PARALLEL,
    "_fused_indexer_q_rope_mxfp4_kernel": _MXFP4,
    "_fused_inv_rope_fp8_quant_per_head": _NVIDIA,
    "_fused_kv_compress_norm_rope_insert_indexer_mxfp4_attn": _MXFP4,
    "_fused_mtp_input_rmsnorm_kernel": _MTP,
    "_indexer_k_quant_and_cache_kernel": "of V3.2: V4's compressor writes the keys",
    "_mtp_shared_head_rmsnorm_kernel": _MTP,
    "_num_nans_kernel": "of VLLM_COMPUTE_NANS_IN_LOGITS, which no profile sets",
    "_pad_trailing_draft_slots_kernel": _MTP,
    "_prepare_decode_inputs_kernel": "of other drafts",
    "_prepare_input_buffers_kernel": _MTP,
    "_prepare_input_hidden_states_and_embeddings_kernel": _MTP,
    "_prepare_rope_positions_kernel": "of models that see images",
    "_scatter_num_accepted_kernel": "of models with Mamba layers",
    "_shift_input_embeds_kernel": _MTP,
    "_shift_input_ids_kernel": _MTP,
    "_sparse_attn_decode_ragged_kernel": "of other cards: gfx942 and gfx950 split the keys",
    "_update_draft_inputs_kernel": "of other drafts",
    "quantize_and_insert_k_kernel": "of Intel's path",
}
"""Kernels of those files that a profile's path does not launch, and why."""

NOT_COVERED = (
    "AITER: CK, ASM, HIP and its own Triton kernels, such as FP8 linear layers, the experts with "
    "moe-backend aiter, a prefill's indexer scores on gfx950",
    "HIP ops of vLLM's csrc: norm, rotation and insertion of queries and keys, top-k",
    "the routed experts of other moe-backends, the hyper-connections' mixing, what torch.compile "
    "makes, hipBLASLt, RCCL",
    "whether compiled code is right or fast: no card ran it",
)
"""What a server runs besides, which this does not compile. Said with every result."""


def sources(tree: Tree) -> dict[str, bytes]:
    """The Python files of the path that the tree has, by path. Raises OSError."""
    found: dict[str, bytes] = {}
    for name in FILES:
        place = tree.path(name)
        for file in sorted(_below(place)) if place.is_dir() else [place]:
            if file.is_file():
                found[str(Path("vllm") / file.relative_to(tree.package))] = read_source(file)
    return found


def _below(folder: Path) -> Iterator[Path]:
    """The Python files of a folder, those of linked ones too, which `rglob` leaves out."""
    for held, _, names in os.walk(folder, followlinks=True):
        yield from (Path(held, name) for name in names if name.endswith(".py"))
