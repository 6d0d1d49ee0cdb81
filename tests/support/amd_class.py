"""Asking the real AMD draft class, on a CPU, with and without the patch series.

The questions are the functions of `amd_class_driver`, or of another driver beside it; they are
answered in one process per tree, as importing vLLM is what takes the time. The trees and their
environment are the rehearsal's.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from deploy import recipe
from deploy.environment import cache_dir
from deploy.rehearsal.environment import prepare
from patches.loadcheck import process

DRIVER = "amd_class_driver.py"
DEADLINE_S = 550.0
"""Below the suite's own deadline of a test; importing vLLM takes 10 s on an idle machine."""


Answers = dict[str, dict[str, Any]]


def ask_both(
    folder: Path,
    *,
    pristine: Answers,
    patched: Answers,
    deadline_s: float = DEADLINE_S,
    driver: str = DRIVER,
) -> tuple[Answers, Answers]:
    """Answer each tree's named questions, both trees at the same time.

    Raises what `ask` raises.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = [
            pool.submit(
                ask,
                folder / name,
                questions,
                patched=is_patched,
                deadline_s=deadline_s,
                driver=driver,
            )
            for name, questions, is_patched in (
                ("pristine", pristine, False),
                ("patched", patched, True),
            )
        ]
        return runs[0].result(), runs[1].result()


def ask(
    folder: Path,
    questions: Answers,
    *,
    patched: bool,
    deadline_s: float = DEADLINE_S,
    driver: str = DRIVER,
) -> Answers:
    """Answer named questions on the patched or the pristine tree; scratch files go to `folder`.

    `driver` is the program beside this file whose questions they are.

    Raises `AssertionError` with the end of the driver's output if it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = prepare(cache_dir(os.environ), patched=patched)
    asked, answered = folder / "questions.json", folder / "answers.json"
    asked.write_text(json.dumps(list(questions.values())))
    variables = environment.over(os.environ)
    variables |= recipe.load().profile("rehearsal").env
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name(driver)), str(asked), str(answered)],
        env=process.environment(environment.tree, variables, folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return dict(zip(questions, json.loads(answered.read_text()), strict=True))
