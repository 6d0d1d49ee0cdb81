"""A tiny DeepSeek V4 checkpoint with every kind of layer and its DSpark draft, for the AMD classes.

Three target layers: one attends within the sliding window only and routes experts by token (hash
MoE), one attends to every 4th token as its indexer picks them, one to every 128th. All mix four
residual streams (MHC). The draft is in the checkpoint, as `mtp.0`.

What a layer adds to the streams is small, so that the target continues a token mostly as its
embedding and lm_head say; the draft's Markov head is these two, as in `models`. The draft's own
layer is computed and multiplied by a norm of zero: what it finds does not move acceptance, NaN of
it does.
"""

from array import array
from pathlib import Path
from typing import Any

from deploy.rehearsal.models import (
    BLOCK,
    HIDDEN,
    NORM_EPSILON,
    POSITIONS,
    embedding,
    lm_head,
    publish_verified,
    write_model,
)
from deploy.rehearsal.tokenizer import MASK_ID, PAD_ID, STOP_ID, VOCABULARY
from deploy.rehearsal.weights import Tensor, Weights, bits_of, normalised, ones, random, zeros
from patches.loadcheck import tiny

#: As `models.CONTENT_DIGEST`.
CONTENT_DIGEST = "020d2a057e9964500825875d7c15869e511c50974c7ef73613cb419ece51f49d"

RATIOS = (0, 4, 128)
"""Tokens in a compressed row of each target layer; 0 has no compressor."""

#: DeepSeek V4's own chat markup, each text one token as in its tokenizer.
MARKUP = (
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>",
    "<think>",
    "</think>",
    "\uff5cDSML\uff5c",
)

# What AMD's kernels are written for: 448 features with and 64 without a position.
_HEAD_DIM, _INDEX_DIM = 512, 128
_HEADS, _GROUPS = 2, 2
_INDEX_HEADS = 4
_RANK = 32  # of queries and of outputs
_EXPERTS, _INTERMEDIATE = 4, 32
_STREAMS = 4
_MIXES = (2 + _STREAMS) * _STREAMS

# As in `models`: a larger one of the second lowers the acceptance rate.
_PROJECTION_STD = 0.08
_CONTEXT_STD = 0.015
# How much the streams of a token decide how they are mixed.
_MIXING_STD = 0.02


def publish_checkpoint(out: Path) -> Path:
    """Build the checkpoint in a folder below ``out``, once, and return the folder.

    Raises RehearsalError as `models.publish_models` does.
    """
    return publish_verified(out, CONTENT_DIGEST, build_checkpoint)


def build_checkpoint(folder: Path) -> None:
    """Write ``target`` below ``folder``; the draft is in it."""
    write_model(folder / "target", config(), all_weights(), MARKUP)


def config() -> dict[str, Any]:
    """The checkpoint's config.json."""
    quantized = ("quantization_config", "expert_dtype", "torch_dtype")
    plain = {key: value for key, value in tiny.CONFIG.items() if key not in quantized}
    return plain | {
        "bos_token_id": PAD_ID,
        "compress_ratios": list(RATIOS),
        "dspark_block_size": BLOCK,
        "dspark_markov_rank": HIDDEN,
        "dspark_noise_token_id": MASK_ID,
        "dspark_target_layer_ids": _read_by_the_draft(),
        "dtype": "bfloat16",
        "eos_token_id": STOP_ID,
        "hc_mult": _STREAMS,
        "head_dim": _HEAD_DIM,
        "hidden_size": HIDDEN,
        "index_head_dim": _INDEX_DIM,
        "index_n_heads": _INDEX_HEADS,
        "index_topk": 16,
        "intermediate_size": _INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "moe_intermediate_size": _INTERMEDIATE,
        "n_mtp_layers": 1,
        "n_routed_experts": _EXPERTS,
        "num_attention_heads": _HEADS,
        "num_hash_layers": 1,
        "num_hidden_layers": len(RATIOS),
        "o_groups": _GROUPS,
        "o_lora_rank": _RANK,
        "pad_token_id": PAD_ID,
        "q_lora_rank": _RANK,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": NORM_EPSILON,
        "sliding_window": 32,
        "vocab_size": len(VOCABULARY),
    }


def _read_by_the_draft() -> list[int]:
    return [0, len(RATIOS) - 1]


