"""Tiny models for the CPU rehearsal, byte for byte the same on every machine.

A Qwen3 target with random weights, and a Qwen3-DSpark draft whose Markov head is the target with
its context taken away: the draft knows which token follows which, the target also knows what came
before, so the target accepts most drafts but not all.

Weights come from SHAKE-256 of the tensor's name and the tokenizer from a word list, both with the
standard library alone: neither torch, numpy, the CPU nor the Python version shows in a file.
"""

from __future__ import annotations  # array[int] is not subscriptable at run time before 3.12

import hashlib
import json
import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import add
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
_BLOCK = 5
_HIDDEN = 128
_LAYERS = 2
_HEADS = 4
_KV_HEADS = 2
_HEAD_DIM = 32
_INTERMEDIATE = 256
# Long enough for a probe past the faults seen on gfx942 from 2,048 and from 4-5k tokens on.
_POSITIONS = 16384
_NORM_EPSILON = 1e-6

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

_NAN_BITS = 0x7FC0
_ONE_BITS = 0x3F80
# The sum of two uniform bytes is triangular with this mean and standard deviation.
_BYTE_SUM_MEAN = 255
_BYTE_SUM_STD = math.sqrt(2 * (256**2 - 1) / 12)


@dataclass(frozen=True)
class Tensor:
    """A bfloat16 tensor: its shape, and its values as bit patterns in row order."""

    shape: tuple[int, ...]
    bits: array[int]

    def rows(self) -> Iterable[list[float]]:
        """The rows of a matrix as floats."""
        values = [_float(pattern) for pattern in self.bits]
        width = self.shape[-1]
        return (values[start : start + width] for start in range(0, len(values), width))


Weights = dict[str, Tensor]


def publish_models(out: Path) -> Path:
    """Build the models in a folder below ``out`` named after their content, once, and return it.

    The result holds one folder for each of `VARIANTS`, each with ``target`` and ``draft``.

    Raises RehearsalError if ``out`` cannot be written or the bytes are not the expected ones.
    """
    return publish(out / CONTENT_DIGEST[:16], _build_verified)


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
        _write_model(folder / variant / "target", _target_config(), broken)
        _write_model(folder / variant / "draft", _draft_config(), draft)


def _build_verified(folder: Path) -> None:
    build_models(folder)
    digest = content_digest(folder)
    if digest != CONTENT_DIGEST:
        raise RehearsalError(
            f"rehearsal models: built {digest}, expected {CONTENT_DIGEST}: "
            "the model definition was changed without its CONTENT_DIGEST"
        )


def _target_weights() -> Weights:
    weights: Weights = {"model.embed_tokens.weight": _embedding()}
    for index in range(_LAYERS):
        weights |= _layer(f"model.layers.{index}")
    weights["model.norm.weight"] = _ones(_HIDDEN)
    weights["lm_head.weight"] = _lm_head()
    return weights


def _draft_weights(target: Weights) -> Weights:
    """Base logits of zero, and a Markov head made of the target's embedding and lm_head."""
    weights = _layer("layers.0")
    aux_width = _HIDDEN * len(_aux_layers())
    weights["fc.weight"] = _random("fc.weight", (_HIDDEN, aux_width), _PROJECTION_STD)
    weights["hidden_norm.weight"] = _ones(_HIDDEN)
    weights["norm.weight"] = _ones(_HIDDEN)
    embedding = target["model.embed_tokens.weight"]
    weights["markov_head.markov_w1.weight"] = _normalised(embedding)
    weights["markov_head.markov_w2.weight"] = target["lm_head.weight"]
    weights["lm_head.weight"] = _zeros(len(VOCABULARY), _HIDDEN)
    return weights


def _layer(prefix: str) -> Weights:
    """One Qwen3 decoder layer. What it adds to the residual stream is small: see _CONTEXT_STD."""
    query, key = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    projections = {
        "self_attn.q_proj": ((query, _HIDDEN), _PROJECTION_STD),
        "self_attn.k_proj": ((key, _HIDDEN), _PROJECTION_STD),
        "self_attn.v_proj": ((key, _HIDDEN), _PROJECTION_STD),
        "self_attn.o_proj": ((_HIDDEN, query), _CONTEXT_STD),
        "mlp.gate_proj": ((_INTERMEDIATE, _HIDDEN), _PROJECTION_STD),
        "mlp.up_proj": ((_INTERMEDIATE, _HIDDEN), _PROJECTION_STD),
        "mlp.down_proj": ((_HIDDEN, _INTERMEDIATE), _CONTEXT_STD),
    }
    norms = {
        "self_attn.q_norm": _HEAD_DIM,
        "self_attn.k_norm": _HEAD_DIM,
        "input_layernorm": _HIDDEN,
        "post_attention_layernorm": _HIDDEN,
    }
    weights = {
        f"{prefix}.{name}.weight": _random(f"{prefix}.{name}.weight", shape, std)
        for name, (shape, std) in projections.items()
    }
    return weights | {f"{prefix}.{name}.weight": _ones(size) for name, size in norms.items()}


