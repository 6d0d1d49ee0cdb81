"""Runs inside the rehearsal's vLLM, stood on an AMD card: what stands for a kernel, asked by tests.

Usage: python -P amd_substitutes_driver.py QUESTIONS ANSWERS, as `amd_class_driver`. The first
question's architecture is stood on; the others are played.
"""

import functools
import importlib.util
from typing import Any

import torch

from deploy.rehearsal.amd import guard, stand
from patches.loadcheck import card as cards
from tests.support.asked import answer

_PAGE, _HEADS = 4, 2


def ask_for(arch: str, names: list[str]) -> dict[str, str]:
    """What comes of asking for operators (NAMESPACE.NAME) or modules of AITER; "" if it is there."""
    stand.stand(arch)
    told = {}
    for name in names:
        try:
            if name.startswith("import "):
                importlib.import_module(name.removeprefix("import "))
            else:
                functools.reduce(getattr, name.split("."), torch.ops)
            told[name] = ""
        except (guard.NotListed, guard.AiterNotListed) as error:
            told[name] = str(error)
    return told


def has(arch: str, names: list[str]) -> dict[str, bool]:
    """Whether operators are said to be there, as vLLM asks before it takes another way."""
    stand.stand(arch)
    found = (name.rpartition(".") for name in names)
    return {
        f"{space}.{operator}": hasattr(getattr(torch.ops, space), operator)
        for space, _, operator in found
    }


def write_keys(arch: str, tokens: int, seed: int = 20261130) -> dict[str, Any]:
    """Write keys of a card by the substitute, and by vLLM's own Triton writer and rotation.

    Answers whether the bytes of the cache are the same, how far off the rotated queries are in the
    worst element, and how many bytes were written at all.
    """
    stand.stand(arch)
    from vllm.models.deepseek_v4.common.ops import cache_utils
    from vllm.models.deepseek_v4.xpu import xpu_qnorm_rope_kv_fp8_insert as xpu

    generator = torch.Generator().manual_seed(seed)
    card = cards.CARDS[arch]
    q = torch.randn(tokens, _HEADS, 512, generator=generator).bfloat16()
    kv = (3 * torch.randn(tokens, 512, generator=generator)).bfloat16()
    positions = torch.randperm(64, generator=generator)[:tokens]
    rotation = torch.randn(64, 64, generator=generator)
    slots = torch.randperm(2 * _PAGE, generator=generator)[:tokens] + _PAGE
    slots[-1] = -1
    caches = torch.zeros(2, 3, _PAGE * 584 + 40, dtype=torch.uint8)
    insert = torch.ops._C.fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert
    with cards.play(card):
        queries = insert(q, kv, caches[0], slots, positions, rotation, _HEADS, 1e-6, _PAGE)
        expected, rotated = q.clone(), torch.empty_like(kv)
        xpu._xpu_qnorm_rope_kernel[(tokens, _HEADS + 1)](
            expected,
            kv,
            rotated,
            positions,
            rotation,
            1e-6,
            tokens,
            num_heads=_HEADS,
            HEAD_DIM=512,
            ROPE_DIM=64,
            NOPE_DIM=448,
            HALF_ROPE=32,
        )
        cache_utils.quantize_and_insert_k_cache(
            rotated, caches[1], slots, block_size=_PAGE, use_fnuz=card.is_fnuz
        )
    return {
        "same": torch.equal(caches[0], caches[1]),
        "off": float((queries.float() - expected.float()).abs().max()),
        "written": int((caches[1] != 0).sum()),
    }


def clear_pages(arch: str) -> dict[str, int]:
    """Clear two of four pages of two segments by the substitute, and by vLLM's own kernel.

    Answers with the words that each has cleared, and those that both have.
    """
    stand.stand(arch)
    from vllm.v1.worker import utils

    spec = utils.__spec__
    assert spec is not None and spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)  # with the kernel as it was
    real, substitute = again._zero_kv_blocks_kernel, utils._zero_kv_blocks_kernel
    caches = torch.ones(2, 2, 4, 64, dtype=torch.int32)
    kinds = 1 if "n_blocks" in real.arg_names else 2  # whether a page may be less than its stride
    for kernel, cache in zip((real, substitute), caches, strict=True):
        given = {
            "seg_addrs_ptr": torch.tensor([one.data_ptr() for one in cache], dtype=torch.uint64),
            "seg_block_strides_ptr": torch.tensor([64, 64]),
            "seg_page_sizes_ptr": torch.tensor([64, 64 // kinds]),
            "block_ids_ptr": torch.tensor([1, 3]),
            "n_blocks": 2,
        }
        constants = {"N_SEGS": 2, "MAX_CHUNKS": 4, "BLOCK_SIZE": 16}
        kernel[(2 * 2 * 4,) if kinds == 1 else (2, 2, 4)](
            *(given[name] for name in real.arg_names if name in given),
            **{name: value for name, value in constants.items() if name in real.arg_names},
        )
    cleared = caches == 0
    return {
        "kernel": int(cleared[0].sum()),
        "substitute": int(cleared[1].sum()),
        "both": int(cleared.all(0).sum()),
    }


def schedule(arch: str, model: str, longest: int, asked: dict[str, Any]) -> dict[str, Any]:
    """What vLLM makes of the scheduler's and cache's values that a model is to be served with, to
    `longest` tokens a request."""
    stand.stand(arch)
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=longest,
        **asked,
    ).create_engine_config()
    made = {**vars(config.scheduler_config), **vars(config.cache_config)}
    return {name: made[name] for name in asked}


def substitutes(arch: str) -> list[dict[str, str]]:
    """The table, as text."""
    stand.stand(arch)
    from deploy.rehearsal.amd.substitutes import TABLE

    return [{"name": e.name, "reason": e.reason, "source": e.source} for e in TABLE]


def main() -> None:
    """Answer every question of the file."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # the rehearsal's mends of the interpreter
    answer((ask_for, has, write_keys, clear_pages, schedule, substitutes))


if __name__ == "__main__":
    main()
