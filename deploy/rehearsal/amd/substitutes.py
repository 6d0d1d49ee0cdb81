"""Everything that stands for something in the AMD rehearsal: what, why, and after what.

The one list. `guard` lets nothing else stand for a kernel. Only torch and vLLM are imported, and
vLLM only where a substitute is used.
"""

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from deploy.rehearsal.amd import guard


@dataclass(frozen=True)
class Substitute:
    """One thing that is not vLLM's own on a card.

    ``name`` is ``torch.ops.NAMESPACE.NAME`` of a kernel, or ``MODULE:ATTRIBUTE`` of what is
    replaced: ``make`` is the kernel's, or a function of AITER's, or makes another of the original.
    What one release asks for another may not: a substitute is for all of them.
    ``source`` is what it was written after, or whose code it is.
    """

    name: str
    reason: str
    source: str
    make: Callable[..., Any]

    @property
    def operator(self) -> str | None:
        """``NAMESPACE.NAME`` of a kernel, None of anything else."""
        return self.name.removeprefix("torch.ops.") if ":" not in self.name else None


TABLE: list[Substitute] = []
"""In the order of this file."""


def _stands_for(name: str, *, reason: str, source: str) -> Callable[[Any], Any]:
    def listed(make: Any) -> Any:
        TABLE.append(Substitute(name, reason, source, make))
        return make

    return listed


def install() -> None:
    """Put every substitute of the table in its place, and close the rest; once in a process."""
    # Chooses what it imports by whether AITER is on: passes of graphs, none of which is made here.
    importlib.import_module("vllm.compilation.passes.pass_manager")
    operators = {}
    for entry in TABLE:
        if entry.operator:
            operators[entry.operator] = entry.make
        elif entry.name.startswith("aiter."):
            _offer(entry)
        else:
            _replace(entry)
    guard.close(operators)


def _offer(entry: Substitute) -> None:
    """A module of AITER that has the substitute and nothing else."""
    module, _, name = entry.name.partition(":")
    setattr(sys.modules.setdefault(module, ModuleType(module)), name, entry.make)


def _replace(entry: Substitute) -> None:
    """Set an attribute to what the substitute makes of the original."""
    module, _, path = entry.name.partition(":")
    *owners, attribute = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    setattr(owner, attribute, entry.make(getattr(owner, attribute)))


# --- kernels of the ROCm build in C++ and HIP -----------------------------------------------------


@_stands_for(
    "torch.ops._C.fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert",
    reason="HIP: norm and rotation of queries, rotation and FP8 of a key, its write to the cache",
    source="the layout that vLLM documents at its Triton writer of keys, which is a test's oracle",
)
def _insert(
    q: Any,
    kv: Any,
    cache: Any,
    slots: Any,
    positions: Any,
    rotation: Any,
    padded_heads: int,
    epsilon: float,
    page: int,
) -> Any:
    """The queries. A key is 448 FP8 in groups of 64 that share a power of two, then 64 bfloat16;
    the keys of a page lie before its scales, eight bytes for each."""
    assert q.shape[1] == padded_heads, "AMD pads no heads"
    tokens = len(slots)
    rotated = _rotated(kv[:tokens, None].float(), positions[:tokens], rotation)[:, 0].bfloat16()
    row, exponents = _quantized(rotated)
    written = slots >= 0
    at_page, at = slots[written] // page, slots[written] % page
    keys = cache[:, : page * _KEY_BYTES].unflatten(1, (page, _KEY_BYTES))
    keys[at_page, at] = row[written]
    scales = cache[:, page * _KEY_BYTES : page * (_KEY_BYTES + 8)].unflatten(1, (page, 8))
    scales[at_page, at] = exponents[written]
    normed = torch.nn.functional.rms_norm(q.float(), (q.shape[-1],), eps=epsilon)
    return _rotated(normed, positions, rotation).to(q.dtype)


_PLAIN, _GROUP = 448, 64
_KEY_BYTES = _PLAIN + 64 * 2


def _rotated(x: Any, positions: Any, rotation: Any) -> Any:
    """Rotate the pairs of the last 64 features; ``rotation`` has cosines, then sines."""
    cosine, sine = rotation[positions].float()[:, None].chunk(2, -1)
    even, odd = x[..., _PLAIN::2], x[..., _PLAIN + 1 :: 2]
    pairs = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1)
    return torch.cat((x[..., :_PLAIN], pairs.flatten(-2)), -1)


