"""What a plan asks of one card's memory, as a sum of named parts.

The formulas are those of vLLM's code, whose file stands beside each part. Activations, RCCL and
the runtime are not among them: vLLM measures those at a start.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.plan.rules import Intent
from deploy.recipe import Gpu, vocabulary

# Data sheets count a card's memory in 2^30.
GIB = 1 << 30
# vLLM's --gpu-memory-utilization when it is not given (0.27.1, config/cache.py).
DEFAULT_UTILIZATION = 0.92
# VLLM_SPARSE_INDEXER_MAX_LOGITS_MB when it is not given, in MiB (0.27.1, envs.py).
DEFAULT_PREFILL_MIB = 512
# Tokens that the indexer scores as one.
INDEXER_RATIO = 4
FLOAT_BYTES = 4
# Of a value in the type that the model computes with, bfloat16.
MODEL_BYTES = 2


@dataclass(frozen=True)
class Part:
    """One part: its bytes, None where they are not known, and what they come from."""

    name: str
    size: int | None
    source: str


@dataclass(frozen=True)
class Memory:
    """The parts of one card, the KV cache last. Sizes in bytes.

    `share` is how much of the card the plan may take; None where the KV cache is given, for vLLM
    does not look at a share then (0.27.1, config/cache.py).
    """

    parts: tuple[Part, ...]
    card: int
    share: float | None

    @property
    def budget(self) -> int:
        """What the parts may take together."""
        return self.card if self.share is None else int(self.card * self.share)

    @property
    def taken(self) -> int:
        """What is known of what they take; without a given KV cache all but that."""
        return sum(part.size or 0 for part in self.parts)

    @property
    def left(self) -> int:
        """What they leave: for the KV cache, or where that is given for all that is not counted."""
        return self.budget - self.taken

    @property
    def unknown(self) -> tuple[str, ...]:
        """The parts whose size only a start tells."""
        return tuple(part.name for part in self.parts if part.size is None)

    def lines(self) -> list[str]:
        """The table for people, in 10^9 bytes."""
        rows = [(part.name, _told(part.size), part.source) for part in self.parts]
        of = f"of the card's {_told(self.card)}"
        if self.share is None:
            rows.append(("left", _told(self.left), f"{of}, for what is not counted here"))
        else:
            of = f"{_told(self.budget)}, {self.share:g} {of}"
            rows.append(("KV cache", _told(self.left), f"what is left of {of}"))
        told = [f"  {name:<15}{size:>7}  {source}" for name, size, source in rows]
        return ["memory of each card in 10^9 bytes, by vLLM's code:", *told]


def of(intent: Intent, card: Gpu) -> Memory:
    """The memory that a plan asks of each of its cards."""
    parts = (_weights(intent), _indexer(intent), _prefill(intent), _draft(intent), _graphs(intent))
    given = intent.size("kv-cache-memory-bytes")
    total = card.memory_gb * GIB
    if given is not None:
        return Memory((*parts, Part("KV cache", given, "kv-cache-memory-bytes")), total, None)
    share = intent.serve.get("gpu-memory-utilization")
    return Memory(parts, total, share if isinstance(share, int | float) else DEFAULT_UTILIZATION)


def _weights(intent: Intent) -> Part:
    """Experts and heads are spread over the ranks, with expert parallel or without."""
    name, total = "weights", intent.model.weights_bytes
    tensor, pipeline = intent.size("tensor-parallel-size"), intent.size("pipeline-parallel-size")
    ranks = (tensor or 1) * (pipeline or 1)
    if total is None:
        return Part(name, None, "of unknown size")
    return Part(name, total // ranks, f"{_told(total)} / {ranks} of tensor parallel")


def _indexer(intent: Intent) -> Part:
    name, source = "indexer logits", "(rocm_aiter_mla_sparse.py)"
    rows = intent.size("max-num-batched-tokens")
    given = intent.serve.get("max-model-len", intent.model.max_position_embeddings)
    length = intent.longest
    if rows is None or length is None:
        return Part(name, None, f"of max-model-len {given or 'unknown'} {source}")
    told = f"{rows:,} tokens x {length:,} / {INDEXER_RATIO} x {FLOAT_BYTES} B"
    return Part(name, rows * (length // INDEXER_RATIO) * FLOAT_BYTES, f"{told} {source}")


def _prefill(intent: Intent) -> Part:
    variable = "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"
    mib = vocabulary.size(intent.env.get(variable, DEFAULT_PREFILL_MIB))
    size = None if mib is None else mib << 20
    return Part("prefill logits", size, f"{variable} {mib} (rocm_aiter_mla_sparse.py)")


def _draft(intent: Intent) -> Part:
    """On every rank, in the model's own type or in float32 (vLLM PR 50910)."""
    name, draft = "draft logits", intent.speculative or {}
    if draft.get("draft_sample_method") != "probabilistic":
        return Part(name, 0, "no probabilistic draft")
    seqs, k = intent.size("max-num-seqs"), vocabulary.size(draft.get("num_speculative_tokens"))
    words = intent.model.vocab_size
    if seqs is None or k is None or words is None:
        return Part(name, None, "of unknown sequences, tokens or vocabulary")
    each = FLOAT_BYTES if intent.has("draft-logits-float32") else MODEL_BYTES
    told = f"{seqs:,} sequences x {k} x {words:,} words x {each} B"
    return Part(name, seqs * k * words * each, f"{told} (spec_decode/speculator.py)")


def _graphs(intent: Intent) -> Part:
    if intent.graph_mode == "NONE":
        return Part("graphs", 0, "none")
    return Part("graphs", None, f"{intent.graph_mode}: not known before a start, whose log tells")


def _told(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e9:.1f}"
