"""A DeepSeek V4 whose answer stands in its prompt alone, and only where its indexer must look.

A haystack is rows of four tokens, as C4's compressor takes them: a key, its value, two that say
nothing. The model is constructed so that after a key it says the value of the row with that key:

- each word has a code of 32 signs, in the features of its embedding;
- a compressed row is the code of its first token, and of its second beside it;
- the indexer's key is the first code, its query the code of the token that asks;
- attention finds the row the same way, and writes the second code where lm_head reads.

Nothing else adds to a token: all other outputs are zero, and so are the keys of the window. Values
are keys in turn, in one cycle through all rows, so an answer goes from needle to needle.

The draft knows three of four links by heart, so some drafts are accepted and some are not.
"""

import hashlib
import itertools
import random
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from deploy.rehearsal import deepseek_v4
from deploy.rehearsal.models import HIDDEN, write_model
from deploy.rehearsal.tokenizer import VOCABULARY, is_word
from deploy.rehearsal.weights import Tensor, Weights, bits_of, zeros

ROW = 4
"""Tokens in a row."""

TOP_K: int = deepseek_v4.config()["index_topk"]
"""Rows that the indexer picks for a token."""

_WORDS = [token for token, text in enumerate(VOCABULARY) if is_word(text)]
_TOKENS = {VOCABULARY[token][1:]: token for token in _WORDS}
_CODE = 32
# Where in the 128 features of a token its code, the code of the answer and a constant stand.
_OWN, _SAID, _ONE = range(_CODE), range(64, 64 + _CODE), HIDDEN - 1
_HEAD_DIM, _INDEX_DIM, _HEADS, _INDEX_HEADS = 512, 128, 2, 4
# The features of the indexer's query: not the 64 that a position turns, and not the first 16, which
# tiles and rows have in the same place in every 16th row.
_ASKED = range(16, 64)
# What a softmax makes nothing of, of scores that are 0 otherwise.
_NEVER = -30.0
_C4 = f"layers.{deepseek_v4.RATIOS.index(ROW)}.attn"


@dataclass(frozen=True)
class Haystack:
    """So many rows in a random order, whose keys and values make one cycle."""

    rows: int

    @cached_property
    def cycle(self) -> list[int]:
        """The keys: each has the next one as its value."""
        return self._random("cycle").sample(_WORDS, self.rows)

    @cached_property
    def links(self) -> dict[int, int]:
        """The value of each key."""
        return dict(zip(self.cycle, [*self.cycle[1:], self.cycle[0]], strict=True))

    @cached_property
    def tokens(self) -> list[int]:
        """The rows, one after another."""
        chosen = self._random("rows")
        order = chosen.sample(self.cycle, self.rows)
        return [
            token for key in order for token in (key, self.links[key], *chosen.sample(_WORDS, 2))
        ]

    def asks(self, key: int) -> list[int]:
        """The prompt that asks for the value of a key."""
        return [*self.tokens, key]

    def follow(self, key: int, count: int) -> list[int]:
        """So many values, each the key of the next."""
        at = self.cycle.index(key) + 1
        return [self.cycle[(at + n) % self.rows] for n in range(count)]

    def found(self, key: int, text: str) -> dict[int, bool]:
        """For each key asked for, by the prompt or by the answer itself, whether its value came."""
        told = [key, *(_TOKENS.get(word, -1) for word in text.split())]
        return {
            asked: self.links[asked] == said
            for asked, said in itertools.pairwise(told)
            if asked in self.links
        }

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.rows}")


def write(folder: Path, learnt: Mapping[int, int]) -> Path:
    """Write the checkpoint as ``target`` below `folder`, its draft knowing three of four links of
    `learnt`; return the folder."""
    weights = deepseek_v4.all_weights()
    for name, tensor in weights.items():
        adds = name.startswith("layers.") and name.endswith((".wo_b.weight", ".w2.weight"))
        if adds or ("hc_" in name and name.endswith("_fn")):
            weights[name] = zeros(*tensor.shape)
    weights |= _words() | _attention() | _indexer() | _markov(learnt)
    write_model(folder / "target", deepseek_v4.config(), weights, deepseek_v4.MARKUP)
    return folder


def _words() -> Weights:
    embedded = {
        (token, at): value for token in range(len(VOCABULARY)) for at, value in _coded(token, _OWN)
    }
    constant = {(token, _ONE): 1.0 for token in range(len(VOCABULARY))}
    head = {(token, at): 0.5 * value for token in _WORDS for at, value in _coded(token, _SAID)}
    shape = (len(VOCABULARY), HIDDEN)
    return {
        "embed.weight": matrix(shape, embedded | constant),
        "head.weight": matrix(shape, head),
    }


