"""Questions to vLLM beside the draft class, answered by `amd_class_driver` in the same process.

What is real is said at each; what stands in for something that needs a GPU is called a stand-in.
"""

import contextlib
import enum
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from patches.loadcheck import draft as amd

_UNWRITTEN = -99  # no slot, and not the padding's -1


def drafts(sample_method: str, steps: int = 5) -> dict[str, Any]:
    """A speculative configuration of DSpark."""
    return {
        "method": "dspark",
        "num_speculative_tokens": steps,
        "draft_sample_method": sample_method,
    }


def clamp(model: str) -> dict[str, Any]:
    """Run the AITER experts of a loaded model and say which clamp AITER's kernel is handed.

    Real: the model's configuration of its experts as loading made it, the quantization for AITER's
    MXFP4 backend, `AiterExperts`, the registered op with its schema. AITER is a stand-in that only
    records, and is said to be supported. Answers with the model's limit, and that of each call.
    """
    from vllm import _aiter_ops
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.experts.rocm_aiter_moe import AiterExperts
    from vllm.model_executor.layers.fused_moe.oracle import mxfp4
    from vllm.utils.torch_utils import direct_register_custom_op

    with amd.speculator(model, drafts("greedy")) as (speculator, target):
        speculator.load_model(target)
        moe = next(m.moe_config for m in speculator.model.modules() if hasattr(m, "moe_config"))
        scale = torch.ones(1)
        quantization = mxfp4.make_mxfp4_moe_quant_config(
            mxfp4.Mxfp4MoeBackend.AITER_MXFP4_BF16, scale, scale, swiglu_limit=moe.swiglu_limit
        )
        direct_register_custom_op(
            "rocm_aiter_fused_moe",
            _aiter_ops._rocm_aiter_fused_moe_impl,
            dispatch_key="CPU",
        )
        experts = AiterExperts(moe, quantization)
        states, weights, nothing = torch.zeros(3, moe.hidden_dim), torch.zeros(1), torch.zeros(0)
        chosen = torch.zeros(3, moe.experts_per_token)
        supported = mock.patch.object(_aiter_ops, "is_aiter_found_and_supported", lambda: True)
        with supported, _recording_aiter() as calls:
            experts.apply(
                output=torch.zeros_like(states),
                hidden_states=states,
                w1=weights,
                w2=weights,
                topk_weights=chosen,
                topk_ids=chosen.int(),
                activation=MoEActivation.SILU,
                global_num_experts=moe.num_experts,
                expert_map=None,
                a1q_scale=None,
                a2_scale=None,
                workspace13=nothing,
                workspace2=nothing,
                expert_tokens_meta=None,
                apply_router_weight_on_input=False,
            )
        return {"limit": moe.swiglu_limit, "handed": [call["swiglu_limit"] for call in calls]}


class _GateMode(enum.Enum):
    SEPARATED = "separated"
    INTERLEAVE = "interleave"


@contextlib.contextmanager
def _recording_aiter() -> Iterator[list[dict[str, Any]]]:
    """A stand-in for the package `aiter` that computes nothing; gives the keywords of each call."""
    calls: list[dict[str, Any]] = []

    def fused_moe(
        hidden_states: torch.Tensor, *arguments: Any, gate_mode: str = "", **keywords: Any
    ) -> torch.Tensor:
        calls.append(keywords)
        return torch.zeros_like(hidden_states)

    modules = {
        "aiter": {"ActivationType": int, "QuantType": int},
        "aiter.fused_moe": {"fused_moe": fused_moe},
        "aiter.ops": {},
        "aiter.ops.flydsl": {},
        "aiter.ops.flydsl.moe_common": {"GateMode": _GateMode},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    try:
        yield calls
    finally:
        for name in modules:
            del sys.modules[name]


def render(
    tokenizer: str, requests: list[dict[str, Any]], release: str | None = None
) -> list[list[Any]]:
    """Say for each chat request its prompt, and whether the parser of the output expects thoughts.

    Real: vLLM's request, what it makes of its fields, the DeepSeek V4 tokenizer around a small
    vocabulary, its encoding, the parser. With `release`, a tree's folder, the last three are that
    tree's, while what they import is of this one.
    """
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    encoder, parser = _deepseek_v4(release)
    wrapped = encoder.get_deepseek_v4_tokenizer(AutoTokenizer.from_pretrained(tokenizer))
    answers = []
    for request in requests:
        made = ChatCompletionRequest.model_validate({"model": "any", **request})
        chat = made.build_chat_params(None, "auto")
        prompt = wrapped.apply_chat_template(
            request["messages"],
            request.get("tools"),
            tokenize=False,
            **chat.get_apply_chat_template_kwargs(),
        )
        reads = parser.DeepSeekV4Parser(wrapped, chat_template_kwargs=chat.chat_template_kwargs)
        answers.append([prompt, reads.parser_engine_config.initial_state.name == "REASONING"])
    return answers


def _deepseek_v4(release: str | None) -> tuple[ModuleType, ModuleType]:
    """The modules of tokenizer and parser, of this vLLM or of the tree `release`."""
    names = ("vllm.tokenizers.deepseek_v4", "vllm.parser.deepseek_v4")
    here = tuple(importlib.import_module(name) for name in names)
    if release is None:
        return here[0], here[1]
    for name in ("tokenizers", "parser"):
        package = ModuleType(f"another_{name}")
        package.__path__ = [str(Path(release) / "vllm" / name)]
        sys.modules[package.__name__] = package
    for name in ("hf", "protocol"):  # beside the tokenizer, and no part of what is compared
        sys.modules[f"another_tokenizers.{name}"] = importlib.import_module(
            f"vllm.tokenizers.{name}"
        )
    there = [importlib.import_module(name.replace("vllm.", "another_")) for name in names]
    return there[0], there[1]


def clear(page: int, pages: int) -> list[int]:
    """Clear one page of a packed cache and say how many bytes of each of its pages are cleared.

    Real: the specs, planner and views of a C4 layer of DeepSeek V4 and of its indexer's keys, which
    lie behind it in each page, `KVBlockZeroer` and its kernel, by Triton's interpreter.
    """
    from vllm.models.deepseek_v4 import attention, sparse_mla
    from vllm.v1 import kv_cache_interface as caches
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.worker import utils
    from vllm.v1.worker.gpu import attn_utils

    common = {"block_size": 256, "num_kv_heads": 1, "dtype": torch.uint8, "compress_ratio": 4}
    layers = {
        "keys": (sparse_mla.DeepseekV4FlashMLABackend, 584),
        "indexer": (attention.DeepseekV4IndexerBackend, 132),
    }
    specs = {
        name: caches.MLAAttentionSpec(head_size=width, **common)
        for name, (_, width) in layers.items()
    }
    whole = caches.UniformTypeKVCacheSpecs(block_size=256, kv_cache_specs=specs)
    kinds = [caches.KVCacheGroupSpec([*layers], whole)]
    asked = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks_override=pages))
    count, tensors = kv_cache_utils._get_kv_cache_config_packed(asked, kinds, 0)
    plan = caches.KVCacheConfig(count, tensors, kinds)
    raw = attn_utils._allocate_kv_cache(plan, {}, torch.device("cpu"))
    groups = [
        utils.AttentionGroup(backend, [name], specs[name], 0)
        for name, (backend, _) in layers.items()
    ]
    views = attn_utils._reshape_kv_cache(groups, raw, "auto", [256], {}, plan)
    slab = raw["keys"].fill_(1).view(pages, -1)
    held = {name: SimpleNamespace(kv_cache=view) for name, view in views.items()}
    utils.KVBlockZeroer(slab.device, groups, [256], "auto", held).zero_block_ids([page])
    return (slab == 0).sum(1).tolist()


