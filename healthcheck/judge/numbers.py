"""How a question is put whose answer is a number, and how the number of an answer is read.

A server that samples or attends wrongly fails most of such while its text still reads well: vLLM PR
51768 saw GSM8K fall from 0.94 to 0.04 on a server that answered 200 throughout.
"""

from __future__ import annotations

import math
import re

ASK = (
    "{question}\n\nThink in short steps. End with one line of the form `Answer: N`, where N is the "
    "number alone."
)
_NUMBER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")
_OF_ITS_OWN = re.compile(rf"(?<!\w)(?:{_NUMBER.pattern})(?!\w)")
_ANSWER = re.compile(r"answer[^\w-]{0,10}", re.IGNORECASE)


def number_of(text: str) -> float | None:
    """The number that a text gives as its answer: the one behind the last "Answer", else the last
    one there is; None without any."""
    marks = list(_ANSWER.finditer(text))
    if marks and (found := _NUMBER.search(text, marks[-1].end())):
        return _value(found[0])
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def numbers_of(text: str) -> tuple[float, ...]:
    """Every number of a text that is no part of a word, in its order."""
    values = (_value(found) for found in _OF_ITS_OWN.findall(text))
    return tuple(value for value in values if value is not None)


def _value(text: str) -> float | None:
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None
