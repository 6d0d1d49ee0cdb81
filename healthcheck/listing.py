"""Reads /v1/models: what the server serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from healthcheck.answers import Answer, Failure
from healthcheck.reasons import Note


@dataclass(frozen=True)
class Listing:
    """The ids the server answers to, and the longest context of the first, in tokens."""

    ids: tuple[str, ...]
    max_model_len: int | None = None


def read(answer: Answer | Failure) -> Listing | Note:
    """The listing in an answer of /v1/models, or the reason why there is none."""
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
        return _listing(body)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        return Note("server.unknown", f"/v1/models: {type(e).__name__}: {e}"[:200])


def _listing(body: Any) -> Listing:
    ids = tuple(str(row["id"]) for row in body["data"])
    longest = body["data"][0].get("max_model_len") if ids else None
    return Listing(ids, None if longest is None else int(longest))
