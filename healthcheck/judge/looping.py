"""Whether a text ends in a loop."""

from __future__ import annotations

from collections.abc import Sequence


def period(tokens: Sequence[object]) -> int | None:
    """The length of the run of tokens that the text ends in a loop of, None if in no loop.

    A loop is a run that fills the last half of the text at least four times over; of a text under
    32 tokens all of it, for short texts repeat by chance.
    """
    count = len(tokens)
    repeats = _repeats(tokens[::-1])
    for length in range(1, count // 4 + 1):
        window = count if count < 32 else max(4 * length, count // 2)
        if repeats[length] >= window - length:
            return length
    return None


def _repeats(tokens: Sequence[object]) -> list[int]:
    """At each place, for how long the tokens from there on are those from the beginning on: what
    is known to repeat is not compared again, so the work grows with the length alone."""
    count = len(tokens)
    found = [count] * count
    begin = end = 0  # the stretch known to repeat that reaches furthest
    for at in range(1, count):
        length = min(found[at - begin], end - at) if at < end else 0
        while at + length < count and tokens[length] == tokens[at + length]:
            length += 1
        found[at] = length
        if at + length > end:
            begin, end = at, at + length
    return found
