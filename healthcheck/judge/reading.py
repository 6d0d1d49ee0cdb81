"""What is read of a completion or chat answer before anything is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from healthcheck.client.answers import Answer, Failure, FailureKind

MOST_TOKENS = 1 << 20  # of one of our answers, which asks for some hundred
# Logprobs come as float32 printed in full: equal means equal up to its last bits.
LOGPROB_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Completion:
    """The part of a completion that is judged.

    `logprobs` are those of the sampled tokens, `top` the highest logprob at each position; both
    None if the server gave none. `told_apart` False: only the number of the tokens is known, and
    the whole text stands for each.
    """

    text: str
    tokens: tuple[int, ...] | tuple[str, ...]
    logprobs: tuple[float, ...] | None = None
    top: tuple[float, ...] | None = None
    told_apart: bool = True


def read(answer: Answer) -> Completion | Failure:
    """The judged part of a completion or chat answer, or why there is none."""
    body = answer.json()
    if isinstance(body, Failure):
        return body
    try:
        return _completion(body)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as e:
        detail = f"not a completion: {type(e).__name__}: {e}"[:200]
        return Failure(FailureKind.MALFORMED, detail)


def _completion(body: Any) -> Completion:
    choice = body["choices"][0]
    message = choice.get("message")
    if message is not None:
        # Either counts as output: a thinking answer has content null.
        parts = (message.get("reasoning"), message.get("reasoning_content"), message.get("content"))
        text = "".join(_text(p) for p in parts if p is not None)
    else:
        text = _text(choice["text"])
    logprobs, top, names = _logprobs(choice.get("logprobs"))
    ids = choice.get("token_ids")
    tokens: tuple[Any, ...]
    if ids is not None:
        tokens = tuple(int(i) for i in ids)
        _same_length("token ids and logprobs", tokens, logprobs)
    elif names is not None:
        tokens = names
    else:
        count = int(body["usage"]["completion_tokens"])
        if not 0 <= count <= MOST_TOKENS:
            raise ValueError(f"usage counts {count} tokens")
        return Completion(text, (text,) * count if text else (), told_apart=False)
    return Completion(text, tokens, logprobs, top)


def _same_length(what: str, first: Sequence[object], second: Sequence[object] | None) -> None:
    """Raises ValueError if two lists that go together do not."""
    if second is not None and len(first) != len(second):
        raise ValueError(f"{what} differ in number: {len(first)} and {len(second)}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is {type(value).__name__}")
    return value


def _logprobs(
    block: Any,
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None, tuple[str, ...] | None]:
    if block is None:
        return None, None, None
    if "content" in block:  # chat
        rows = block["content"] or ()
        values = tuple(float(row["logprob"]) for row in rows)
        tops = [[float(t["logprob"]) for t in row.get("top_logprobs") or ()] for row in rows]
        names = tuple(_text(row["token"]) for row in rows)
    else:
        values = tuple(float(v) for v in block["token_logprobs"])
        tops = [[float(v) for v in (t or {}).values()] for t in block.get("top_logprobs") or ()]
        names = tuple(_text(t) for t in block["tokens"])
    _same_length("tokens and their logprobs", names, values)
    above = [v for v in (*values, *(t for row in tops for t in row)) if v > LOGPROB_TOLERANCE]
    if any(math.isfinite(v) for v in above):
        # Logits under that name: a likeliest token's are no probability to reckon with.
        raise ValueError(f"a logprob is {max(above):g}, which no probability has")
    if not tops:
        return values, None, names
    _same_length("logprobs and the likeliest ones", values, tops)
    if not all(tops):
        return values, None, names
    # Two tokens can have the same text and share a key, so the sampled one is put in again.
    top = tuple(max(v, *t) for v, t in zip(values, tops, strict=True))
    return values, top, names