def draft_rows(
    requests: list[dict[str, Any]],
    *,
    block_size: int,
    columns: int,
    queries: int,
    max_model_len: int,
) -> list[dict[str, Any]]:
    """Prepare a draft step of several requests and say which rows go to which slots of the cache.

    Real: `prepare_dflash_inputs` and its kernel, by Triton's interpreter, sampling from the anchor
    as DSpark does. A request has the `positions` of its tokens in this step, how many of them are
    `rejected`, and the `blocks` its row of the table begins with; `columns` is the row's length.
    Answers for each request with slots of context and queries, and the length attention is told.
    """
    from vllm.v1.worker.gpu.input_batch import InputBuffers
    from vllm.v1.worker.gpu.spec_decode.dflash.speculator import prepare_dflash_inputs

    count = len(requests)
    lengths = torch.tensor([len(request["positions"]) for request in requests])
    starts = torch.zeros(count + 1, dtype=torch.int32)
    starts[1:] = lengths.cumsum(0)
    tokens, drafts = int(starts[-1]), count * queries
    table = torch.zeros(count, columns, dtype=torch.int32)
    for row, request in zip(table, requests, strict=True):
        row[: len(request["blocks"])] = torch.tensor(request["blocks"], dtype=torch.int32)
    rows = max(tokens, drafts)
    buffers = InputBuffers(count, rows, torch.device("cpu"))
    query_slots, context_slots = torch.full((2, rows), _UNWRITTEN).unbind()
    each = torch.arange(count, dtype=torch.int32)
    batch = SimpleNamespace(
        num_reqs=count,
        num_scheduled_tokens=lengths.numpy(),
        positions=torch.tensor([at for request in requests for at in request["positions"]]),
        query_start_loc=starts,
        idx_mapping=each,
    )
    prepare_dflash_inputs(
        buffers,
        query_slots,
        torch.zeros(rows, dtype=torch.int64),
        context_slots,
        torch.zeros(drafts, dtype=torch.int64),
        torch.zeros(drafts, dtype=torch.int64),
        torch.zeros(drafts, dtype=torch.int32),
        torch.zeros(count),
        torch.zeros(count, dtype=torch.int64),
        batch,
        torch.ones(count, dtype=torch.int32),
        torch.tensor([request["rejected"] for request in requests], dtype=torch.int32),
        torch.zeros(count, dtype=torch.int64),
        torch.zeros(count, dtype=torch.int64),
        torch.ones(count),
        torch.zeros(count, dtype=torch.int64),
        table,
        block_size,
        0,
        queries,
        queries,
        count,
        rows,
        max_model_len,
        sample_from_anchor=True,
    )
    return [
        {
            "context": context_slots[starts[number] : starts[number + 1]].tolist(),
            "queries": query_slots[number * queries : (number + 1) * queries].tolist(),
            "length": int(buffers.seq_lens[number]),
        }
        for number in range(count)
    ]


QUESTIONS = (clamp, render, clear, draft_rows)
