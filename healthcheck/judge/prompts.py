"""The prompts of our own generations. Each starts with a nonce, so that no prefix cache has it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

# Words of no order leave the model a free choice at every token, so that sampling shows.
_SHORT = "Notebook {nonce}. Forty English words without order or meaning, each of them once:\n"
_WORDS = (
    *("water", "light", "house", "river", "stone", "bread", "cloud", "green", "paper", "table"),
    *("winter", "music", "letter", "garden", "horse", "road", "silver", "window", "mountain"),
    *("field", "night", "summer", "bird", "tree", "fire", "morning", "island", "story", "gold"),
)
_PAGE_WORDS = 12
_OWN = frozenset({*_WORDS, "page", "number", "words"})
# A notebook of some pages, to see that what is read is understood; no test of long attention.
A_FEW_TOKENS = 300
# Where the asked page stands, as a share of the text; the question is at its end.
DEPTH = 1 / 3
_LONGER = 1.2
_UNTOLD = 8192


@dataclass(frozen=True)
class Notebook:
    """A long prompt of numbered pages that ends in the middle of one of them, told again.

    A model that reads all of it goes on with `needle`, that page's number of six digits.
    """

    text: str
    needle: str
    pages: int


def rungs(lengths: Sequence[int], room: int | None) -> tuple[int, ...]:
    """The lengths that a context has room for, both in tokens; if not all of them, also the whole
    room where that is well beyond the last one. Where the room is not told it is guessed."""
    if room is None:
        return tuple(length for length in lengths if length <= _UNTOLD)
    fits = [length for length in lengths if length <= room]
    if len(fits) < len(lengths) and room > _LONGER * max(fits, default=0):
        fits.append(room)
    return tuple(fits)


def short(nonce: str) -> str:
    """A prompt of some 20 tokens after which every word is free."""
    return _SHORT.format(nonce=nonce)


def notebook(nonce: str, pages: int, depth: float = DEPTH) -> Notebook:
    """A prompt of `pages` pages, of 20 to 60 tokens each by the tokenizer; drawn by the nonce.

    `depth` is where the page that is asked for stands, from 0 to 1.
    """
    draw = random.Random(nonce)
    numbers = draw.sample(range(100_000, 1_000_000), pages)
    lines = [f"Notebook {nonce}. Every page has a number and some words.\n"]
    for page, number in enumerate(numbers, start=1):
        lines.append(f"Page {page}. Number {number}. {_words(draw)}.\n")
    asked = max(int(pages * depth), 1)
    lines.append(f"Page {asked} again. Number")
    return Notebook("".join(lines), str(numbers[asked - 1]), pages)


def own_words(text: str) -> int:
    """How many of a notebook's words a text holds, each counted once."""
    return len(_OWN.intersection(re.findall("[a-z]+", text.lower())))


def _words(draw: random.Random) -> str:
    return "Words: " + " ".join(draw.choice(_WORDS) for _ in range(_PAGE_WORDS))
