"""Asks generated tasks side by side, within a budget, and puts their scores into the report."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from healthcheck.accuracy import calls
from healthcheck.accuracy.calls import TOOLS, Call
from healthcheck.accuracy.results import Report
from healthcheck.accuracy.score import Score
from healthcheck.client.answers import Answer, Failure
from healthcheck.client.chat import CHAT, chat, message_of, text_of, thought_of
from healthcheck.judge import MISSES, Outcome, tasks
from healthcheck.judge.tasks import Task
from healthcheck.smoke.results import Check
from healthcheck.smoke.target import Session, fault, refusal
from healthcheck.smoke.tools import first_call, leak

SIDE_BY_SIDE = 16
FAILURES = 3  # requests without an answer, after which a kind is not asked on
# Asked of a model of random weights, to see that they are answered; its answers are not judged.
FORM_TASKS = 2
FORM_TOKENS = 16
RANDOM = "the profile says that its models know nothing (needle = false: random weights)"
FLOORS = "ours, held against no card yet"

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """Tasks of one kind: how one is drawn, how many are asked, and the floor of their rate."""

    name: str
    draw: Callable[[random.Random], Task]
    count: int
    floor: float


# The family solves 91 % of GSM8K and more (InferenceX), whose problems are no easier than the first
# kind. Of the others nothing is published: the floors are low, and a run's interval tells more.
KINDS = (
    Kind("arithmetic", tasks.arithmetic, 240, 0.90),
    Kind("chains", tasks.chain, 120, 0.75),
    Kind("recall", tasks.recall, 120, 0.90),
)
CALLS = 60
CALLS_FLOOR = 0.85


@dataclass
class Gathered:
    """What came of the tasks that were asked: right, wrong and without an answer."""

    right: int = 0
    wrong: int = 0
    failed: int = 0
    refused: Answer | Failure | None = None  # the first of those without an answer
    took_s: float = 0.0

    @property
    def asked(self) -> int:
        """How many were asked."""
        return self.right + self.wrong + self.failed


def kind_rows(kind: Kind, report: Report, session: Session) -> Iterator[Check]:
    """A kind's tasks as chats of one turn that do not think."""
    judged = session.target.profile.health.known_answers
    count = kind.count if judged else FORM_TASKS
    made = tasks.make(kind.draw, report.seed, count)

    def ask(number: int, task: Task) -> tuple[bool | None, Answer | Failure]:
        most = task.most_tokens if judged else FORM_TOKENS
        answer = _chat(session, task.prompt, number, most)
        message = message_of(answer)
        if message is None:
            return None, answer
        return task.is_right(text_of(message, "content") or thought_of(message)), answer

    seen = _gather(session, made, ask)
    yield _row(session, report, kind.name, kind.floor, count, seen)


def call_rows(report: Report, session: Session) -> Iterator[Check]:
    """Tool calls: whole, the right tool, the right arguments, and no mark of one left."""
    profile = session.target.profile
    if not profile.serve.get("tool-call-parser"):
        report.leave_out("tools", "the profile serves without a tool-call parser")
        return
    if not profile.health.known_answers:
        report.leave_out("tools", RANDOM)
        return
    leaked: list[tuple[str, str]] = []

    def ask(number: int, call: Call) -> tuple[bool | None, Answer | Failure]:
        tools = {"tools": list(TOOLS), "tool_choice": "auto"}
        answer = _chat(session, call.question, number, calls.MOST_TOKENS, **tools)
        message = message_of(answer)
        if message is None:
            return None, answer
        if found := leak(message):
            leaked.append(found)
            return False, answer
        return call.is_right(first_call(message)), answer

    seen = _gather(session, calls.make(report.seed, CALLS), ask)
    if len(leaked) >= MISSES:
        code, text = leaked[0]
        words = f"{len(leaked)} of {seen.asked} answers, such as {text[:60]!r}"
        yield fault("tools", Outcome.BAD, code, words, seen.took_s)
    yield _row(session, report, "tool calls", CALLS_FLOOR, CALLS, seen)


def width(session: Session) -> int:
    """How many requests are asked side by side: as many as the server runs, within reason."""
    most = session.target.profile.serve.get("max-num-seqs")
    return min(most, SIDE_BY_SIDE) if isinstance(most, int) else SIDE_BY_SIDE


def score_row(score: Score, took_s: float) -> Check:
    """A score as a row."""
    low, high = score.interval
    words = (
        f"{score.right} of {score.answered} right, {score.rate:.1%} ({low:.1%} to {high:.1%}, each "
        f"one-sided 99 %); floor {score.floor:.0%}, {score.source}"
    )
    words += f"; {score.failed} not answered" if score.failed else ""
    if score.outcome is Outcome.GOOD:
        return Check(score.name, Outcome.GOOD, words, took_s)
    code = "accuracy.low" if score.outcome is Outcome.BAD else "accuracy.unsettled"
    return fault(score.name, score.outcome, code, words, took_s)


def _row(
    session: Session, report: Report, name: str, floor: float, count: int, seen: Gathered
) -> Check:
    answered = seen.right + seen.wrong
    if seen.refused is not None and seen.failed >= min(FAILURES, count):
        return refusal(name, seen.refused)
    if not session.target.profile.health.known_answers:
        report.leave_out(name, f"{RANDOM}; {answered} of {count} were answered")
        return Check(f"{name} answered", Outcome.GOOD, f"{answered} of {count}", seen.took_s)
    if seen.asked < count:
        why = f"no more were begun in the {session.target.budget_s:.0f} s given (--budget)"
        report.leave_out(f"{name}, {count - seen.asked} of {count}", why)
    score = Score(name, seen.right, answered, seen.failed, floor, FLOORS)
    report.scores.append(score)
    return score_row(score, seen.took_s)


def _gather(
    session: Session,
    made: Sequence[T],
    ask: Callable[[int, T], tuple[bool | None, Answer | Failure]],
) -> Gathered:
    """Every task, until the budget is spent or the server has failed too often."""
    began = time.monotonic()
    until = began + session.target.budget_s
    seen, lock = Gathered(), threading.Lock()

    def one(numbered: tuple[int, T]) -> None:
        if time.monotonic() >= until or seen.failed >= FAILURES:
            return
        right, answer = ask(*numbered)
        with lock:
            seen.right += right is True
            seen.wrong += right is False
            seen.failed += right is None
            if right is None and seen.refused is None:
                seen.refused = answer

    with ThreadPoolExecutor(width(session), "task") as pool:
        list(pool.map(one, enumerate(made, start=1)))
    seen.took_s = time.monotonic() - began
    return seen


def _chat(
    session: Session, question: str, seed: int, tokens: int, **more: object
) -> Answer | Failure:
    payload = {**chat(session.target.model, question, tokens, seed), **more}
    limit_s = session.target.profile.health.generation_timeout_s
    return session.target.client.post(CHAT, payload, deadline_s=limit_s)
