"""Reads /v1/models: what the server serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from healthcheck.client.answers import Answer, Failure
from healthcheck.reasons import Note

LIMIT_BYTES = 256 * 1024  # a row is 600 bytes
MOST_TOKENS = 1 << 40  # no context is longer; what says so is not understood


@dataclass(frozen=True)
class Listing:
    """The ids the server answers to, and the longest context, in tokens, of the one to ask; None
    where that is not told, or is no number of tokens."""

    ids: tuple[str, ...]
    max_model_len: int | None = None


def read(answer: Answer | Failure, model: str | None = None) -> Listing | Note:
    """The listing in an answer of /v1/models, or the reason why there is none. `model` is the one
    to ask, None for the first."""
    if isinstance(answer, Failure):
        return Note(answer.code, answer.detail)
    if answer.status in (401, 403):
        return Note("config.unauthorized", f"/v1/models answers {answer.status}")
    if 300 <= answer.status < 400:
        return Note("server.redirect", f"/v1/models answers {answer.status}")
    if answer.status != 200:
        return Note("server.unknown", f"/v1/models answers {answer.status}")
    body = answer.json()
    if isinstance(body, Failure):
        return Note("server.unknown", f"/v1/models: {body.detail}")
    try:
        return _listing(body, model)
    except (KeyError, TypeError, AttributeError) as e:
        return Note("server.unknown", f"/v1/models: {type(e).__name__}: {e}"[:200])


def _listing(body: Any, model: str | None) -> Listing:
    rows = {str(row["id"]): row for row in body["data"]}
    asked = rows.get(next(iter(rows), "") if model is None else model, {})
    longest = asked.get("max_model_len")
    if longest is None:  # of an adapter vLLM tells it with the model that it adapts
        longest = rows.get(str(asked.get("parent")), {}).get("max_model_len")
    is_length = type(longest) is int and 0 < longest < MOST_TOKENS
    return Listing(tuple(rows), longest if is_length else None)
