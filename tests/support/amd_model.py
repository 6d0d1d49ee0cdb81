"""The tiny DeepSeek V4 of `tiny_v4`, unquantized and with a vocabulary to choose, for statistics."""

import json
from pathlib import Path

from tests.support.tiny_v4 import CONFIG

_QUANTIZATION = ("quantization_config", "expert_dtype")


def write(folder: Path, *, vocab_size: int, block_size: int) -> Path:
    """Write a config.json with `block_size` draft tokens per block, and return its folder."""
    plain = {key: value for key, value in CONFIG.items() if key not in _QUANTIZATION}
    changes = {
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
        "dspark_block_size": block_size,
        "dspark_noise_token_id": vocab_size - 1,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(plain | changes, indent=1), encoding="utf-8")
    return folder
