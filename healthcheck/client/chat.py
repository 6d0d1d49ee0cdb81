"""A chat of one turn, asked as users ask, and what its answer holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from healthcheck.client.answers import Answer, Failure

CHAT = "/v1/chat/completions"
# As the model card asks, and as users are served: through the draft and its rejection sampling,
# which greedy answers would go around.
SAMPLING = {"temperature": 1.0, "top_p": 0.95}


def chat(
    model: str, question: str, tokens: int, seed: int, *, thinking: bool = False
) -> dict[str, object]:
    """The request. Whether it thinks is said, for releases differ in what they do by themselves."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "seed": seed,
        "chat_template_kwargs": {"thinking": thinking, "enable_thinking": thinking},
        **SAMPLING,
    }


def message_of(answer: Answer | Failure) -> Mapping[str, Any] | None:
    """The message of a chat answer, None of anything else."""
    body = answer.json() if isinstance(answer, Answer) and answer.status == 200 else None
    message = (first_choice(body) or {}).get("message")
    return message if isinstance(message, dict) else None


def first_choice(body: object) -> Mapping[str, Any] | None:
    """The first choice of a completion or chat answer, None if it has none."""
    choices = body.get("choices") if isinstance(body, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def text_of(message: Mapping[str, Any], name: str) -> str:
    """A field of a message, empty if it is no text."""
    value = message.get(name)
    return value if isinstance(value, str) else ""


def thought_of(message: Mapping[str, Any]) -> str:
    """What it thought, by either name of the field."""
    return text_of(message, "reasoning") or text_of(message, "reasoning_content")
