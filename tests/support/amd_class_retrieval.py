"""A part of `amd_class_driver`: the sparse indexer, asked what it retrieves.

What is real: the metadata builder with its chunks and compressed slots, the kernels that write the
key cache, the kernel that quantizes the queries, the indexer's op with the kernels that gather and
score. Triton interprets them. What is not: the card (`patches.loadcheck.card`), hidden states
(random), top-k and AITER (`indexer_stand_ins`), and the rest of the model.
"""

import contextlib
import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from patches.loadcheck import card as cards
from patches.loadcheck import draft as amd
from tests.support import indexer_reference as reference
from tests.support.indexer_stand_ins import StandIns

_PREFIX = "model.layers.0.attn.indexer.k_cache"
_RATIO = 4  # tokens in a compressed row
_PAGE = 64  # rows in a page: the recipe's block size of 256 tokens
_STATE_PAGE = 4  # tokens in a page of compressor states (vllm/models/deepseek_v4/compressor.py)
_DIM, _ROPE = 128, 64
_EPSILON = 1e-6
_TOKENS_A_STEP = 2048


def retrieve(
    arch: str,
    model: str,
    prompts: list[int],
    asked: list[list[int]],
    *,
    top_k: int = 512,
    heads: int = 8,
    max_model_len: int = 4096,
    drafts: int = 5,
    page_stride: int = 1_002_240,
    first_page: int = 1,
    negative_zero: bool = False,
    broken: int | None = None,
    seed: int = 20260801,
) -> dict[str, Any]:
    """Write prompts of so many tokens in chunks, then ask requests what V4's indexer retrieves.

    A request of `asked` is [prompt, length, queries]: it shares the first `length` tokens of a
    prompt, as a prefix hit does, and its last `queries` tokens are computed, all requests in one
    step. Up to `drafts` + 1 queries are a decode; decodes stand first. `page_stride` is in
    bytes, `first_page` is the lowest page id. With `negative_zero` every key holds one. The scale
    of the first prompt's key `broken` is NaN, and float attention does not pick it.

    Answers with the recall of each request's queries against float attention (0 to 1), how far off
    the scores are in the worst query (mean difference by mean score), the share of the first
    prefill's keys that the scores get as they were written, the number of decodes and prefills, and
    the stand-ins' counts.
    """
    card = cards.CARDS[arch]
    generator = torch.Generator().manual_seed(seed)
    opened = _engine(model, max_model_len, card, drafts=drafts, compressed=True)
    with opened as engine, torch.inference_mode():
        pages = _Pages(prompts, engine, page_stride, first_page, generator)
        keys = _CompressedKeys(prompts, negative_zero, generator)
        for prompt, length in enumerate(prompts):
            for start, end in itertools.pairwise([*range(0, length, _TOKENS_A_STEP), length]):
                step = _Step([_Span(prompt, start, end)], pages)
                keys.write(step, engine.metadata(step), pages)
        spans = [_Span(prompt, length - queries, length) for prompt, length, queries in asked]
        step = _Step(spans, pages)
        metadata = engine.metadata(step)
        keys.write(step, metadata, pages)
        expected = [keys.of(span, card) for span in spans]
        if broken is not None:
            pages.scale(0, broken).fill_(torch.nan)
            for span, rows in zip(spans, expected, strict=True):
                rows[broken] *= span.prompt != 0
        indexed = _Indexed(step, heads, keys.rope, generator)
        found = engine.run(indexed, metadata, pages, top_k, key=None)
        scores = indexed.scores(expected, _RATIO, card)
        answer: dict[str, Any] = engine.stand_ins.counts
        answer["recall"] = indexed.recall(found, scores)
        answer["error"] = indexed.error(engine.stand_ins.scores, scores)
        answer["kinds"] = [metadata.num_decodes, metadata.num_prefills]
        if (gathered := engine.stand_ins.gathered) is not None:
            same = gathered == expected[metadata.num_decodes]
            answer["as_written"] = float(same.all(-1).float().mean())
        return answer


