"""DeepSeek V4's indexer in plain float arithmetic, to hold vLLM's kernels against.

Written from the model's description: a key stands for four tokens and is a softmax-weighted mean of
eight token states, normed and rotated; a score is the sum over heads of weight * relu(q . k). Keys
and queries are rounded to the card's FP8 with a power of two as scale, since a retrieval shall be
judged for the keys it finds, not for the precision of the format.
"""

from typing import Any

import torch

from patches.loadcheck.card import Card, fp8_dtype

_GROUP = 4
_EPSILON = 1e-6
_LARGEST = {True: 224.0, False: 448.0}
"""The largest value that is stored, by FNUZ: the FNUZ format ends at 240, but the largest of OCP's
numbers halved is 224, so both formats hold the same numbers."""


def rope_table(tokens: int, dims: int, generator: torch.Generator) -> torch.Tensor:
    """Cosines, then sines, of random angles: (tokens + 1, dims)."""
    angles = torch.rand(tokens + 1, dims // 2, generator=generator) * 6
    return torch.cat([angles.cos(), angles.sin()], -1).contiguous()


def keys(states: torch.Tensor, norm: torch.Tensor, rope: torch.Tensor, card: Card) -> torch.Tensor:
    """The keys of a prompt, (tokens // 4, 128), from its states.

    A state is four vectors of 128: the values a token has as one of the earlier and of the later
    four of a key's eight tokens, then the softmax scores of both.
    """
    size = norm.shape[0]
    rows = states.shape[0] // _GROUP
    groups = states[: rows * _GROUP].reshape(rows, _GROUP, 4, size)
    values = torch.cat([_earlier(groups[:, :, 0], 0.0), groups[:, :, 1]], 1)
    scores = torch.cat([_earlier(groups[:, :, 2], -torch.inf), groups[:, :, 3]], 1)
    mean = (values * scores.softmax(1)).sum(1)
    normed = mean * (mean.square().mean(-1, keepdim=True) + _EPSILON).rsqrt() * norm
    return rounded(_rotated(normed, torch.arange(rows) * _GROUP, rope), card)


def queries(
    q: torch.Tensor, positions: torch.Tensor, rope: torch.Tensor, card: Card
) -> torch.Tensor:
    """The queries (rows, heads, 128) of tokens, rotated."""
    return rounded(_rotated(q.float(), positions, rope), card)


def scores(query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The scores of all keys for one query of shape (heads, 128)."""
    return (weights[:, None] * (query @ keys.T).relu()).sum(0)


def _earlier(groups: torch.Tensor, nothing: float) -> torch.Tensor:
    """The group before each; before the first there is `nothing`."""
    return torch.cat([torch.full_like(groups[:1], nothing), groups[:-1]])


def _rotated(x: torch.Tensor, positions: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Rotate neighbouring pairs of the last dimensions, as many as the table has."""
    dims = rope.shape[1]
    table: Any = rope[positions]
    table = table.reshape(len(positions), *[1] * (x.dim() - 2), dims)
    cosine, sine = table.chunk(2, -1)
    even, odd = x[..., -dims::2], x[..., -dims + 1 :: 2]
    pairs = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1)
    return torch.cat([x[..., :-dims], pairs.flatten(-2)], -1)


def rounded(x: torch.Tensor, card: Card) -> torch.Tensor:
    """The numbers that the FP8 format holds for vectors with one scale each."""
    x = x.bfloat16().float()
    largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = (largest / _LARGEST[card.is_fnuz]).log2().ceil().exp2()
    return (x / scale).to(fp8_dtype(card)).float() * scale
