"""Runs one generation that the verdict wants: asks, samples the counters around it, judges.

A generation is one request, or several at once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from healthcheck.client import Client, exposition
from healthcheck.client.answers import Answer, Failure
from healthcheck.client.cancel import Cancel
from healthcheck.client.chat import CHAT
from healthcheck.client.exposition import Exposition
from healthcheck.judge import (
    Completion,
    Counters,
    Finding,
    Outcome,
    Step,
    judge,
    prompts,
    question,
    together,
)
from healthcheck.judge.prompts import Notebook
from healthcheck.verdict import Generation, Policy, Want
from healthcheck.words import fault

PATH = "/v1/completions"
RANK_HEADER = "X-data-parallel-rank"  # vLLM's choice of an engine by the client
# What top_p, top_k and another temperature ask for has kernels of its own, which the first client
# that asks would have to wait for.
_PLAIN: Mapping[str, object] = {"temperature": 1.0, "top_p": 1.0}
_NARROWED: Mapping[str, object] = {"temperature": 0.6, "top_p": 0.95, "top_k": 40}
# Pages whose tokens are counted to know how many make a long prompt.
SAMPLE_PAGES = 32
# Without a count from /tokenize: fewer characters a token than any real tokenizer needs for words.
CHARACTERS_PER_TOKEN = 2.0
# The pages of a long prompt differ from the counted ones by a few tokens.
MARGIN = 0.95
# Of an answer: vLLM takes 240 bytes a token with its logprobs, 8 for the id of one it was given.
BYTES_PER_TOKEN = 1024
BYTES_PER_PROMPT_TOKEN = 10
BYTES_BESIDE = 64 * 1024
# vLLM counts a step just after it hands out the step's tokens.
COUNTER_LAG_S = 2.0
COUNTER_PAUSE_S = 0.1


def scrape(client: Client, deadline_s: float) -> Exposition | Failure:
    """A server's /metrics now."""
    return exposition.read(client.get("/metrics", deadline_s=deadline_s))


