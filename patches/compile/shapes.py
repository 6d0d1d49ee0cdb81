"""The shapes that a profile's path has in production: the checkpoint's, and those of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VOCABULARY = 129_280
HIDDEN = 4096
HEADS = 64
HEAD_DIM = 512
ROPE_DIM = 64
Q_RANK = 1024
INDEX_HEADS = 64
INDEX_DIM = 128
INDEX_TOPK = 512
WINDOW = 128
MIXES = 4  # hyper-connections
"""Of the published DeepSeek V4 Flash config.json."""

KV_BYTES = 584
"""A token of the sparse caches: 448 FP8 values, 64 bf16 ones, scales (0.27.1, sparse_swa.py)."""
INDEX_BYTES = INDEX_DIM + 4
"""A token of the indexer's cache: its FP8 values and one scale."""
PAGES = 20_000
PAGE_STRIDE = 1_002_240
"""Bytes from a page to the next: the caches of all layers share a block (as patch 0004 has it)."""
C4_ROWS, C128_ROWS, WINDOW_ROWS = 64, 2, 64
"""Tokens of a page, of 256 for what is compressed (0.27.1, compressor.py, sparse_swa.py)."""
PREFILLS = 4
"""Prefills of a step that go together (0.27.1, PREFILL_CHUNK_SIZE of the attention)."""
DRAFT_WINDOW = 256
"""Slots of a draft's window, which no causal mask narrows (0.27.1, sparse_swa.py)."""
MOST_REQUESTS = 16
"""Requests of a decode step that is compiled: more of them change no kernel."""


@dataclass(frozen=True)
class Shapes:
    """What a profile's plan decides. Heads are this rank's; `steps` are the draft's tokens."""

    profile: str
    heads: int
    max_requests: int
    max_tokens: int
    context: int
    block_size: int
    steps: int

    @property
    def requests(self) -> int:
        """Requests of a decode step."""
        return min(self.max_requests, MOST_REQUESTS)

    @property
    def verified(self) -> int:
        """Tokens of a decode step of the target: one and the drafted ones of each request."""
        return self.requests * (self.steps + 1)

    def tensor(self, *sizes: int, dtype: str = "float32") -> Any:
        """A tensor that has a shape and no memory."""
        import torch

        return torch.empty(*sizes, dtype=getattr(torch, dtype), device="meta")

    def int32(self, *sizes: int) -> Any:
        """The same of int32."""
        return self.tensor(*sizes, dtype="int32")

    def int64(self, *sizes: int) -> Any:
        """The same of int64."""
        return self.tensor(*sizes, dtype="int64")

    def bfloat16(self, *sizes: int) -> Any:
        """The same of bfloat16."""
        return self.tensor(*sizes, dtype="bfloat16")

    def cache(self, rows: int, width: int) -> Any:
        """A paged cache of bytes, `rows` tokens of `width` bytes a page, past 2 GiB in all."""
        import torch

        strides = (PAGE_STRIDE, width, 1)
        return torch.empty_strided((PAGES, rows, width), strides, dtype=torch.uint8, device="meta")