def _embedding() -> Tensor:
    shape = (len(VOCABULARY), _HIDDEN)
    tensor = _random("model.embed_tokens.weight", shape, _EMBEDDING_STD)
    constant = _bits(_CONSTANT_FEATURE)
    for start in range(0, len(tensor.bits), _HIDDEN):
        tensor.bits[start] = constant
    return tensor


def _lm_head() -> Tensor:
    tensor = _random("lm_head.weight", (len(VOCABULARY), _HIDDEN), _LM_HEAD_STD)
    unsaid = _bits(_UNSAID)
    for token, text in enumerate(VOCABULARY):
        said = token == STOP_ID or is_word(text)
        tensor.bits[token * _HIDDEN] = 0 if said else unsaid
    return tensor


def _normalised(matrix: Tensor) -> Tensor:
    """Each row divided by its root mean square, as the target's final norm does.

    math.fsum, because the rounding of sum() changed in Python 3.12.
    """
    bits = array("H")
    for row in matrix.rows():
        mean_square = math.fsum(value * value for value in row) / len(row)
        scale = math.sqrt(mean_square + _NORM_EPSILON)
        bits.extend(_bits(value / scale) for value in row)
    return Tensor(matrix.shape, bits)


def _with_nan_norm(target: Weights) -> Weights:
    norm = target["model.norm.weight"]
    bits = array("H", norm.bits)
    bits[0] = _NAN_BITS
    return target | {"model.norm.weight": replace(norm, bits=bits)}


def _with_dead_lm_head(target: Weights) -> Weights:
    return target | {"lm_head.weight": _zeros(len(VOCABULARY), _HIDDEN)}


_BREAKAGES: Mapping[str, Callable[[Weights], Weights]] = {
    HEALTHY: lambda target: target,
    NAN_WEIGHTS: _with_nan_norm,
    DEAD_LM_HEAD: _with_dead_lm_head,
}


def _random(name: str, shape: tuple[int, int], std: float) -> Tensor:
    """A matrix with this standard deviation, drawn from SHAKE-256 of its name."""
    count = math.prod(shape)
    stream = hashlib.shake_256(name.encode()).digest(2 * count)
    table = [_bits((total - _BYTE_SUM_MEAN) * std / _BYTE_SUM_STD) for total in range(511)]
    sums = map(add, stream[:count], stream[count:])
    return Tensor(shape, array("H", map(table.__getitem__, sums)))


def _ones(size: int) -> Tensor:
    return Tensor((size,), array("H", [_ONE_BITS]) * size)


def _zeros(rows: int, columns: int) -> Tensor:
    return Tensor((rows, columns), array("H", [0]) * (rows * columns))


def _bits(value: float) -> int:
    """The bfloat16 pattern of a finite number, rounded to nearest, ties to even."""
    (pattern,) = struct.unpack("<I", struct.pack("<f", value))
    return int((pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16)


def _float(bits: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return float(value)


def _aux_layers() -> list[int]:
    """The target layers whose hidden states the draft reads."""
    return [0, _LAYERS - 1]


def _target_config() -> dict[str, Any]:
    return _config("Qwen3ForCausalLM", _LAYERS)


def _draft_config() -> dict[str, Any]:
    reads = {"mask_token_id": MASK_ID, "target_layer_ids": _aux_layers()}
    return _config("Qwen3DSparkModel", 1) | {
        "block_size": _BLOCK,
        "dflash_config": reads,
        "markov_rank": _HIDDEN,
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
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "max_position_embeddings": _POSITIONS,
        "model_type": "qwen3",
        "num_attention_heads": _HEADS,
        "num_hidden_layers": layers,
        "num_key_value_heads": _KV_HEADS,
        "pad_token_id": PAD_ID,
        "rms_norm_eps": _NORM_EPSILON,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": len(VOCABULARY),
    }


def _write_model(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    folder.mkdir(parents=True)
    for name, content in {"config.json": config, **tokenizer_files(_POSITIONS)}.items():
        text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=True)
        (folder / name).write_text(text + "\n", encoding="ascii", newline="\n")
    (folder / "model.safetensors").write_bytes(_safetensors(weights))


def _safetensors(weights: Weights) -> bytes:
    """The safetensors container: length of the header, JSON header, values, all little-endian."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    values = bytearray()
    for name, tensor in weights.items():
        start = len(values)
        values += _little_endian(tensor.bits)
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [start, len(values)],
        }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(values)


def _little_endian(bits: array[int]) -> bytes:
    if sys.byteorder == "little":
        return bits.tobytes()
    swapped = array("H", bits)
    swapped.byteswap()
    return swapped.tobytes()