def retrieve_tiled(
    arch: str,
    model: str,
    length: int,
    *,
    top_k: int = 16,
    heads: int = 4,
    seed: int = 20260801,
) -> dict[str, Any]:
    """The same of V3.2's indexer, whose op writes the keys itself: a prefill, then a decode.

    Answers with the recall of both, and the stand-ins' counts.
    """
    card = cards.CARDS[arch]
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(length, _DIM, generator=generator).bfloat16()
    expected = reference.rounded(keys.float(), card)
    rope = reference.rope_table(length, _ROPE, generator)
    opened = _engine(model, length, card, drafts=5, compressed=False)
    with opened as engine, torch.inference_mode():
        pages = _Pages([length], engine, _PAGE * (_DIM + 4), 1, generator)
        recall = []
        for span in (_Span(0, 0, length - 1), _Span(0, length - 1, length)):
            step = _Step([span], pages)
            indexed = _Indexed(step, heads, rope, generator)
            key = keys[span.start : span.end]
            found = engine.run(indexed, engine.metadata(step), pages, top_k, key=key)
            recall += indexed.recall(found, indexed.scores([expected], 1, card))
        return {"recall": recall, **engine.stand_ins.counts}


@dataclass(frozen=True)
class _Span:
    """The tokens of a prompt that one request computes in a step."""

    prompt: int
    start: int
    end: int


