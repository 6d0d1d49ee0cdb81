"""GSM8K through lm-eval, where the user has both: nothing is installed or downloaded for it.

lm-eval runs as a program of its own, told to be offline. Whatever it lacks or ends with, GSM8K is
then not judged: what it could not do says nothing about the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deploy.files import read_text
from healthcheck.accuracy.ask import RANDOM, score_row, width
from healthcheck.accuracy.results import Report
from healthcheck.accuracy.score import Score
from healthcheck.service import generate
from healthcheck.smoke.results import Check
from healthcheck.smoke.target import Session
from healthcheck.words import one_line

NAME = "GSM8K"
PROGRAM = "lm_eval"
FLOOR = 0.91
SOURCE = "which V4-Pro passes on MI355X (InferenceX)"
# Of lm-eval's two the one that forgives the form of an answer.
METRIC = "exact_match,flexible-extract"
HOW = (
    "it is judged where `pip install 'lm_eval[api]'` put lm_eval on PATH and the data set "
    "openai/gsm8k is in the Hugging Face cache (HF_HOME)"
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
LIMIT_BYTES = 16 << 20


class NotJudged(RuntimeError):
    """There is no score; the message says why on one line."""


def gsm8k_rows(report: Report, session: Session) -> Iterator[Check]:
    """The row of its score, if there is one."""
    if not session.target.profile.health.known_answers:
        report.leave_out(NAME, RANDOM)
        return
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            _run(_command(session, Path(folder)), session)
            score = _score(Path(folder))
    except NotJudged as e:
        report.leave_out(NAME, f"{e}; {HOW}")
        return
    report.scores.append(score)
    yield score_row(score, time.monotonic() - began)


def _command(session: Session, folder: Path) -> list[str]:
    program = shutil.which(PROGRAM)
    if program is None:
        raise NotJudged(f"{PROGRAM} is not on PATH")
    target = session.target
    asked = {
        "model": target.model,
        "base_url": target.client.base_url + generate.PATH,
        "num_concurrent": width(session),
        "max_retries": 1,
        "timeout": round(target.profile.health.generation_timeout_s),
        "max_length": 4096,
        "max_gen_toks": 512,
        "tokenizer_backend": "none",
        "tokenized_requests": False,
    }
    if target.client.authorities:
        asked["ca_cert_path"] = target.client.authorities
    model_args = ",".join(f"{name}={value}" for name, value in asked.items())
    return [
        *(program, "--model", "local-completions", "--model_args", model_args),
        *("--tasks", "gsm8k", "--num_fewshot", "5", "--output_path", str(folder)),
    ]


def _run(command: Sequence[str], session: Session) -> None:
    """Run lm-eval to its end, within the budget. Raises NotJudged."""
    path = generate.PATH
    key = session.target.client.headers_for(path, None).get("Authorization", "")
    environ = {**os.environ, **OFFLINE, "OPENAI_API_KEY": key.removeprefix("Bearer ")}
    budget_s = session.target.budget_s
    with tempfile.TemporaryFile() as told:
        try:
            child = subprocess.Popen(
                command, env=environ, stdout=told, stderr=told, start_new_session=True
            )
        except OSError as e:
            raise NotJudged(f"{command[0]} cannot be run ({e.strerror})") from e
        try:
            code = child.wait(timeout=budget_s)
        except subprocess.TimeoutExpired:
            why = f"{PROGRAM} did not end in the {budget_s:.0f} s given (--budget)"
            raise NotJudged(why) from None
        finally:
            # Its own children too, and before us if we are interrupted.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if code:
            told.seek(max(told.tell() - 4096, 0))
            lines = told.read().decode("utf-8", errors="replace").strip().splitlines()
            last = one_line(lines[-1])[:160] if lines else "it says nothing"
            raise NotJudged(f"{PROGRAM} ended with {code} ({last})")


def _score(folder: Path) -> Score:
    """The score that lm-eval wrote. Raises NotJudged."""
    files = sorted(folder.rglob("results*.json"))
    try:
        found: Any = json.loads(read_text(files[-1], LIMIT_BYTES))
        rate = float(found["results"]["gsm8k"][METRIC])
        count = int(found["n-samples"]["gsm8k"]["effective"])
        if not (0 <= rate <= 1 and 0 < count < 1 << 20):
            raise ValueError(f"{rate} of {count}")
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as e:
        raise NotJudged(f"{PROGRAM} wrote no score that can be read ({type(e).__name__})") from None
    return Score(NAME, round(rate * count), count, 0, FLOOR, SOURCE)
