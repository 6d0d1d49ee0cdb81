"""Streamed answers: server-sent events, each with the moment it came."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from healthcheck.client import LIMIT_BYTES, Client, Response, whole
from healthcheck.client.answers import Answer, Failure, FailureKind

DONE = "[DONE]"
EVENT_STREAM = "text/event-stream"
# Usage in the last event is OpenAI's option; in every event it is vLLM's, and counts the tokens.
OPTIONS: Mapping[str, object] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


@dataclass(frozen=True)
class Piece:
    """One event that brought text or tokens: seconds since the question began, the text, and how
    many tokens there are by now (None: the server does not count in the stream)."""

    at_s: float
    text: str
    tokens: int | None


@dataclass(frozen=True)
class Streamed:
    """A stream that ended. `usage` is that of the event without choices, `done` whether [DONE]
    came, `message` what a client makes of all deltas of a chat: the message of a whole answer."""

    pieces: tuple[Piece, ...]
    usage: Mapping[str, Any] | None
    done: bool
    finish_reason: str | None
    elapsed_s: float
    message: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All pieces together."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def first_s(self) -> float | None:
        """Seconds to the first piece, None without one."""
        return self.pieces[0].at_s if self.pieces else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Seconds between each two pieces."""
        moments = [piece.at_s for piece in self.pieces]
        return tuple(b - a for a, b in itertools.pairwise(moments))

    @property
    def tokens(self) -> int | None:
        """Tokens written, as the server counts them; None if it does not."""
        counted = self.usage.get("completion_tokens") if self.usage else None
        if counted is None and self.pieces:
            counted = self.pieces[-1].tokens
        return counted if isinstance(counted, int) else None


class Events:
    """Takes a body's bytes in any cut and gives the data of each server-sent event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, more: bytes) -> Iterator[str]:
        """The data of the events that are whole now."""
        *lines, self._rest = (self._rest + more).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8", errors="replace")
            if line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and self._data:
                yield "\n".join(self._data)
                self._data = []


def ask(
    client: Client, path: str, payload: Mapping[str, object], deadline_s: float
) -> Streamed | Answer | Failure:
    """POST and read the stream; an Answer if it is none (an error), a Failure if it broke off."""
    return client.ask("POST", path, _read, payload={**payload, **OPTIONS}, deadline_s=deadline_s)


def _read(response: Response, began: float) -> Streamed | Answer | Failure:
    kind = response.headers.get("Content-Type", "")
    if response.status_code != 200 or not kind.startswith(EVENT_STREAM):
        return whole(LIMIT_BYTES)(response, began)
    events = Events()
    gathered = _Gathered()
    size = 0
    while not gathered.done and (more := response.raw.read1(65536, decode_content=False)):
        at_s = time.monotonic() - began
        size += len(more)
        if size > LIMIT_BYTES:
            return Failure(FailureKind.TOO_LARGE, f"more than {LIMIT_BYTES} bytes", at_s)
        for data in events.feed(more):
            gathered.take(data, at_s)
    return Streamed(
        tuple(gathered.pieces),
        gathered.usage,
        gathered.done,
        gathered.finish_reason,
        time.monotonic() - began,
        gathered.message,
    )


class _Gathered:
    """What the events of one stream told so far."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.usage: Mapping[str, Any] | None = None
        self.done = False
        self.finish_reason: str | None = None
        self._texts: dict[str, str] = {}
        self._calls: dict[int, dict[str, str]] = {}

    @property
    def message(self) -> Mapping[str, Any]:
        """The deltas put together, with calls in the order of their index."""
        calls = [{"function": self._calls[index]} for index in sorted(self._calls)]
        return {**self._texts, "tool_calls": calls} if calls else self._texts

    def take(self, data: str, at_s: float) -> None:
        """One event. Raises ValueError if it is not a chunk of a completion or chat answer."""
        if data == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except RecursionError as e:
            raise ValueError(f"an event that is no chunk: {data[:80]}") from e
        if not isinstance(chunk, dict) or "error" in chunk:
            raise ValueError(f"an event that is no chunk: {data[:80]}")
        usage = chunk.get("usage")
        choices = chunk.get("choices")
        if not choices:
            self.usage = usage if isinstance(usage, dict) else self.usage
            return
        choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        self.finish_reason = _word(choice.get("finish_reason")) or self.finish_reason
        text = self._text(choice)
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        tokens = counted if isinstance(counted, int) else None
        before = self.pieces[-1].tokens if self.pieces else 0
        if text or (tokens or 0) > (before or 0):
            self.pieces.append(Piece(at_s, text, tokens))

    def _text(self, choice: Mapping[str, Any]) -> str:
        """What an event brought, thought, content and calls, kept by its fields as well."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return _word(choice.get("text"))
        # Older servers send a thought under both of its names.
        thought = _word(delta.get("reasoning")) or _word(delta.get("reasoning_content"))
        content = _word(delta.get("content"))
        for name, more in (("reasoning", thought), ("content", content)):
            self._texts[name] = self._texts.get(name, "") + more
        parts = delta.get("tool_calls") or []
        if not isinstance(parts, list):
            raise ValueError(f"calls that are none: {str(parts)[:80]}")
        return thought + content + "".join(map(self._call, parts))

    def _call(self, part: Any) -> str:
        """A part of a call joins what its index has already, as clients do it."""
        index = part.get("index") if isinstance(part, dict) else None
        function = part.get("function") if isinstance(part, dict) else None
        if not isinstance(index, int) or not isinstance(function, dict):
            raise ValueError(f"a part of a call that is none: {str(part)[:80]}")
        call = self._calls.setdefault(index, {"name": "", "arguments": ""})
        for name in call:
            call[name] += _word(function.get(name))
        return _word(function.get("arguments"))


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
