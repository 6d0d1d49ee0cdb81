"""A DeepSeek V4 that throws dice: one of three words follows another, by TARGET, and drafts by DRAFT.

The dice are `FACES` words in a ring; a throw says how far the next word is from the last. So what
is right changes with every token: to verify one by its neighbour's distribution shows. The layers
are the rehearsal's own and add what was said before, a little, so that what is right at a token is
what the target says there and no table. The draft knows the last word only.
"""

import math
import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from deploy.rehearsal import deepseek_v4
from deploy.rehearsal.models import HIDDEN, write_model
from deploy.rehearsal.tokenizer import VOCABULARY, is_word
from deploy.rehearsal.weights import Tensor
from tests.contract.cases import DRAFT, TARGET
from tests.support.needle import matrix

FACES = 7
DICE = [token for token, text in enumerate(VOCABULARY) if is_word(text)][:FACES]

# What a word has in the one feature that is its own: the root mean square of all 128 is 1 then.
_OWN = math.sqrt(HIDDEN)
# The logit of what never follows.
_NEVER = -60.0


def write(folder: Path) -> Path:
    """Write the checkpoint as ``target`` below `folder`; return the folder."""
    words = {(token, n): 1.0 for n, token in enumerate(DICE)}
    weights = deepseek_v4.all_weights() | {
        "embed.weight": _tensor(words, 0.0, _OWN),
        "head.weight": _tensor(_throws(TARGET), _NEVER, 1 / _OWN),
        "mtp.0.markov_head.markov_w1.weight": _tensor(words, 0.0),
        "mtp.0.markov_head.markov_w2.weight": _tensor(_throws(DRAFT), _NEVER),
    }
    write_model(folder / "target", deepseek_v4.config(), weights, deepseek_v4.MARKUP)
    return folder


def words(count: int, seed: int) -> list[int]:
    """So many words of the dice."""
    return random.Random(seed).choices(DICE, k=count)


def following(token: int) -> list[int]:
    """The words that may follow a word, in the order of TARGET."""
    at = DICE.index(token)
    return [DICE[(at + 1 + throw) % FACES] for throw in range(len(TARGET))]


def shares(told: Mapping[int, float], last: int, temperature: float) -> list[float]:
    """How likely each word is that may follow `last`, of the log probabilities told of a token."""
    weights = [math.exp(told[token] / temperature) for token in following(last)]
    return [weight / sum(weights) for weight in weights]


def counts(
    prompt: Sequence[int],
    said: Sequence[int],
    told: Sequence[Mapping[int, float]],
    temperature: float,
) -> Counter[int]:
    """How many tokens of an answer lie in each of TARGET's parts of their own distribution.

    `told` has the log probabilities at each token. A token lies anywhere within its share, drawn at
    a seed of the prompt's: uniform in 0 to 1 and independent of those before if, and only if, each
    token follows its distribution. So TARGET's shares are expected.

    Raises ValueError for a token that never follows.
    """
    edges = list(accumulate(TARGET))[:-1]
    drawn = random.Random(str(prompt))
    return Counter(bisect(edges, at) for at in _places(prompt, said, told, temperature, drawn))


def _places(
    prompt: Sequence[int],
    said: Sequence[int],
    told: Sequence[Mapping[int, float]],
    temperature: float,
    drawn: random.Random,
) -> Iterator[float]:
    for before, token, at in zip([prompt[-1], *said[:-1]], said, told, strict=True):
        likely = shares(at, before, temperature)
        n = following(before).index(token)
        yield sum(likely[:n]) + likely[n] * drawn.random()


def _throws(likely: Iterable[float]) -> dict[tuple[int, int], float]:
    """The log of each share, by the word that follows and the feature of the one before."""
    likely = list(likely)
    return {
        (face, n): math.log(share)
        for n, token in enumerate(DICE)
        for face, share in zip(following(token), likely, strict=True)
    }


def _tensor(values: Mapping[tuple[int, int], float], rest: float, scale: float = 1.0) -> Tensor:
    """A row for each token: these values in the features of words, `rest` in the others of them."""
    kept = {
        (token, n): scale * values.get((token, n), rest)
        for token in range(len(VOCABULARY))
        for n in range(FACES)
    }
    return matrix((len(VOCABULARY), HIDDEN), kept)
