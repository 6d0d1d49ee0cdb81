"""A scripted server that solves the tasks of the accuracy test, as far as it is told to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from healthcheck.accuracy import calls
from healthcheck.accuracy.ask import CALLS, KINDS
from healthcheck.judge import tasks
from tests.support.scripted_server import Reply, ScriptedServer, completion

LEAK = "<｜DSML｜function_calls>water_level"


@dataclass
class SolvingServer(ScriptedServer):
    """Answers each task of a seed rightly in a share of cases by its kind, and calls tools.

    Its answers are known from the tasks' own generators: it stands in for a model that reckons.
    """

    rates: tuple[float, ...] = (0.75, 0.6, 0.5, 0.4)
    solves: Callable[[str], float] = lambda kind: 1.0
    calls_right: float = 1.0
    leaks: float = 0.0  # share of tool calls that stand in the content
    argument_leaks: float = 0.0  # share of tool calls with marks of one in their arguments
    says: str = "Step by step.\nAnswer: {}"
    seed: int = 1

    def __post_init__(self) -> None:
        """Know the answers."""
        self.asked: list[Mapping[str, Any]] = []
        self._known = {
            task.prompt: (kind.name, task.answer)
            for kind in KINDS
            for task in tasks.make(kind.draw, self.seed, kind.count)
        }
        self._calls = {call.question: call for call in calls.make(self.seed, CALLS)}
        super().__post_init__()

    def chat(self, payload: Mapping[str, Any]) -> Reply:
        """The answer of a task, right or wrong by its own luck; any other chat as always."""
        self.asked.append(payload)
        prompt = payload["messages"][-1]["content"]
        luck = random.Random(prompt).random()
        if prompt in self._known:
            kind, answer = self._known[prompt]
            said = answer if luck < self.solves(kind) else answer + 1
            return _message({"content": self.says.format(said)})
        if prompt in self._calls:
            if luck < self.leaks:
                return _message({"content": LEAK})
            call = self._calls[prompt]
            right = luck < self.leaks + self.calls_right
            arguments = {**call.arguments, **({} if right else {"station": 1})}
            if luck < self.argument_leaks:
                arguments["river"] = f"{arguments['river']}</｜DSML｜parameter"
            called = {"name": call.name, "arguments": json.dumps(arguments)}
            return _message({"content": None, "tool_calls": [{"function": called}]})
        return super().chat(payload)


def _message(message: Mapping[str, Any]) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return 200, json.dumps({**completion("", 0, 4), "choices": [choice]}).encode()
