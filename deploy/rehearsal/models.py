"""Tiny models for the CPU rehearsal, byte for byte the same on every machine.

A Qwen3 target with random weights, and a Qwen3-DSpark draft whose Markov head is the target with
its context taken away: the draft knows which token follows which, the target also knows what came
before, so the target accepts most drafts but not all.

Weights come from SHAKE-256 of the tensor's name and the tokenizer from a word list, both with the
standard library alone: neither torch, numpy, the CPU nor the Python version shows in a file.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from deploy.rehearsal.cache import publish
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.tokenizer import (
    MASK_ID,
    PAD_ID,
    STOP_ID,
    VOCABULARY,
    is_word,
    tokenizer_files,
)
from deploy.rehearsal.weights import (
    NAN_BITS,
    Tensor,
    Weights,
    bits_of,
    normalised,
    ones,
    random,
    safetensors,
    zeros,
)

#: sha256 over every file of the built models (see `content_digest`). It names the folder they are
#: published in, and a build that does not match it is refused with the digest that it has.
CONTENT_DIGEST = "6328c7e17e8c44028892024c9470d60da877d38f7e1c8c54152a2343ab92b9ed"

#: The variant that is served unless a fault asks for another.
HEALTHY = "healthy"
#: Faults that live in the target's weights, each a variant of its own.
NAN_WEIGHTS = "nan-weights"
DEAD_LM_HEAD = "dead-lm-head"
VARIANTS = (HEALTHY, NAN_WEIGHTS, DEAD_LM_HEAD)

# Draft tokens per step. The same as in production (DeepSeek-V4-Flash has dspark_block_size 5).
BLOCK = 5
HIDDEN = 128
_LAYERS = 2
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = 32
_INTERMEDIATE = 256
# Long enough for a probe past the faults seen on gfx942 from 2,048 and from 4-5k tokens on.
POSITIONS = 16384
NORM_EPSILON = 1e-6

# Standard deviations, chosen together: they decide how peaked the target is and how much of it the
# draft cannot see. A larger _CONTEXT_STD lowers the acceptance rate.
_EMBEDDING_STD = 1.0
_PROJECTION_STD = 0.08
_CONTEXT_STD = 0.0125
_LM_HEAD_STD = 0.25

# Feature 0 is the same for every token, so that feature 0 of an lm_head row is that token's bias.
# With it everything that is not a whole word stays unsaid and every answer is readable.
_CONSTANT_FEATURE = 4.0
_UNSAID = -8.0


def publish_models(out: Path) -> Path:
    """Build the models in a folder below ``out`` named after their content, once, and return it.

    The result holds one folder for each of `VARIANTS`, each with ``target`` and ``draft``.

    Raises RehearsalError if ``out`` cannot be written or the bytes are not the expected ones.
    """
    return publish_verified(out, CONTENT_DIGEST, build_models)


def publish_verified(out: Path, digest: str, build: Callable[[Path], None]) -> Path:
    """Publish what ``build`` writes below ``out``, named after the digest that it must have.

    Raises RehearsalError if ``out`` cannot be written or the bytes are not the expected ones.
    """
    return publish(out / digest[:16], partial(_build_verified, digest, build))


def content_digest(folder: Path) -> str:
    """sha256 over the relative path and the bytes of every file below ``folder``, in path order."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def build_models(folder: Path) -> None:
    """Write every variant below ``folder``."""
    target = _target_weights()
    draft = _draft_weights(target)
    for variant in VARIANTS:
        broken = _BREAKAGES[variant](target)
        write_model(folder / variant / "target", _target_config(), broken)
        write_model(folder / variant / "draft", _draft_config(), draft)


def _build_verified(expected: str, build: Callable[[Path], None], folder: Path) -> None:
    build(folder)
    digest = content_digest(folder)
    if digest != expected:
        raise RehearsalError(
            f"rehearsal models: built {digest}, expected {expected}: "
            "the model definition was changed without its digest"
        )


def _target_weights() -> Weights:
    weights: Weights = {"model.embed_tokens.weight": embedding()}
    for index in range(_LAYERS):
        weights |= _layer(f"model.layers.{index}")
    weights["model.norm.weight"] = ones(HIDDEN)
    weights["lm_head.weight"] = lm_head()
    return weights


def _draft_weights(target: Weights) -> Weights:
    """Base logits of zero, and a Markov head made of the target's embedding and lm_head."""
    weights = _layer("layers.0")
    aux_width = HIDDEN * len(_aux_layers())
    weights["fc.weight"] = random("fc.weight", (HIDDEN, aux_width), _PROJECTION_STD)
    weights["hidden_norm.weight"] = ones(HIDDEN)
    weights["norm.weight"] = ones(HIDDEN)
    embedded = target["model.embed_tokens.weight"]
    weights["markov_head.markov_w1.weight"] = normalised(embedded, NORM_EPSILON)
    weights["markov_head.markov_w2.weight"] = target["lm_head.weight"]
    weights["lm_head.weight"] = zeros(len(VOCABULARY), HIDDEN)
    return weights