class _Pages:
    """A paged key cache, and the pages of each prompt, out of order.

    `tokens` are those of a page.
    """

    def __init__(
        self,
        prompts: list[int],
        engine: "_Engine",
        stride: int,
        first: int,
        generator: torch.Generator,
    ) -> None:
        self.tokens = engine.page_tokens
        counts = [-(-n // self.tokens) for n in prompts]
        width = -(-engine.max_model_len // self.tokens)
        self.tables = _shuffled_pages(counts, width, first, generator)
        blocks = first + sum(counts)
        # Only what is touched of this exists: it may be larger than the memory.
        memory = torch.empty(blocks * stride, dtype=torch.uint8)
        self.cache = memory.as_strided((blocks, _PAGE, _DIM + 4), (stride, _DIM + 4, 1))

    def scale(self, prompt: int, row: int) -> torch.Tensor:
        """The scale of a prompt's key, in the cache: scales follow a page's values."""
        page = self.cache[int(self.tables[prompt][row // _PAGE])].view(-1)
        return page[_PAGE * _DIM :].view(torch.float32)[row % _PAGE]


class _Step:
    """The index tensors of one step over requests' spans."""

    def __init__(self, spans: list[_Span], pages: _Pages) -> None:
        self.spans = spans
        lengths = torch.tensor([span.end - span.start for span in spans], dtype=torch.int32)
        starts = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
        seq_lens = torch.tensor([span.end for span in spans], dtype=torch.int32)
        self.tokens = int(starts[-1])
        self.requests = torch.arange(len(spans), dtype=torch.int32).repeat_interleave(lengths)
        self.positions = torch.cat([torch.arange(span.start, span.end) for span in spans])
        tables = [pages.tables[span.prompt] for span in spans]
        slots = [
            table[torch.arange(span.start, span.end) // pages.tokens] * pages.tokens
            + torch.arange(span.start, span.end) % pages.tokens
            for span, table in zip(spans, tables, strict=True)
        ]
        self.common = {
            "query_start_loc": starts,
            "query_start_loc_cpu": starts,
            "seq_lens": seq_lens,
            "num_reqs": len(spans),
            "num_actual_tokens": self.tokens,
            "max_query_len": int(lengths.max()),
            "max_seq_len": int(seq_lens.max()),
            "block_table_tensor": torch.stack(tables),
            "slot_mapping": torch.cat(slots).long(),
            "seq_lens_cpu_upper_bound": seq_lens,
        }


class _CompressedKeys:
    """Prompts as DeepSeek V4's compressor sees them, and the kernel that writes their keys."""

    def __init__(self, prompts: list[int], negative_zero: bool, generator: torch.Generator) -> None:
        self._states = [torch.randn(n, 4 * _DIM, generator=generator) for n in prompts]
        if negative_zero:
            for states in self._states:
                states[:, [3, _DIM + 3]] = -1e-9
        self.rope = reference.rope_table(max(prompts), _ROPE, generator)
        self._norm = 1 + 0.1 * torch.randn(_DIM, generator=generator)
        counts = [-(-n // _STATE_PAGE) for n in prompts]
        self._tables = _shuffled_pages(counts, max(counts), 1, generator)
        self._cache = torch.zeros(1 + sum(counts), _STATE_PAGE, 4 * _DIM)
        for states, table in zip(self._states, self._tables, strict=True):
            tokens = torch.arange(len(states))
            self._cache[table[tokens // _STATE_PAGE].long(), tokens % _STATE_PAGE] = states

    def of(self, span: _Span, card: cards.Card) -> torch.Tensor:
        """The keys that the last token of a span may see, by the reference."""
        states = self._states[span.prompt][: span.end]
        return reference.keys(states, self._norm, self.rope, card)

    def write(self, step: _Step, metadata: Any, pages: _Pages) -> None:
        """Let vLLM's compressor write the keys of a step."""
        from vllm.models.deepseek_v4.common.ops import fused_compress_quant_cache as compressor

        compressor.compress_norm_rope_store_triton(
            state_cache=self._cache,
            num_actual=step.tokens,
            token_to_req_indices=step.requests,
            positions=step.positions,
            slot_mapping=torch.zeros(step.tokens, dtype=torch.int64),
            block_table=torch.stack([self._tables[span.prompt] for span in step.spans]),
            block_size=_STATE_PAGE,
            state_width=2 * _DIM,
            cos_sin_cache=self.rope,
            kv_cache=pages.cache,
            k_cache_metadata=SimpleNamespace(slot_mapping=metadata.slot_mapping),
            pdl_kwargs={},
            head_dim=_DIM,
            rope_head_dim=_ROPE,
            compress_ratio=_RATIO,
            overlap=True,
            use_fp4_cache=False,
            rms_norm_weight=self._norm,
            rms_norm_eps=_EPSILON,
            quant_block=_DIM,
            token_stride=_DIM,
            scale_dim=4,
        )


class _Indexed:
    """Random queries of a step, as vLLM's kernel quantizes them and as float attention has them."""

    def __init__(
        self, step: _Step, heads: int, rope: torch.Tensor, generator: torch.Generator
    ) -> None:
        from vllm.models.deepseek_v4.common.ops import fused_indexer_q_rope_quant

        self._step, self._rope = step, rope
        self._q = torch.randn(step.tokens, heads, _DIM, generator=generator).bfloat16()
        self._weights = torch.rand(step.tokens, heads, generator=generator)
        self._scale = _DIM**-0.5 * heads**-0.5
        self.tokens = step.tokens
        self.quantized, self.folded = fused_indexer_q_rope_quant(
            step.positions, self._q, rope, self._weights, _DIM**-0.5, heads**-0.5
        )

    def scores(self, keys: list[torch.Tensor], ratio: int, card: cards.Card) -> list[torch.Tensor]:
        """What float attention gives each token of the step for the keys that it may see."""
        queries = reference.queries(self._q, self._step.positions, self._rope, card)
        weights = self._weights * self._scale
        return [
            reference.scores(query, weight, keys[request][: (position + 1) // ratio])
            for query, weight, request, position in zip(
                queries,
                weights,
                self._step.requests.tolist(),
                self._step.positions.tolist(),
                strict=True,
            )
        ]

    def recall(self, found: torch.Tensor, scores: list[torch.Tensor]) -> list[list[float]]:
        """The share of each request's best keys that is among `found`, for each of its tokens."""
        shares: list[list[float]] = [[] for _ in self._step.spans]
        requests = self._step.requests.tolist()
        for request, picked, row in zip(requests, found.tolist(), scores, strict=True):
            wanted = set(row.topk(min(len(picked), len(row))).indices.tolist())
            if wanted:
                shares[request].append(len(wanted & set(picked)) / len(wanted))
        return shares

    @staticmethod
    def error(seen: list[torch.Tensor], scores: list[torch.Tensor]) -> float:
        """The largest over tokens of the scores' mean error, relative to their mean."""
        pairs = [pair for pair in zip(seen, scores, strict=True) if len(pair[1])]
        errors = [(a - b).abs().sum() / b.abs().sum().clamp(min=1e-6) for a, b in pairs]
        return float(torch.stack(errors).max())  # NaN if one of them is


@dataclass(frozen=True)
class _Engine:
    """What of an engine the indexer needs."""

    config: Any
    builder: Any
    stand_ins: StandIns
    max_model_len: int
    page_tokens: int

    @property
    def ratio(self) -> int:
        """Tokens in a row of the key cache."""
        return self.page_tokens // _PAGE

    def metadata(self, step: _Step) -> Any:
        """What vLLM's builder makes of a step."""
        from vllm.v1.attention.backend import CommonAttentionMetadata

        return self.builder.build(0, CommonAttentionMetadata(**step.common))

    def run(
        self, indexed: _Indexed, metadata: Any, pages: _Pages, top_k: int, key: Any
    ) -> torch.Tensor:
        """The rows that the op picks for each query, with its workspace full of NaN before."""
        from vllm.forward_context import set_forward_context
        from vllm.v1.attention.backends.mla.indexer import get_max_prefill_buffer_size
        from vllm.v1.attention.ops import rocm_aiter_mla_sparse as ops

        workspace_rows = get_max_prefill_buffer_size(self.config) // self.ratio
        self.stand_ins.poison_workspace(workspace_rows, _DIM)
        found = torch.full((indexed.tokens, top_k), -1, dtype=torch.int32)
        # Later releases are told that a key stands for several tokens; at first none needs to know.
        takes = inspect.signature(ops.rocm_aiter_sparse_attn_indexer).parameters
        told = {"compress_ratio": self.ratio} if "compress_ratio" in takes else {}
        with set_forward_context({_PREFIX: metadata}, self.config):
            ops.rocm_aiter_sparse_attn_indexer(
                torch.zeros(indexed.tokens, 1),
                _PREFIX,
                pages.cache,
                indexed.quantized,
                key,
                indexed.folded,
                _DIM,
                "ue8m0",
                top_k,
                _DIM,
                self.max_model_len // self.ratio,
                workspace_rows,
                found,
                skip_k_cache_insert=key is None,
                **told,
            )
        return found


@contextlib.contextmanager
def _engine(
    model: str, max_model_len: int, card: cards.Card, *, drafts: int, compressed: bool
) -> Iterator[_Engine]:
    """An engine's configuration with one cache layer, V4's or V3.2's, on a card that is played."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache
    from vllm.models.deepseek_v4.attention import DeepseekV4IndexerCache
    from vllm.v1.attention.backends.mla import indexer
    from vllm.v1.worker import workspace

    ratio = _RATIO if compressed else 1
    speculative = {"method": "dspark", "num_speculative_tokens": drafts}
    config = amd.engine_config(model, speculative, dtype="float32", block_size=_PAGE * ratio)
    config.cache_config.cache_dtype = "fp8_ds_mla"
    config.model_config.max_model_len = max_model_len
    workspace.reset_workspace_manager()
    workspace.init_workspace_manager(torch.device("cpu"))
    indexer.num_compute_units = lambda _: card.compute_units
    with set_current_vllm_config(config), cards.play(card), StandIns(card) as stand_ins:
        about = (_DIM + 4, torch.uint8, _PREFIX, config.cache_config)
        layer = (
            DeepseekV4IndexerCache(*about, ratio) if compressed else DeepseekV32IndexerCache(*about)
        )
        builder = layer.get_attn_backend().get_builder_cls()(
            layer.get_kv_cache_spec(config),
            [_PREFIX],
            config,
            torch.device("cpu"),
            block_table_width=-(-max_model_len // (_PAGE * ratio)),
        )
        yield _Engine(config, builder, stand_ins, max_model_len, _PAGE * ratio)


def _shuffled_pages(
    counts: list[int], width: int, first: int, generator: torch.Generator
) -> list[torch.Tensor]:
    """Rows of a block table: pages from `first` on, out of order, and page 0 where none is."""
    pages = torch.randperm(sum(counts), generator=generator).int() + first
    rows = pages.split(counts)
    return [torch.nn.functional.pad(row, (0, width - len(row))) for row in rows]


QUESTIONS = (retrieve, retrieve_tiled)
