"""A DeepSeek V4 configuration of a few kB with a DSpark draft, for loading without weights.

The shape follows the fields that vLLM 0.27.1 reads of such a config; the numbers are as small as
its checks allow. FP8 with FP4 experts, as the published checkpoint declares, or plain.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 64
BLOCK = 5

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_hash_layers": 0,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 4,
    "hc_eps": 1e-6,
    "sliding_window": 8,
    "compress_ratios": [0, 0],
    "compress_rope_theta": 160000.0,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 1.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 16384,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 8,
    "dspark_target_layer_ids": [0, 1],
    "dspark_markov_rank": 8,
    "dspark_block_size": BLOCK,
    "dspark_noise_token_id": VOCABULARY - 1,
    "n_mtp_layers": 2,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}

_QUANTIZATION = ("quantization_config", "expert_dtype")


def write_plain(folder: Path, *, vocab_size: int = VOCABULARY, block_size: int = BLOCK) -> Path:
    """Write an unquantized config.json with `block_size` draft tokens a block; return its folder.

    Unquantized, because a CPU has no FP8 kernels to choose from while the layers are made.
    """
    plain = {key: value for key, value in CONFIG.items() if key not in _QUANTIZATION}
    changes = {
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
        "dspark_block_size": block_size,
        "dspark_noise_token_id": vocab_size - 1,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(plain | changes, indent=1), encoding="utf-8")
    return folder