def _quantized(keys: Any) -> tuple[Any, Any]:
    """The bytes of keys, and their exponents, biased by 127; the eighth is not used."""
    from vllm.v1.attention.ops import rocm_aiter_mla_sparse as sparse

    kind = sparse.current_platform.fp8_dtype()
    largest = 224.0 if kind is torch.float8_e4m3fnuz else torch.finfo(kind).max
    groups = keys[:, :_PLAIN].float().unflatten(1, (-1, _GROUP))
    exponents = (groups.abs().amax(-1).clamp(min=1e-4) / largest).log2().ceil()
    scaled = (groups / exponents.exp2()[..., None]).clamp(-largest, largest)
    plain = scaled.flatten(1).to(kind).view(torch.uint8)
    row = torch.cat((plain, keys[:, _PLAIN:].contiguous().view(torch.uint8)), 1)
    biased = torch.nn.functional.pad(exponents + 127, (0, 1)).to(torch.uint8)
    return row, biased


@_stands_for(
    "torch.ops._C.top_k_per_row_prefill",
    reason="HIP: the best columns of each row, between two bounds and counted from the first",
    source="vLLM's call of it and the -1 that its readers stop at",
)
def _top_k_prefill(
    scores: Any, starts: Any, ends: Any, out: Any, rows: int, *strides_and_k: int
) -> None:
    for row in range(rows):
        _select(scores[row, int(starts[row]) : int(ends[row])], out[row], strides_and_k[-1])


@_stands_for(
    "torch.ops._C.top_k_per_row_decode",
    reason="HIP: the best columns of each row below its length",
    source="vLLM's call of it and the -1 that its readers stop at",
)
def _top_k_decode(
    scores: Any, _next_n: int, lengths: Any, out: Any, rows: int, *strides_and_k: int
) -> None:
    assert lengths.numel() == rows, "a length for each row, as DeepSeek V4 gives them"
    for row, length in enumerate(lengths.reshape(-1).tolist()):
        _select(scores[row, :length], out[row], strides_and_k[-1])


def _select(scores: Any, out: Any, top_k: int) -> None:
    """Write the indices of the best, then -1."""
    best = scores.topk(min(top_k, len(scores))).indices
    out.fill_(-1)
    out[: len(best)] = best.to(out.dtype)


@_stands_for(
    "vllm.model_executor.layers.activation:SiluAndMulWithClamp.forward_cuda",
    reason="HIP, in later releases: SwiGLU with its clamp",
    source="the same class's forward_native, which earlier ones run on ROCm",
)
def _clamped(_original: Any) -> Any:
    from vllm.model_executor.layers.activation import SiluAndMulWithClamp

    return SiluAndMulWithClamp.forward_native


# --- AITER ----------------------------------------------------------------------------------------


@_stands_for(
    "vllm._aiter_ops:rocm_aiter_ops.is_enabled",
    reason="the indexer of the AMD class runs with AITER on only, as it is on a card",
    source="VLLM_ROCM_USE_AITER=1 of the recipe",
)
def _aiter_is_on(_original: Any) -> Any:
    return lambda: True


@_stands_for(
    "torch.ops.vllm.rocm_aiter_sparse_attn_indexer",
    reason="vLLM registers its own indexer as an operator where AITER is installed",
    source="the function that vLLM registers",
)
def _indexer(*arguments: Any, **options: Any) -> Any:
    from vllm.v1.attention.ops import rocm_aiter_mla_sparse as sparse

    return sparse.rocm_aiter_sparse_attn_indexer(*arguments, **options)


@_stands_for(
    "aiter.ops.flydsl:flydsl_fp8_mqa_logits",
    reason="AITER's kernel for the scores of a prefill on gfx942, in later releases",
    source="vLLM's PyTorch reference of it",
)
def _mqa_logits(q: Any, keys: Any, scales: Any, weights: Any, starts: Any, ends: Any) -> Any:
    from vllm.v1.attention.ops import rocm_aiter_mla_sparse as sparse

    return sparse.fp8_mqa_logits_torch(q, (keys, scales), weights, starts, ends)


