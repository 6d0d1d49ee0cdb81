"""Reads vLLM's /metrics into the few numbers a verdict needs, per engine.

Only the lines of those families reach prometheus_client's parser: the whole text of 0.27.1 (51 kB)
costs it 22 ms of CPU, the filtered one 1.2 ms, eighteen times less. What is longer, more or larger
than vLLM's ever is, is malformed: a text of some MB must not cost seconds or a hundred MB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from healthcheck.client.answers import Answer, Failure, FailureKind

PROCESS_START = "process_start_time_seconds"
TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
FIRST_TOKENS = "vllm:time_to_first_token_seconds_count"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
CACHE_USAGE = "vllm:kv_cache_usage_perc"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

NEEDED = frozenset(
    {
        PROCESS_START,
        *TOKENS,
        FIRST_TOKENS,
        RUNNING,
        WAITING,
        CACHE_USAGE,
        DRAFTS,
        DRAFT_TOKENS,
        ACCEPTED,
        ACCEPTED_AT,
    }
)
LIMIT_BYTES = 4 * 1024 * 1024  # 50 kB an engine
MOST_LINES = 2048  # of the needed families: some twenty an engine
LONGEST_LINE = 512
LONGEST_LABEL = 64  # vLLM's engines are numbered from 0
MOST = 2.0**53  # beyond it a float no longer counts by one, and nothing here comes near
WHOLE = NEEDED - {PROCESS_START, CACHE_USAGE}
_LINE = re.compile(
    rb"^(?:%s)(?![\w:]).*$" % b"|".join(n.encode() for n in sorted(NEEDED)), re.MULTILINE
)


@dataclass(frozen=True)
class Speculation:
    """An engine's counters of speculative decoding, since its start."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted: float = 0.0
    accepted_at: tuple[float, ...] = ()  # by draft position

    def since(self, earlier: Speculation) -> Speculation:
        """What was counted after an earlier sample of the same engine."""
        before = earlier.accepted_at or (0.0,) * len(self.accepted_at)
        return Speculation(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted - earlier.accepted,
            tuple(a - b for a, b in zip(self.accepted_at, before, strict=False)),
        )

    def plus(self, other: Speculation) -> Speculation:
        """The sum of two counts."""
        width = max(len(self.accepted_at), len(other.accepted_at))
        mine = self.accepted_at + (0.0,) * (width - len(self.accepted_at))
        its = other.accepted_at + (0.0,) * (width - len(other.accepted_at))
        return Speculation(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted + other.accepted,
            tuple(a + b for a, b in zip(mine, its, strict=True)),
        )

    def counters(self) -> tuple[float, ...]:
        """Every counter, in a fixed order."""
        return (self.drafts, self.draft_tokens, self.accepted, *self.accepted_at)


@dataclass(frozen=True)
class EngineSample:
    """One engine's numbers at one scrape. `cache_usage` is a fraction; None where not exported."""

    engine: str
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    cache_usage: float | None = None
    speculation: Speculation | None = None  # None: the server does not speculate
    first_tokens: float | None = None  # tokens that a prefill made, one a request

    @property
    def decoded_tokens(self) -> float | None:
        """Tokens that came of decode steps, each of which a draft goes before."""
        return None if self.first_tokens is None else self.generation_tokens - self.first_tokens

    @property
    def has_work(self) -> bool:
        """Requests are being served or queued."""
        return self.running + self.waiting > 0

    @property
    def counters(self) -> tuple[float, ...]:
        """What only ever grows while the engine lives."""
        spec = self.speculation.counters() if self.speculation else ()
        return (self.prompt_tokens, self.generation_tokens, *spec)

    @property
    def trace(self) -> tuple[object, ...]:
        """What the scheduler writes at every step: any change of it proves a step."""
        return (*self.counters, self.running, self.waiting, self.cache_usage)