def all_weights() -> Weights:
    """The checkpoint's tensors by name, those of the draft included."""
    embedded, head = embedding(), lm_head()
    weights = {"embed.weight": embedded, "head.weight": head, "norm.weight": ones(HIDDEN)}
    weights |= _head_of_streams("hc_head")
    for index, ratio in enumerate(RATIOS):
        weights |= _layer(f"layers.{index}", ratio, by_token=index == 0)
    draft = _layer("mtp.0", 0, by_token=False) | _head_of_streams("mtp.0.hc_head")
    read = HIDDEN * len(_read_by_the_draft())
    draft |= _projections("mtp.0", {"main_proj": (HIDDEN, read)})
    draft |= {
        "mtp.0.main_norm.weight": ones(HIDDEN),
        "mtp.0.norm.weight": zeros(HIDDEN),
        "mtp.0.markov_head.markov_w1.weight": normalised(embedded, NORM_EPSILON),
        "mtp.0.markov_head.markov_w2.weight": head,
    }
    return weights | draft


def _layer(prefix: str, ratio: int, *, by_token: bool) -> Weights:
    weights = _attention(f"{prefix}.attn") | _experts(f"{prefix}.ffn", by_token=by_token)
    for part in ("attn", "ffn"):
        weights[f"{prefix}.{part}_norm.weight"] = ones(HIDDEN)
        weights |= _mix(f"{prefix}.hc_{part}", _MIXES, 3)
    if ratio:
        weights |= _compressor(f"{prefix}.attn.compressor", ratio, _HEAD_DIM)
    if ratio == 4:
        index = f"{prefix}.attn.indexer"
        weights |= _compressor(f"{index}.compressor", ratio, _INDEX_DIM)
        weights |= _projections(
            index,
            {"wq_b": (_INDEX_HEADS * _INDEX_DIM, _RANK), "weights_proj": (_INDEX_HEADS, HIDDEN)},
        )
    return weights


def _attention(prefix: str) -> Weights:
    shapes = {
        "wq_a": (_RANK, HIDDEN),
        "wkv": (_HEAD_DIM, HIDDEN),
        "wq_b": (_HEADS * _HEAD_DIM, _RANK),
        "wo_a": (_GROUPS * _RANK, _HEADS * _HEAD_DIM // _GROUPS),
    }
    return _projections(prefix, shapes) | {
        f"{prefix}.wo_b.weight": random(
            f"{prefix}.wo_b.weight", (HIDDEN, _GROUPS * _RANK), _CONTEXT_STD
        ),
        f"{prefix}.q_norm.weight": ones(_RANK),
        f"{prefix}.kv_norm.weight": ones(_HEAD_DIM),
        f"{prefix}.attn_sink": zeros(_HEADS),
    }


def _compressor(prefix: str, ratio: int, dim: int) -> Weights:
    """Of 4 tokens, a row is made of two halves that overlap with those of its neighbours."""
    width = dim * (2 if ratio == 4 else 1)
    return _projections(prefix, {"wkv": (width, HIDDEN), "wgate": (width, HIDDEN)}) | {
        f"{prefix}.ape": random(f"{prefix}.ape", (ratio, width), _PROJECTION_STD),
        f"{prefix}.norm.weight": ones(dim),
    }


def _experts(prefix: str, *, by_token: bool) -> Weights:
    weights = _projections(prefix, {"gate": (_EXPERTS, HIDDEN)})
    if by_token:
        weights[f"{prefix}.gate.tid2eid"] = _experts_of_tokens()
    else:
        weights[f"{prefix}.gate.bias"] = zeros(_EXPERTS)
    for expert in (*(f"experts.{n}" for n in range(_EXPERTS)), "shared_experts"):
        name = f"{prefix}.{expert}"
        weights |= _projections(name, dict.fromkeys(("w1", "w3"), (_INTERMEDIATE, HIDDEN)))
        weights[f"{name}.w2.weight"] = random(
            f"{name}.w2.weight", (HIDDEN, _INTERMEDIATE), _CONTEXT_STD
        )
    return weights


def _experts_of_tokens() -> Tensor:
    """Two experts for each token, in turn; loading makes integers of them."""
    pairs = ((token % _EXPERTS, (token + 1) % _EXPERTS) for token in range(len(VOCABULARY)))
    bits = array("H", (bits_of(expert) for pair in pairs for expert in pair))
    return Tensor((len(VOCABULARY), 2), bits)


def _head_of_streams(prefix: str) -> Weights:
    return _mix(prefix, _STREAMS, 1)


def _mix(prefix: str, mixes: int, scales: int) -> Weights:
    return {
        f"{prefix}_fn": random(f"{prefix}_fn", (mixes, _STREAMS * HIDDEN), _MIXING_STD),
        f"{prefix}_base": zeros(mixes),
        f"{prefix}_scale": ones(scales),
    }


def _projections(prefix: str, shapes: dict[str, tuple[int, int]]) -> Weights:
    return {
        f"{prefix}.{name}.weight": random(f"{prefix}.{name}.weight", shape, _PROJECTION_STD)
        for name, shape in shapes.items()
    }
