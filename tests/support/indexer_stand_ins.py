"""What a ROCm build has and a CPU has not, for the sparse indexer: AITER and top-k, as stand-ins.

Each is plain PyTorch, written after what is documented of the original; what the op hands to them
and gets from them is counted on the way.
"""

import contextlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from patches.loadcheck.card import Card

_TILE = 16
_REACH = 1 << 31  # bytes of cache that AITER's paged kernel reaches before 0.1.20 (aiter PR 4774)
_COLUMNS = 256  # AITER makes a row of a prefill's scores a multiple of so many long


class StandIns(contextlib.ExitStack):
    """Puts the stand-ins in place for a card, and remembers what they saw."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card
        names = ("aiter_paged_calls", "not_scores_read", "left_over", "nan_in_decode")
        self._counts = dict.fromkeys(names, 0)
        self._prefill_scores: list[torch.Tensor] = []
        self._decode_scores: list[torch.Tensor] = []
        self._gathered: torch.Tensor | None = None

    def __enter__(self) -> "StandIns":
        from vllm._aiter_ops import rocm_aiter_ops
        from vllm.v1.attention.ops import rocm_aiter_mla_sparse as ops

        super().__enter__()
        paged = SimpleNamespace(deepgemm_fp8_paged_mqa_logits=self._paged_mqa_logits)
        plain = SimpleNamespace(fp8_mqa_logits=self._mqa_logits)
        newer: Any = ModuleType("aiter.ops.flydsl")  # where later releases find it for gfx942
        newer.flydsl_fp8_mqa_logits = self._mqa_logits
        self.enter_context(mock.patch.dict(sys.modules, {newer.__name__: newer}))
        self._put(rocm_aiter_ops, "is_enabled", lambda: True)
        self._put(ops, "paged_mqa_logits_module", lambda: paged)
        self._put(ops, "mqa_logits_module", lambda: plain)
        self._put(torch.accelerator, "empty_cache", lambda: None)
        self._put(torch.ops._C, "top_k_per_row_prefill", self._top_k_prefill)
        self._put(torch.ops._C, "top_k_per_row_decode", self._top_k_decode)
        name = "cp_gather_indexer_k_quant_cache_triton"
        self._put(ops, name, self._watched_gather(getattr(ops, name)))
        return self

    @property
    def counts(self) -> dict[str, int]:
        """Calls of AITER's paged kernel; what top-k read in a prefill that is no score of a key of
        the row; what stands beyond a decode's context and is not -inf; NaN within it."""
        return dict(self._counts)

    @property
    def scores(self) -> list[torch.Tensor]:
        """The scores that top-k chose from, for each token of the step; decodes stand first."""
        return self._decode_scores + self._prefill_scores

    @property
    def gathered(self) -> torch.Tensor | None:
        """The keys of the first request of the first prefill chunk, as the scores get them."""
        return self._gathered

    def poison_workspace(self, rows: int, dim: int) -> None:
        """Fill the workspace with NaN keys, as many as the op will ask for."""
        from vllm.v1.worker.workspace import current_workspace_manager

        nan = 0x80 if self._card.is_fnuz else 0x7F
        shapes = ((rows, dim), torch.uint8), ((rows, 4), torch.uint8)
        for part in current_workspace_manager().get_simultaneous(*shapes):
            part.fill_(nan)

    def _put(self, owner: Any, name: str, value: Any) -> None:
        missing = object()
        before = getattr(owner, name, missing)
        setattr(owner, name, value)
        if before is missing:
            self.callback(delattr, owner, name)
        else:
            self.callback(setattr, owner, name, before)

    def _watched_gather(self, original: Any) -> Any:
        """vLLM's own gather; its result is kept the first time."""

        def gather(
            cache: Any, keys: Any, scales: Any, table: Any, starts: Any, *args: Any, **options: Any
        ) -> None:
            original(cache, keys, scales, table, starts, *args, **options)
            if self._gathered is None:
                rows = int(starts[1])
                self._gathered = keys[:rows].float() * scales[:rows].view(torch.float32)

        return gather

    def _mqa_logits(
        self, q: Any, keys: Any, scales: Any, weights: Any, starts: Any, ends: Any
    ) -> torch.Tensor:
        """AITER's scores of a prefill: vLLM's copy of its kernel, or where that is gone vLLM's plain
        formula; rows as long as AITER's.

        What stands between the last key and the end of a row is NaN here, as nothing may read it.
        """
        if importlib.util.find_spec("vllm.v1.attention.ops.triton_fp8_mqa_logits"):
            from vllm.v1.attention.ops import triton_fp8_mqa_logits as copied

            scores = copied.fp8_mqa_logits_gfx942(q, keys, scales, weights, starts, ends)
        else:
            from vllm.v1.attention.ops import rocm_aiter_mla_sparse as ops

            scores = ops.fp8_mqa_logits_torch(q, (keys, scales), weights, starts, ends)
        columns = -(-len(keys) // _COLUMNS) * _COLUMNS
        padded = torch.full((len(scores), columns), torch.nan)
        padded[:, : len(keys)] = scores
        return padded[:, : len(keys)]

    def _paged_mqa_logits(self, *arguments: Any, **options: Any) -> None:
        self._counts["aiter_paged_calls"] += 1
        tiled_scores(*arguments, **options)

    def _top_k_prefill(
        self,
        scores: Any,
        starts: Any,
        ends: Any,
        out: Any,
        rows: int,
        stride: int,
        _stride: int,
        top_k: int,
    ) -> None:
        """The best of each row's range, counted from its start; reads what memory it names."""
        memory = scores.as_strided((scores.untyped_storage().nbytes() // 4,), (1,), 0)
        for row in range(rows):
            start, end = int(starts[row]), int(ends[row])
            first = scores.storage_offset() + row * stride
            read = torch.full((end - start,), torch.nan)
            there = memory[first + start : first + end]
            read[: len(there)] = there
            past = max(0, end - max(start, scores.shape[1]))
            self._counts["not_scores_read"] += past
            self._prefill_scores.append(read)
            _select(read, out[row], top_k)

    def _top_k_decode(
        self,
        scores: Any,
        next_n: int,
        lengths: Any,
        out: Any,
        rows: int,
        _stride0: int,
        _stride1: int,
        top_k: int,
    ) -> None:
        """The best below each row's length."""
        assert lengths.numel() == rows
        for row, length in enumerate(lengths.reshape(-1).tolist()):
            below, beyond = scores[row, :length], scores[row, length:]
            self._counts["left_over"] += int((beyond != -torch.inf).sum())
            self._counts["nan_in_decode"] += int(below.isnan().sum())
            self._decode_scores.append(below.clone())
            _select(below, out[row], top_k)


def tiled_scores(
    q: Any,
    cache: Any,
    weights: Any,
    out: Any,
    context_lens: Any,
    block_tables: Any,
    max_model_len: int,
    *,
    Preshuffle: bool,  # noqa: N803
    KVBlockSize: int,  # noqa: N803
    **_: Any,
) -> None:
    """AITER's scores of a decode: keys in tiles of 16 rows by 16 bytes, 32-bit page offsets."""
    assert Preshuffle
    size, dim = KVBlockSize, q.shape[-1]
    context_lens = context_lens.reshape(-1).tolist()
    for row, (query, length) in enumerate(zip(q.flatten(0, 1), context_lens, strict=True)):
        table = block_tables[row // q.shape[1], : -(-length // size)].long()
        pages = cache.view(len(cache), -1)[table]
        tiles = pages[:, : size * dim].reshape(-1, size // _TILE, dim // _TILE, _TILE, _TILE)
        keys = tiles.transpose(2, 3).reshape(-1, dim).view(q.dtype).float()
        scales = pages[:, size * dim :].contiguous().view(torch.float32)
        reached = (table * cache.stride(0) < _REACH)[:, None].expand(-1, size).flatten()
        scores = (keys @ query.float().T).relu() @ weights[row] * scales.flatten()
        out[row, :length] = torch.where(reached, scores, 0.0)[:length]


def _select(scores: torch.Tensor, out: torch.Tensor, top_k: int) -> None:
    """Write the indices of the best, then -1; a NaN is never among the best."""
    best = scores.nan_to_num(-torch.inf).topk(min(top_k, len(scores))).indices
    out.fill_(-1)
    out[: len(best)] = best.int()