def _attention() -> Weights:
    """Queries of the own code; rows of two codes, of which the second is written out."""
    first, second = range(_CODE), range(_CODE, 2 * _CODE)
    query = {(head * _HEAD_DIM + n, n): 1.0 for head in range(_HEADS) for n in first}
    out = {(group * _CODE + n, second[n]): 1.0 for group in range(_HEADS) for n in first}
    said = {(_SAID[n], group * _CODE + n): 1.0 for group in range(_HEADS) for n in first}
    row = {(half[n], _OWN[n]): 1.0 for half in (first, second) for n in first}
    return {
        f"{_C4}.wq_a.weight": matrix((_CODE, HIDDEN), {(n, _OWN[n]): 1.0 for n in first}),
        f"{_C4}.wq_b.weight": matrix((_HEADS * _HEAD_DIM, _CODE), query),
        f"{_C4}.wkv.weight": zeros(_HEAD_DIM, HIDDEN),
        f"{_C4}.wo_a.weight": matrix((_HEADS * _CODE, _HEAD_DIM), out),
        f"{_C4}.wo_b.weight": matrix((HIDDEN, _HEADS * _CODE), said),
        **_compressor(f"{_C4}.compressor", _HEAD_DIM, row, [*[0] * _CODE, *[1] * _CODE]),
    }


def _indexer() -> Weights:
    """The own code, repeated with other signs, as query and as key."""
    signs = _signs("indexer", _INDEX_DIM)
    key = {(at, _OWN[at % _CODE]): sign for at, sign in enumerate(signs)}
    query = {
        (head * _INDEX_DIM + at, at % _CODE): signs[at]
        for head in range(_INDEX_HEADS)
        for at in _ASKED
    }
    weights = {(head, _ONE): 1.0 for head in range(_INDEX_HEADS)}
    return {
        f"{_C4}.indexer.wq_b.weight": matrix((_INDEX_HEADS * _INDEX_DIM, _CODE), query),
        f"{_C4}.indexer.weights_proj.weight": matrix((_INDEX_HEADS, HIDDEN), weights),
        **_compressor(f"{_C4}.indexer.compressor", _INDEX_DIM, key, [0] * _INDEX_DIM),
    }


def _compressor(
    prefix: str, width: int, row: Mapping[tuple[int, int], float], taken: list[int]
) -> Weights:
    """A row of its own four tokens only: feature n is made of token ``taken[n]`` of them.

    The first half of all features is of the four before, which are never taken.
    """
    scores = {(at, n): _NEVER for at in range(ROW) for n in range(width)}
    scores |= {
        (at, width + n): _NEVER for n, token in enumerate(taken) for at in range(ROW) if at != token
    }
    second_half = {(width + n, feature): value for (n, feature), value in row.items()}
    return {
        f"{prefix}.wkv.weight": matrix((2 * width, HIDDEN), second_half),
        f"{prefix}.wgate.weight": zeros(2 * width, HIDDEN),
        f"{prefix}.ape": matrix((ROW, 2 * width), scores),
    }


def _markov(learnt: Mapping[int, int]) -> Weights:
    before = {(token, at): value for token in learnt for at, value in _coded(token, _OWN)}
    after = {
        (value, at): sign
        for n, (key, value) in enumerate(learnt.items())
        if n % 4 != 3
        for at, sign in _coded(key, _OWN)
    }
    shape = (len(VOCABULARY), HIDDEN)
    return {
        "mtp.0.markov_head.markov_w1.weight": matrix(shape, before),
        "mtp.0.markov_head.markov_w2.weight": matrix(shape, after),
    }


def _coded(token: int, features: range) -> Iterable[tuple[int, float]]:
    return zip(features, _signs(f"word {token}", _CODE), strict=True)


def _signs(name: str, count: int) -> list[float]:
    """So many signs, drawn from SHAKE-256 of the name."""
    drawn = int.from_bytes(hashlib.shake_256(name.encode()).digest(-(-count // 8)), "little")
    return [1.0 if drawn >> n & 1 else -1.0 for n in range(count)]


def matrix(shape: tuple[int, int], values: Mapping[tuple[int, int], float]) -> Tensor:
    """A matrix of zeros but for these values, by row and column."""
    bits = array("H", [0]) * (shape[0] * shape[1])
    for (row, column), value in values.items():
        bits[row * shape[1] + column] = bits_of(value)
    return Tensor(shape, bits)