@_stands_for(
    "vllm.v1.attention.ops.rocm_aiter_mla_sparse:mqa_logits_module",
    reason="the same of gfx950, in Triton; on gfx942 earlier releases have their own copy of it",
    source="vLLM's PyTorch reference of it",
)
def _scores_of_prefill(_original: Any) -> Any:
    return lambda: SimpleNamespace(fp8_mqa_logits=_mqa_logits)


# --- routed experts -------------------------------------------------------------------------------


@_stands_for(
    "torch.ops._moe_C.topk_softplus_sqrt",
    reason="HIP: the experts of each token, by score or by a table of words, and their weights",
    source="vLLM's call of it and its description: a bias picks, and does not weigh",
)
def _route(
    weights: Any,
    ids: Any,
    _rows: Any,
    logits: Any,
    renormalize: bool,
    scale: float,
    bias: Any,
    tokens: Any,
    table: Any,
    *_absent: Any,
) -> None:
    scores = torch.nn.functional.softplus(logits.float()).sqrt()
    if table is None:
        chosen = (scores if bias is None else scores + bias).topk(ids.shape[-1]).indices
    else:
        chosen = table[tokens].long()
    ids.copy_(chosen)
    weights.copy_(scores.gather(1, chosen))
    if renormalize:
        weights /= weights.sum(-1, keepdim=True)
    weights *= scale


_UNQUANTIZED = (
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod"
)
_NO_EXPERTS = (
    "in MXFP4 by AITER or triton_kernels on a card; neither is there, nor is MXFP4 on a CPU"
)


@_stands_for(
    f"{_UNQUANTIZED}.process_weights_after_loading",
    reason="the CPU's own experts know no DeepSeek V4 routing and pack weights for themselves",
    source="nothing is packed",
)
def _keep_expert_weights(_original: Any) -> Any:
    return lambda _method, _layer: None


@_stands_for(
    f"{_UNQUANTIZED}.apply",
    reason=_NO_EXPERTS,
    source="SwiGLU with its clamp, where vLLM's router has chosen before, as in later releases",
)
def _experts(_original: Any) -> Any:
    def apply(
        _method: Any, layer: Any, x: Any, topk_weights: Any, topk_ids: Any, *_: Any, **_options: Any
    ) -> Any:
        out = torch.zeros_like(x, dtype=torch.float32)
        for expert in topk_ids.unique().tolist():
            token, choice = (topk_ids == expert).nonzero(as_tuple=True)
            gate, up = (x[token] @ layer.w13_weight[expert].T).float().chunk(2, -1)
            if limit := getattr(layer, "swiglu_limit", None):
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            hidden = (torch.nn.functional.silu(gate) * up).to(x.dtype)
            added = (hidden @ layer.w2_weight[expert].T).float()
            out.index_add_(0, token, added * topk_weights[token, choice, None])
        return out.to(x.dtype)

    return apply


@_stands_for(
    f"{_UNQUANTIZED}.apply_monolithic",
    reason=_NO_EXPERTS,
    source="the router's kernel and the experts above, one after the other",
)
def _routed_experts(_original: Any) -> Any:
    def apply_monolithic(
        method: Any, layer: Any, x: Any, router_logits: Any, input_ids: Any = None
    ) -> Any:
        shape = len(x), layer.top_k
        weights, ids = torch.empty(shape), torch.empty(shape, dtype=torch.int64)
        _route(
            weights,
            ids,
            None,
            router_logits,
            layer.renormalize,
            layer.routed_scaling_factor or 1.0,
            layer.e_score_correction_bias,
            None if input_ids is None else input_ids[: len(x)],
            getattr(layer, "hash_indices_table", None),
        )
        return method.apply(layer, x, weights, ids)

    return apply_monolithic


# --- what is asked of the machine -----------------------------------------------------------------


