"""Streams side by side: time to the first piece, between pieces, tokens per second."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from healthcheck.client.answers import Answer, Failure
from healthcheck.judge import Outcome, Step
from healthcheck.service import generate
from healthcheck.smoke import stream
from healthcheck.smoke.figures import Spread
from healthcheck.smoke.results import Check, Level
from healthcheck.smoke.stream import Streamed
from healthcheck.smoke.target import Session, Target, gravest, refusal
from healthcheck.verdict import Want

TOKENS, REHEARSAL_TOKENS = 96, 48
# Concurrency, and requests of it: a percentile wants several; a CPU gets half of them.
LEVELS = ((1, 8), (4, 16), (16, 32))


@dataclass(frozen=True)
class Request:
    """One request that ended: tokens asked for, when it was sent, on the monotonic clock, and what
    came."""

    asked: int
    sent_at: float
    ended_at: float
    answer: Streamed | Answer | Failure

    @property
    def tokens(self) -> int:
        """Tokens that came; all that were asked for where the server does not count."""
        if not isinstance(self.answer, Streamed):
            return 0
        counted = self.answer.tokens
        return self.asked if counted is None else counted


def ask(target: Target, nonce: str) -> Request:
    """One streamed completion, as a user's: sampled, without logprobs, of a prompt of its own.

    Of a seed of its own as well: what is drawn goes by seed and position, so that requests of one
    seed are accepted alike, and many of them say little more of acceptance than one.
    """
    limit_s = target.profile.health.generation_timeout_s
    tokens = REHEARSAL_TOKENS if target.profile.is_rehearsal else TOKENS
    want = Want(Step.PROBE, 0, nonce, zlib.crc32(nonce.encode()), tokens, limit_s)
    payload = target.generator.payload(want, target.model)
    del payload["logprobs"], payload["return_token_ids"]
    sent_at = time.monotonic()
    answer = stream.ask(target.client, generate.PATH, payload, limit_s)
    return Request(tokens, sent_at, time.monotonic(), answer)


def at_once(target: Target, concurrency: int, requests: int, nonce: str) -> list[Request]:
    """`requests` of them, `concurrency` at any time, until the budget of the target is over."""
    until = time.monotonic() + target.budget_s
    waiting = deque(range(requests))

    def work(_: int) -> list[Request]:
        done: list[Request] = []
        while not done or time.monotonic() < until:
            try:
                number = waiting.popleft()
            except IndexError:
                break
            done.append(ask(target, f"{nonce}-{number}"))
        return done

    with ThreadPoolExecutor(concurrency, "load") as pool:
        try:
            return [request for done in pool.map(work, range(concurrency)) for request in done]
        finally:
            waiting.clear()  # after Ctrl-C only what is running is waited for


def level(concurrency: int, ran: Sequence[Request], wall_s: float | None = None) -> Level:
    """The figures of requests that ran together; `wall_s` where they ran in several turns."""
    answered = [(r, r.answer) for r in ran if isinstance(r.answer, Streamed) and r.answer.pieces]
    tokens = sum(request.tokens for request, _ in answered)
    if wall_s is None:
        wall_s = max(r.ended_at for r in ran) - min(r.sent_at for r in ran)
    pieces = sum(len(answer.pieces) for _, answer in answered)
    return Level(
        concurrency=concurrency,
        requests=len(ran),
        failed=len(ran) - len(answered),
        tokens=tokens,
        seconds=wall_s,
        tokens_per_s=tokens / max(wall_s, 1e-9),
        first_s=Spread.of([answer.pieces[0].at_s for _, answer in answered]),
        gap_s=Spread.of([gap for _, answer in answered for gap in answer.gaps_s]),
        tokens_per_piece=tokens / pieces if pieces else 0.0,
        request_rates=tuple(
            request.tokens / max(request.ended_at - request.sent_at, 1e-9)
            for request, _ in answered
        ),
    )


def concurrency(session: Session) -> Iterator[Check]:
    """Each concurrency in turn; a server that fails at one is not asked for more."""
    for at, requests in LEVELS:
        if session.target.profile.is_rehearsal:
            requests //= 2
        ran = at_once(session.target, at, requests, f"at-{at}")
        measured = level(at, ran)
        session.report.levels.append(measured)
        check = judged(measured, ran)
        yield check
        if check.outcome is not Outcome.GOOD:
            break


def judged(seen: Level, ran: Sequence[Request]) -> Check:
    """The row of a concurrency: good if every request was answered."""
    name = f"concurrency {seen.concurrency}"
    failures = [r.answer for r in ran if not isinstance(r.answer, Streamed)]
    worst = gravest(refusal(name, answer) for answer in failures)
    words = (
        f"{seen.requests - seen.failed} of {seen.requests} answered, {seen.tokens_per_s:.1f} "
        f"tokens/s, first after {_ms(seen.first_s)}, then every {_ms(seen.gap_s)} (p50/p99)"
    )
    if worst is None and not seen.failed:
        return Check(name, Outcome.GOOD, words, seen.seconds)
    code = worst.code if worst is not None else "stream.broken"
    outcome = worst.outcome if worst is not None else Outcome.BAD
    detail = f"; {worst.evidence}" if worst is not None else "; streams without text"
    return Check(name, outcome, words + detail, seen.seconds, code)


def _ms(spread: Spread) -> str:
    return f"{1000 * spread.p50:.0f}/{1000 * spread.p99:.0f} ms"
