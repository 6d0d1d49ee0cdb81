"""Runs one generation that the verdict wants: asks, samples the counters around it, judges."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from healthcheck import exposition
from healthcheck.answers import Answer, Failure
from healthcheck.client import Cancel, Client
from healthcheck.exposition import Exposition
from healthcheck.judge import Counters, judge
from healthcheck.verdict import Generation, Policy, Want

PATH = "/v1/completions"
# Words of no order leave the model a free choice at every token, so that sampling shows; the
# first tokens are the nonce, so that no prefix cache has the prompt.
PROMPT = "Notebook {nonce}. Forty English words without order or meaning, each of them once:\n"
# vLLM counts a step just after it hands out the step's tokens.
COUNTER_LAG_S = 2.0
COUNTER_PAUSE_S = 0.1


class Generator:
    """Asks one server for generations. Thread-safe; `clock` is monotonic, in seconds."""

    def __init__(
        self, client: Client, policy: Policy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._policy = policy
        self._clock = clock
        self._own = secrets.token_hex(4)

    def payload(self, want: Want, model: str) -> dict[str, object]:
        """The request of a generation: sampled as a user's would be, and told apart from it."""
        return {
            "model": model,
            "prompt": PROMPT.format(nonce=f"{self._own}-{want.nonce}"),
            "max_tokens": want.tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": want.seed,
            "logprobs": 1,
            "return_token_ids": True,
            "ignore_eos": True,
        }

    def run(self, want: Want, model: str, cancel: Cancel | None = None) -> Generation:
        """Run it to its end, its time-out or its cancellation."""
        began = self._clock()
        watch = want.scored and self._policy.speculates
        before = self._sample() if watch else None
        answer = self._client.post(
            PATH, self.payload(want, model), deadline_s=want.timeout_s, cancel=cancel
        )
        counters = None
        if watch and isinstance(answer, Answer) and answer.status == 200:
            counters = self._counters(before)
        findings, completion = judge(
            answer, asked_tokens=want.tokens, counters=counters, scored=want.scored
        )
        return Generation(want.step, want.epoch, began, self._clock(), findings, completion)

    def _counters(self, before: Exposition | Failure | None) -> Counters:
        """The counters around the generation, waiting a little for the last step's."""
        until = time.monotonic() + COUNTER_LAG_S
        while True:
            after = self._sample()
            found = _around(before, after)
            if found.before is None or found.after is None or found.absent:
                return found
            if found.after.drafts != found.before.drafts or time.monotonic() >= until:
                return found
            time.sleep(COUNTER_PAUSE_S)

    def _sample(self) -> Exposition | Failure:
        return exposition.read(
            self._client.get("/metrics", deadline_s=self._policy.health.probe_timeout_s)
        )


def _around(before: Exposition | Failure | None, after: Exposition | Failure) -> Counters:
    if not isinstance(before, Exposition) or not isinstance(after, Exposition):
        return Counters()
    counted = after.speculation()
    # Counters of speculation exist from the start, at 0, if the server speculates at all.
    absent = bool(after.engines) and counted is None
    return Counters(before.speculation(), counted, absent)
