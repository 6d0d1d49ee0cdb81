"""The gate's one question whose answer is known: a few sums, asked as users ask, as a chat.

A server may give back the number of a long prompt and write readable nonsense besides. A right one
hardly misses these: at the floor of the accuracy test's chains (75 % of 10, 20 and 40 sums) it
loses one sum in 77, one question in 26, and all three of one gate in 17,000. Only what is read and
wrong is bad. A server that does not chat is none the worse for it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from healthcheck.client.answers import Answer, Failure
from healthcheck.client.chat import chat, message_of, text_of, thought_of
from healthcheck.judge import QUESTION, Finding, Outcome, judge
from healthcheck.judge.tasks import Task, chain

SUMS = 3
TOKENS = 512  # of an answer, which has some 60
CONTEXT = 4 * TOKENS  # the shortest that it is asked in


def ask(model: str, nonce: str, seed: int, tokens: int) -> tuple[Task, Mapping[str, object]]:
    """The question drawn by a nonce, and its request."""
    task = chain(random.Random(nonce), SUMS)
    return task, chat(model, task.prompt, tokens, seed)


def judged(answer: Answer | Failure, task: Task) -> tuple[Finding, ...]:
    """What is found in an answer: good if its text tells the number anywhere, bad if it does not.

    Where there is a thought alone, that is the text; one without the number may have run out of its
    tokens, and what is no chat tells of no model: both are unknown. That no answer came is the
    finding of any generation.
    """
    if isinstance(answer, Failure):
        return judge(answer, asked_tokens=1)[0]
    message = message_of(answer)
    if message is None:
        starts = " ".join(answer.text.split())[:100]
        return (_untold({"status": answer.status, "starts": starts}),)
    said, thought = text_of(message, "content").strip(), thought_of(message)
    evidence = {"answer": task.answer, "ends": " ".join((said or thought).split())[-40:]}
    if task.is_told(said or thought):
        return (Finding(QUESTION, Outcome.GOOD, evidence=evidence),)
    if not said:
        return (_untold({"characters": 0, "of_thought": len(thought)}),)
    return (Finding(QUESTION, Outcome.BAD, "question.wrong", evidence),)


def _untold(evidence: Mapping[str, object]) -> Finding:
    return Finding(QUESTION, Outcome.UNKNOWN, "question.untold", evidence)
