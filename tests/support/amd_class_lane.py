"""Answers questions about the AMD class in the environment that runs this: another release's.

Usage: python -m tests.support.amd_class_lane FOLDER, named questions as JSON on stdin; the last
line of the output is the answers as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from deploy.recipe.release import Release
from tests.support import lanes
from tests.support.amd_class import DEADLINE_S, Answers, ask


def ask_release(vllm: Release, folder: Path, questions: Answers) -> Answers:
    """`ask`, of another release's patched tree in its own environment. Raises AssertionError."""
    words = ("tests.support.amd_class_lane", str(folder))
    ended = lanes.run(vllm, *words, deadline_s=DEADLINE_S, given=json.dumps(questions))
    answers: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answers


def main() -> None:
    """Read, ask, print."""
    (folder,) = sys.argv[1:]
    print(json.dumps(ask(Path(folder), json.load(sys.stdin), patched=True)))


if __name__ == "__main__":
    main()