def _off_the_cpu(original: Any) -> Any:
    """Call the original with tensors that say they are not on the CPU."""

    @functools.wraps(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        torch.Tensor.is_cpu = property(lambda _: False)
        try:
            return original(*arguments, **options)
        finally:
            del torch.Tensor.is_cpu

    return wrapped


for _kind in ("prefill", "decode"):
    _stands_for(
        f"vllm.v1.attention.ops.rocm_aiter_mla_sparse:_rocm_sparse_attn_{_kind}_ragged_triton",
        reason="it asserts that no tensor is on the CPU",
        source="itself, with tensors that say so",
    )(_off_the_cpu)


@_stands_for(
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
    reason="the CPU's linear layers keep a packed weight alone, and the AMD attention reads wo_a's",
    source="the same, with the weight kept",
)
def _keep_weights(original: Any) -> Any:
    return lambda layer, **_: original(layer, remove_weight=False)


@_stands_for(
    "vllm.v1.worker.utils:_zero_kv_blocks_kernel",
    reason="nearly a second of interpretation for each request, to clear its pages",
    source="the kernel: segments of pages of so many words, so many apart",
)
def _clear_pages(original: Any) -> Any:
    def clear(*arguments: Any, **_constants: int) -> None:
        given: dict[str, Any] = dict(zip(original.arg_names, arguments, strict=False))
        sizes = given["seg_page_sizes_ptr"]
        strides = given.get("seg_block_strides_ptr", sizes)  # which earlier releases have as one
        segments = torch.stack((given["seg_addrs_ptr"].long(), 4 * strides, 4 * sizes), 1)
        for address, stride, size in segments.tolist():
            for page in given["block_ids_ptr"].tolist():
                ctypes.memset(address + page * stride, 0, size)

    return _OverAnyGrid(clear)


@dataclass(frozen=True)
class _OverAnyGrid:
    """What `kernel[grid](...)` calls, whatever the grid."""

    function: Callable[..., None]

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return self.function


@_stands_for(
    "torch:mm",
    reason="PyTorch multiplies into another type (out_dtype) on a GPU only",
    source="the same product of factors of that type",
)
def _multiply(original: Any) -> Any:
    @functools.wraps(original)
    def mm(a: Any, b: Any, *rest: Any, out_dtype: Any = None, **options: Any) -> Any:
        if out_dtype is None:
            return original(a, b, *rest, **options)
        return original(a.to(out_dtype), b.to(out_dtype), *rest, **options)

    return mm


@_stands_for(
    "torch.cuda:get_device_properties",
    reason="launch grids ask for the compute units; each unit would be interpreted in turn",
    source="a card of one compute unit",
)
def _properties(_original: Any) -> Any:
    return lambda *_: SimpleNamespace(multi_processor_count=1)


@_stands_for(
    "torch.cuda:is_current_stream_capturing",
    reason="later releases ask for it where a context is so short that every key is picked",
    source="no graph is captured on a CPU",
)
def _captures_nothing(_original: Any) -> Any:
    return lambda: False


@_stands_for(
    "vllm.platforms.cpu:CpuPlatform.check_and_update_config",
    reason="the CPU's ends chunked prefill for MLA: a prompt above one batch would wait forever",
    source="the same, with what it ends left alone (prefix caching too in later releases), as "
    "vllm/platforms/rocm.py does",
)
def _keep_chunked_prefill(original: Any) -> Any:
    def check_and_update_config(config: Any) -> None:
        scheduler, cache = config.scheduler_config, config.cache_config
        asked = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens
        keeps = cache.enable_prefix_caching
        original(config)
        scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens = asked
        cache.enable_prefix_caching = keeps

    return staticmethod(check_and_update_config)


@_stands_for(
    "vllm.v1.worker.cpu_worker:CPUWorker.init_device",
    reason="the GPU's worker makes the workspace of the AMD kernels, the CPU's has no need of it",
    source="the same call, for the CPU",
)
def _make_workspace(original: Any) -> Any:
    @functools.wraps(original)
    def init_device(worker: Any) -> None:
        from vllm.v1.worker.workspace import init_workspace_manager

        original(worker)
        init_workspace_manager(worker.device)

    return init_device


@_stands_for(
    "vllm.v1.worker.cpu.model_runner:CPUModelRunner.warming_up_model",
    reason="it profiles memory that a CPU does not budget, by a minute of interpreted kernels",
    source="nothing is warmed up",
)
def _skip_warm_up(_original: Any) -> Any:
    return lambda _runner: None
