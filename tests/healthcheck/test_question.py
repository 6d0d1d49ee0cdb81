"""The gate's question: what is asked, what is right, and servers that do not chat."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.judge import Finding, Outcome, question
from healthcheck.judge.tasks import Task
from healthcheck.verdict import State
from tests.support.scripted_server import Reply, reckoned, scripted_server
from tests.support.simulation import Simulation

GOOD, BAD, UNKNOWN = Outcome.GOOD, Outcome.BAD, Outcome.UNKNOWN
TASK = Task("Begin with 1000 ...", 1234)
STEPS = "1. 1000 + 200 = 1200\n2. 1200 + 34 = 1234\n"


def chat(**message: object) -> Answer:
    """A chat answer with these fields in its message."""
    return Answer(200, json.dumps({"choices": [{"message": message}]}).encode())


def outcome(answer: Answer | Failure) -> Outcome:
    (finding,) = question.judged(answer, TASK)
    assert (finding.code == "") is (finding.outcome is GOOD)
    return finding.outcome


def test_the_question_is_three_sums_put_as_users_are_served() -> None:
    """A chat of one turn that does not think, sampled, and another one for every nonce."""
    task, asked = question.ask("m", "a-1", seed=3, tokens=512)
    other, _ = question.ask("m", "a-2", seed=3, tokens=512)
    assert len(re.findall(r"^\d\. ", task.prompt, re.MULTILINE)) == 3
    assert reckoned(task.prompt) == task.answer
    assert other.prompt != task.prompt
    assert asked == {
        "model": "m",
        "messages": [{"role": "user", "content": task.prompt}],
        "max_tokens": 512,
        "seed": 3,
        "chat_template_kwargs": {"thinking": False, "enable_thinking": False},
        "temperature": 1.0,
        "top_p": 0.95,
    }


@pytest.mark.parametrize(
    "message",
    [
        {"content": f"{STEPS}Answer: 1234"},
        {"content": f"{STEPS}Answer: 1200 + 34 = 1,234."},
        {"content": "**Answer:** $\\boxed{1234}$\n\nLet me know if you need 2 more."},
        {"content": f"<think>{STEPS}"},
        {"content": None, "reasoning": STEPS},
        {"content": "", "reasoning_content": STEPS},
    ],
)
def test_the_number_is_right_wherever_it_is_told(message: dict[str, Any]) -> None:
    """In any form, behind other numbers, thought aloud or not."""
    assert outcome(chat(**message)) is GOOD


@pytest.mark.parametrize(
    "text",
    [
        "Answer: 1235",
        "river stone bread",
        "12345",
        "12 34",
        "Answer: 1.234",
        "w1234 1234w",
        "\n1000 200 34\n",
    ],
)
def test_a_text_without_the_number_is_wrong(text: str) -> None:
    """Words of nothing, another number, or the question again."""
    assert outcome(chat(content=text)) is BAD
    assert outcome(chat(content=text, reasoning="river " * 500)) is BAD


@pytest.mark.parametrize(
    "answer",
    [
        *(Answer(status, b'{"detail":"Not Found"}') for status in (400, 401, 404, 405, 500, 501)),
        Answer(200, b"OK"),
        Answer(200, b"{}"),
        Answer(200, b'{"choices":[{"text":"a completion"}]}'),
        Failure(FailureKind.TIMEOUT),
        Failure(FailureKind.RESET),
        chat(content=None),
        chat(content=" \n"),
        chat(content=[{"type": "text", "text": "parts"}]),
        chat(content=None, reasoning="thinking and thinking"),
    ],
)
def test_what_is_no_answer_tells_nothing(answer: Answer | Failure) -> None:
    """No chat, no answer, no text, or a thought that ran out of its tokens."""
    assert outcome(answer) is UNKNOWN


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (
            chat(content="so it is\n 1234", reasoning="river"),
            Finding("question", GOOD, "", {"answer": 1234, "ends": "so it is 1234"}),
        ),
        (
            chat(content=None, reasoning=f"{'x ' * 40}1234"),
            Finding("question", GOOD, "", {"answer": 1234, "ends": "x " * 17 + "x 1234"}),
        ),
        (
            chat(content="1235"),
            Finding("question", BAD, "question.wrong", {"answer": 1234, "ends": "1235"}),
        ),
        (
            chat(content=" ", reasoning="river"),
            Finding("question", UNKNOWN, "question.untold", {"characters": 0, "of_thought": 5}),
        ),
        (
            Answer(404, b"not  " + b"x" * 200),
            Finding(
                "question",
                UNKNOWN,
                "question.untold",
                {"status": 404, "starts": "not " + "x" * 96},
            ),
        ),
    ],
)
def test_a_reader_is_shown_what_was_judged(answer: Answer, finding: Finding) -> None:
    """The number, how the text ends, what came instead: short, and on one line."""
    assert question.judged(answer, TASK) == (finding,)


@pytest.mark.parametrize("status", [400, 404, 405, 500, 501])
def test_a_server_that_does_not_chat_is_ready_and_told(status: int) -> None:
    """The gate goes on without its question, says so once, and its report shows why."""
    with scripted_server(on_chat=lambda _: (status, b'{"detail":"Not Found"}')) as server:
        simulation = Simulation(server)
        simulation.to_ready()
        said = [line for line in simulation.said if "question.untold" in line]
        assert len(said) == 1 and f"status {status}" in said[0]
        assert simulation.loop.snapshot.generations["question/unknown"] == 1
        assert simulation.states()[-1] is State.READY


def test_chance_does_not_hold_the_gate() -> None:
    """A right server that slips twice is asked a third time and ready."""
    asked: list[object] = []

    def slips(payload: Any) -> Reply:
        asked.append(payload)
        right = server.chat(payload)
        return right if len(asked) == 3 else (200, right[1].replace(b"Answer: ", b"Answer: 9"))

    with scripted_server() as server:
        server.on_chat = slips
        simulation = Simulation(server)
        simulation.to_ready()
        assert len(asked) == 3
        assert not any("gate.failed" in line for line in simulation.said)
