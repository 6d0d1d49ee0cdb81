"""The dialect of signatures.tsv: how many ways a regular expression can be tried, as a bound.

What repeats without an upper bound, repeats a group or sets flags is not in it.
"""

from __future__ import annotations

import re

from healthcheck.explain.signatures import tokens

SHORTEST_LITERAL = 5  # shorter fixed text is found everywhere and would filter nothing
LONGEST_REPEAT = 400  # {m,n}: n at most this; evidence is cut to about the same length
MOST_PATHS = 20_000  # ways one start position may be tried; about 1 ms of work at worst

Token = tuple[str, str]


def paths(regex: str) -> int:
    """The ways to try one start: the lengths of each repetition that more than one lets go on,
    times two for each bar in a group. Raises ValueError for what is not in the dialect."""
    found, depth, parts = 1, 0, list(tokens(regex))
    for index, (kind, text) in enumerate(parts):
        if kind == "repeat":
            before = parts[index - 1] if index else ("", "")
            width = _width(text, before[0])
            found *= 1 if _one_way_on(before, parts[index + 1 :]) else width
        elif kind == "bar" and depth:
            found *= 2
        depth += {"open": 1, "close": -1}.get(kind, 0)
    return found


def _one_way_on(repeated: Token, after: list[Token]) -> bool:
    """Whether at most one length of a repetition lets the rest be tried: nothing follows it, or a
    character that the repetition itself cannot hold."""
    rest = [token for token in after if token[0] != "close"]
    if not rest:
        return True
    if rest[0][0] != "char" or (len(rest) > 1 and rest[1][0] == "repeat"):
        return False
    atom = re.escape(repeated[1]) if repeated[0] == "char" else repeated[1]
    return repeated[0] != "close" and re.fullmatch(atom, rest[0][1]) is None


def _width(repeat: str, before: str) -> int:
    """How many lengths a repetition can take."""
    if repeat == "?" and before not in ("open", "repeat"):
        return 2
    if before in ("close", "open", "repeat", ""):
        raise ValueError(f"repeats a group or sets flags with {repeat!r}")
    low, _, high = repeat.strip("{}").partition(",")
    if repeat in "*+" or repeat.endswith(",}"):
        raise ValueError(f"repeats without an upper bound ({repeat!r}): write {{m,n}}")
    most = int(high or low)
    if most > LONGEST_REPEAT:
        raise ValueError(f"repeats {most} times; at most {LONGEST_REPEAT}")
    return most - int(low or 0) + 1
