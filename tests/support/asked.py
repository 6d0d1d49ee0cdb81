"""What a driver of `amd_class.ask` does with its two arguments: files of questions and of answers."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def answer(functions: Iterable[Callable[..., Any]]) -> None:
    """Answer every question of the file in turn, by the function that it names as `ask`."""
    by_name = {function.__name__: function for function in functions}
    questions = json.loads(Path(sys.argv[1]).read_text())
    answers = [by_name[question.pop("ask")](**question) for question in questions]
    Path(sys.argv[2]).write_text(json.dumps(answers))