@dataclass(frozen=True)
class Exposition:
    """One scrape: when the server process began (seconds since the epoch), and its engines."""

    process_start: float | None
    engines: tuple[EngineSample, ...]

    def of(self, engine: str) -> Exposition:
        """What is told of one engine."""
        return Exposition(self.process_start, tuple(e for e in self.engines if e.engine == engine))

    def tokens(self, engine: str) -> float:
        """Tokens that an engine has generated; 0 if it is not shown."""
        return sum(e.generation_tokens for e in self.engines if e.engine == engine)

    def speculation(self) -> Speculation | None:
        """The counters of all engines together, None if none speculates."""
        total: Speculation | None = None
        for engine in self.engines:
            if engine.speculation is not None:
                total = (total or Speculation()).plus(engine.speculation)
        return total


def read(answer: Answer | Failure) -> Exposition | Failure:
    """The exposition in an answer of /metrics, or why there is none."""
    if isinstance(answer, Failure):
        return answer
    if answer.status != 200:
        return Failure(FailureKind.MALFORMED, f"/metrics answered {answer.status}")
    return parse(answer.body)


def parse(text: str | bytes) -> Exposition | Failure:
    """The needed numbers of an exposition; whatever is wrong with the text is a Failure."""
    try:
        samples = list(_samples(text.encode() if isinstance(text, str) else text))
    except Exception as e:  # the parser raises whatever its string handling does
        return Failure(FailureKind.MALFORMED, f"exposition: {type(e).__name__}: {e}"[:200])
    start: float | None = None
    engines: dict[str, dict[str, float]] = {}
    positions: dict[str, dict[int, float]] = {}
    for sample in samples:
        whole = sample.name not in WHOLE or sample.value % 1 == 0
        if not 0 <= sample.value <= MOST or not whole:  # nor is what is no number
            return Failure(FailureKind.MALFORMED, f"{sample.name} is {sample.value}")
        if sample.name == PROCESS_START:
            start = sample.value
            continue
        label = sample.labels.get("engine", "0")
        if len(label) > LONGEST_LABEL:
            return Failure(
                FailureKind.MALFORMED, f"{sample.name}: an engine of {len(label)} letters"
            )
        numbers = engines.setdefault(label, {})
        if sample.name == ACCEPTED_AT:
            position = sample.labels.get("position", "")
            if not position.isascii() or not position.isdigit() or len(position) > 2:
                return Failure(FailureKind.MALFORMED, f"{sample.name}: position {position!r}"[:200])
            at = positions.setdefault(label, {})
            at[int(position)] = at.get(int(position), 0.0) + sample.value
        else:
            # One engine can serve several model names; its numbers are theirs together.
            numbers[sample.name] = numbers.get(sample.name, 0.0) + sample.value
    labels = sorted(engines)
    return Exposition(
        start, tuple(_engine(label, engines[label], positions.get(label, {})) for label in labels)
    )


def _samples(text: bytes) -> Iterator[Sample]:
    lines: list[str] = []
    for found in _LINE.finditer(text):
        if len(found[0]) > LONGEST_LINE:
            raise ValueError(f"a line of {len(found[0])} bytes")
        if len(lines) == MOST_LINES:
            raise ValueError(f"more than {MOST_LINES} lines of engines")
        lines.append(found[0].decode("utf-8", errors="replace"))
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        yield from (s for s in family.samples if s.name in NEEDED)


def _engine(label: str, numbers: dict[str, float], positions: dict[int, float]) -> EngineSample:
    speculation = None
    if DRAFTS in numbers:
        width = max(positions, default=-1) + 1
        speculation = Speculation(
            numbers[DRAFTS],
            numbers.get(DRAFT_TOKENS, 0.0),
            numbers.get(ACCEPTED, 0.0),
            tuple(positions.get(i, 0.0) for i in range(width)),
        )
    return EngineSample(
        label,
        numbers.get(TOKENS[0], 0.0),
        numbers.get(TOKENS[1], 0.0),
        numbers.get(RUNNING, 0.0),
        numbers.get(WAITING, 0.0),
        numbers.get(CACHE_USAGE),
        speculation,
        numbers.get(FIRST_TOKENS),
    )