class Generator:
    """Asks one server for generations. Thread-safe; `clock` is monotonic, in seconds."""

    def __init__(
        self, client: Client, policy: Policy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._policy = policy
        self._clock = clock
        self._own = secrets.token_hex(4)

    def payload(
        self, want: Want, model: str, prompt: str | None = None, number: int = 0
    ) -> dict[str, object]:
        """The request of a generation: sampled as a user's would be, and told apart from it.

        `prompt` None: a short one by the nonce. `number` counts the requests that run at once.
        """
        return {
            "model": model,
            "prompt": prompts.short(self._nonce(want, number)) if prompt is None else prompt,
            "max_tokens": want.tokens,
            **(_NARROWED if want.step is Step.TOP_P else _PLAIN),
            "seed": want.seed + number,
            "logprobs": 1,
            "return_token_ids": True,
            "ignore_eos": True,
        }

    def _nonce(self, want: Want, number: int) -> str:
        return f"{self._own}-{want.nonce}" + (f"-{number}" if number else "")

    def run(self, want: Want, model: str, cancel: Cancel | None = None) -> Generation:
        """Run it to its end, its time-out or its cancellation. An error of our own is a finding."""
        began = self._clock()
        try:
            findings, completion = self._run(want, model, cancel or Cancel())
        except Exception as e:
            ours = Finding("answer", Outcome.UNKNOWN, "service.error", {"error": fault(e)})
            findings, completion = (ours,), None
        return Generation(
            want.step, want.epoch, began, self._clock(), findings, completion, want.engine
        )

    def _run(
        self, want: Want, model: str, cancel: Cancel
    ) -> tuple[tuple[Finding, ...], Completion | None]:
        until = time.monotonic() + want.timeout_s
        if want.step is Step.QUESTION:
            task, asked = question.ask(model, self._nonce(want, 0), want.seed, want.tokens)
            (answer,) = self._ask_all([asked], want, until, cancel, CHAT)
            return question.judged(answer, task), None
        watch = want.scored and self._policy.speculates
        reads = bool(want.prompt_tokens) and self._policy.health.known_answers
        numbers = range(want.requests)
        notebooks = [
            self._notebook(want, model, number) if want.prompt_tokens else None
            for number in numbers
        ]
        payloads = [
            self.payload(want, model, notebook.text if notebook else None, number)
            for number, notebook in zip(numbers, notebooks, strict=True)
        ]
        before = self._sample() if watch else None
        answers = self._ask_all(payloads, want, until, cancel)
        counters: list[Counters] = []
        if watch and all(isinstance(a, Answer) and a.status == 200 for a in answers):
            counters = self._counters(before, [*want.ranks] or [want.engine])
        judged = [
            judge(
                answer,
                asked_tokens=want.tokens,
                counters=counters[number % len(counters)] if counters else None,
                scored=want.scored,
                plain=want.step is not Step.TOP_P,
                number=notebook.needle if notebook and reads else None,
                needle=want.step is Step.LONG,
            )
            for number, (answer, notebook) in enumerate(zip(answers, notebooks, strict=True))
        ]
        if want.ranks:
            judged = [
                (_of(name, found), made)
                for name, (found, made) in zip(want.ranks, judged, strict=True)
            ]
        return judged[0] if len(judged) == 1 else (together(judged), None)

    def _ask_all(
        self,
        payloads: Sequence[Mapping[str, object]],
        want: Want,
        until: float,
        cancel: Cancel,
        path: str = PATH,
    ) -> list[Answer | Failure]:
        """Every request at once, in threads of their own; a cancellation ends them all."""
        ranks: list[int | None] = [*want.ranks.values()] or [want.rank] * len(payloads)
        written = BYTES_PER_TOKEN * want.tokens + BYTES_PER_PROMPT_TOKEN * want.prompt_tokens

        def ask(payload: Mapping[str, object], rank: int | None, own: Cancel) -> Answer | Failure:
            return self._client.post(
                path,
                payload,
                deadline_s=max(until - time.monotonic(), 0.001),
                limit_bytes=BYTES_BESIDE + written,
                cancel=own,
                headers={} if rank is None else {RANK_HEADER: str(rank)},
            )

        if len(payloads) == 1:
            return [ask(payloads[0], ranks[0], cancel)]
        with ThreadPoolExecutor(len(payloads), "at-once") as pool:
            return list(pool.map(ask, payloads, ranks, [cancel.child() for _ in payloads]))

    def _notebook(self, want: Want, model: str, number: int) -> Notebook:
        """The long prompt of a want, in as many pages as the server's own tokenizer says."""
        nonce = self._nonce(want, number)
        sample = prompts.notebook(nonce, SAMPLE_PAGES).text
        answer = self._client.post(
            "/tokenize",
            {"model": model, "prompt": sample},
            deadline_s=self._policy.health.probe_timeout_s,
            limit_bytes=BYTES_BESIDE,  # the ids of the sample among them
        )
        counted = _count(answer) or len(sample) / CHARACTERS_PER_TOKEN
        pages = int(want.prompt_tokens * MARGIN * SAMPLE_PAGES / counted)
        return prompts.notebook(nonce, max(pages, 1), want.depth)

    def _counters(
        self, before: Exposition | Failure | None, engines: Sequence[str | None]
    ) -> list[Counters]:
        """The counters around the generation, of each engine that was asked (None: of all
        together), waiting a little for the last step's."""
        until = time.monotonic() + COUNTER_LAG_S
        while True:
            after = self._sample()
            found = [_around(before, after, engine) for engine in engines]
            if not any(map(_lags, found)) or time.monotonic() >= until:
                return found
            time.sleep(COUNTER_PAUSE_S)

    def _sample(self) -> Exposition | Failure:
        return scrape(self._client, self._policy.health.probe_timeout_s)


def _count(answer: Answer | Failure) -> int | None:
    """The tokens that /tokenize counted, None if it does not say."""
    body = answer.json() if isinstance(answer, Answer) and answer.status == 200 else None
    count = body.get("count") if isinstance(body, dict) else None
    # The text that was sent has no more tokens than bytes: what counts more is not understood.
    return count if type(count) is int and 0 < count < 1 << 20 else None


def _of(engine: str, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings that say whose they are."""
    return tuple(replace(f, evidence={"engine": engine, **f.evidence}) for f in findings)


def _around(
    before: Exposition | Failure | None, after: Exposition | Failure, engine: str | None = None
) -> Counters:
    if not isinstance(before, Exposition) or not isinstance(after, Exposition):
        return Counters()
    if engine is not None and after.tokens(engine) > before.tokens(engine):
        before, after = before.of(engine), after.of(engine)
    # Where its tokens are not counted as those of the engine that was asked, a proxy chose another.
    counted = after.speculation()
    # Counters of speculation exist from the start, at 0, if the server speculates at all.
    absent = bool(after.engines) and counted is None
    return Counters(before.speculation(), counted, absent)


def _lags(counters: Counters) -> bool:
    """The draft is not counted yet, and may be."""
    before, after = counters.before, counters.after
    return before is not None and after is not None and after.drafts == before.drafts