def _layer(prefix: str) -> Weights:
    """One Qwen3 decoder layer. What it adds to the residual stream is small: see _CONTEXT_STD."""
    query, key = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    projections = {
        "self_attn.q_proj": ((query, HIDDEN), _PROJECTION_STD),
        "self_attn.k_proj": ((key, HIDDEN), _PROJECTION_STD),
        "self_attn.v_proj": ((key, HIDDEN), _PROJECTION_STD),
        "self_attn.o_proj": ((HIDDEN, query), _CONTEXT_STD),
        "mlp.gate_proj": ((_INTERMEDIATE, HIDDEN), _PROJECTION_STD),
        "mlp.up_proj": ((_INTERMEDIATE, HIDDEN), _PROJECTION_STD),
        "mlp.down_proj": ((HIDDEN, _INTERMEDIATE), _CONTEXT_STD),
    }
    norms = {
        "self_attn.q_norm": _HEAD_DIM,
        "self_attn.k_norm": _HEAD_DIM,
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
    }
    weights = {
        f"{prefix}.{name}.weight": random(f"{prefix}.{name}.weight", shape, std)
        for name, (shape, std) in projections.items()
    }
    return weights | {f"{prefix}.{name}.weight": ones(size) for name, size in norms.items()}


def embedding() -> Tensor:
    """A row for each token, whose first feature is the same in all."""
    shape = (len(VOCABULARY), HIDDEN)
    tensor = random("model.embed_tokens.weight", shape, _EMBEDDING_STD)
    constant = bits_of(_CONSTANT_FEATURE)
    for start in range(0, len(tensor.bits), HIDDEN):
        tensor.bits[start] = constant
    return tensor


def lm_head() -> Tensor:
    """A row for each token; only whole words and the stop token are ever likely."""
    tensor = random("lm_head.weight", (len(VOCABULARY), HIDDEN), _LM_HEAD_STD)
    unsaid = bits_of(_UNSAID)
    for token, text in enumerate(VOCABULARY):
        said = token == STOP_ID or is_word(text)
        tensor.bits[token * HIDDEN] = 0 if said else unsaid
    return tensor


def _with_nan_norm(target: Weights) -> Weights:
    norm = target["model.norm.weight"]
    bits = array("H", norm.bits)
    bits[0] = NAN_BITS
    return target | {"model.norm.weight": replace(norm, bits=bits)}


def _with_dead_lm_head(target: Weights) -> Weights:
    return target | {"lm_head.weight": zeros(len(VOCABULARY), HIDDEN)}


_BREAKAGES: Mapping[str, Callable[[Weights], Weights]] = {
    HEALTHY: lambda target: target,
    NAN_WEIGHTS: _with_nan_norm,
    DEAD_LM_HEAD: _with_dead_lm_head,
}


def _aux_layers() -> list[int]:
    """The target layers whose hidden states the draft reads."""
    return [0, _LAYERS - 1]


def _target_config() -> dict[str, Any]:
    return _config("Qwen3ForCausalLM", _LAYERS)


def _draft_config() -> dict[str, Any]:
    reads = {"mask_token_id": MASK_ID, "target_layer_ids": _aux_layers()}
    return _config("Qwen3DSparkModel", 1) | {
        "block_size": BLOCK,
        "dflash_config": reads,
        "markov_rank": HIDDEN,
        "num_target_layers": _LAYERS,
        **reads,
    }


def _config(architecture: str, layers: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "attention_bias": False,
        "bos_token_id": PAD_ID,
        "dtype": "bfloat16",
        "eos_token_id": STOP_ID,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "model_type": "qwen3",
        "num_attention_heads": _HEADS,
        "num_hidden_layers": layers,
        "num_key_value_heads": _KV_HEADS,
        "pad_token_id": PAD_ID,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": len(VOCABULARY),
    }


def write_model(
    folder: Path, config: dict[str, Any], weights: Weights, markup: Sequence[str] = ()
) -> None:
    """Write a model folder; ``markup`` are texts that are one token each."""
    folder.mkdir(parents=True)
    files = {"config.json": config, **tokenizer_files(POSITIONS, markup)}
    for name, content in files.items():
        text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=True)
        (folder / name).write_text(text + "\n", encoding="ascii", newline="\n")
    (folder / "model.safetensors").write_bytes(safetensors(weights))
