"""vLLM's own judgement of a plan: its parser and engine configuration, on the CPU, no weights."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import recipe
from deploy.preflight import engine
from tests.support import tiny_v4

ROOT = Path(__file__).resolve().parents[2]

# Judges several command lines in one process, because importing vLLM takes longer than judging,
# and runs the command on the last.
JUDGE = """
import contextlib, io, json, os, sys
from deploy.preflight import engine
engine._quieten(os.environ)
answers = []
*judged, commanded = json.load(sys.stdin)
for argv in judged:
    try:
        answers.append(engine.dataclasses.asdict(engine.judge(argv)))
    except engine.Complaint as e:
        answers.append(str(e))
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    code = engine.main(commanded)
answers.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
from vllm.model_executor.models import registry
answers.append(registry._run_in_subprocess(os.getpid) == os.getpid())
print("ANSWERS" + json.dumps(answers))
"""


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "deploy.preflight.engine", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--profile", "mi999"], 2, "mi999"),
        ([], 2, "--profile: got none"),
        (["--format", "xml", "--profile", "mi355x"], 2, "xml"),
        (["--profile", "mi355x", "--", "--max-num-sequences", "8"], 1, "did you mean --max-num-seqs"),
        (["--profile", "mi355x", "--", "-pp", "2"], 1, "pipeline-parallel-size"),
    ],
)  # fmt: skip
def test_what_needs_no_vllm_is_refused_before_it_is_imported(
    arguments: list[str], code: int, told: str
) -> None:
    """One line, and nothing on stdout."""
    ended = run(*arguments)
    assert ended.returncode == code
    assert ended.stdout == ""
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_without_vllm_the_command_says_where_to_run_it() -> None:
    """An interpreter that sees the standard library alone refuses in one line."""
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r});"
         " from deploy.preflight.engine import main; sys.exit(main(['--profile', 'mi355x']))"],
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "vllm is not installed" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("first\n  second"), "first second"),
        (KeyError("w13"), "KeyError 'w13'"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_complaint_is_one_line(error: Exception, told: str) -> None:
    """Whatever vLLM raises."""
    assert engine.complaint(error) == told


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, str]:
    """The environment in which vLLM runs on this machine's CPU, its tree and models made once."""
    pytest.importorskip("torch")
    from deploy.environment import cache_dir
    from deploy.rehearsal import environment

    prepared = environment.prepare(cache_dir(os.environ))
    environ = prepared.over(os.environ)
    environ["PYTHONPATH"] += f":{ROOT}"
    # set for AMD plans too, whose profile has no reason to: without it the CPU has no Triton
    environ["TRITON_INTERPRET"] = "1"
    return environ


@pytest.mark.real
def test_vllm_accepts_the_rehearsals_plan(rehearsal: dict[str, str]) -> None:
    """The whole command: V2 runner, the Qwen3 draft, K and its block, and what was not judged."""
    ended = run("--profile", "rehearsal", "--format", "json", **rehearsal)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    profile = recipe.load().profile("rehearsal")
    assert profile.speculative is not None
    assert answer["platform"] == "cpu"
    assert answer["runner"] == "V2"
    assert answer["draft_architecture"] == "Qwen3DSparkModel"
    assert answer["num_speculative_tokens"] == profile.speculative["num_speculative_tokens"]
    assert answer["dspark_block_size"] <= answer["num_speculative_tokens"]
    assert answer["draft_sample_method"] == "probabilistic"
    assert answer["max_model_len"] == profile.serve["max-model-len"]
    assert answer["not_judged"] == list(engine.ROCM_ONLY)


@pytest.fixture(scope="module")
def v4_answers(
    rehearsal: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """vLLM's answers on plans for a tiny V4 model, keyed by what is special about them."""
    model = str(tiny_v4.write(tmp_path_factory.mktemp("tiny-v4")))
    base = {"method": "dspark", "num_speculative_tokens": 5, "draft_sample_method": "probabilistic"}

    def argv(*flags: str, **speculative: object) -> list[str]:
        config = json.dumps({**base, **speculative})
        common = ["--kv-cache-dtype", "fp8", "--block-size", "256", "--max-model-len", "4096"]
        return ["vllm", "serve", model, *common, "--speculative-config", config, *flags]

    asked = {
        "plain": argv(),
        "model spelled out": argv(model=model),
        "K below the block": argv(num_speculative_tokens=3),
        "unknown flag": argv("--no-such-flag"),
        "pipeline": argv("--pipeline-parallel-size", "2"),
        "no slot": argv("--max-num-batched-tokens", "256", "--max-num-seqs", "64"),
        "a few slots": argv("--max-num-batched-tokens", "256", "--max-num-seqs", "63"),
        "refused": ["--profile", "rehearsal", "--", "--max-model-len", "9999999"],
    }
    ended = subprocess.run(
        [sys.executable, "-c", JUDGE],
        input=json.dumps(list(asked.values())),
        env=rehearsal,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert "ANSWERS" in ended.stdout, ended.stderr[-2000:]
    answers = json.loads(ended.stdout.rpartition("ANSWERS")[2])
    return dict(zip((*asked, "inspects here"), answers, strict=True))


@pytest.mark.real
def test_a_v4_draft_without_a_model_key_keeps_its_quantization(v4_answers: dict[str, Any]) -> None:
    """Target and draft load with the same class of vLLM."""
    answer = v4_answers["plain"]
    assert answer["quantization"] == answer["draft_quantization"] == "DeepseekV4FP8Config"
    assert (answer["num_speculative_tokens"], answer["dspark_block_size"]) == (5, 5)
    assert answer["runner"] == "V2"


@pytest.mark.real
def test_a_v4_draft_with_a_model_key_is_refused(v4_answers: dict[str, Any]) -> None:
    """On 0.27.1 its configuration is plain FP8, which ends in a KeyError when weights load."""
    answer = v4_answers["model spelled out"]
    assert "would load with Fp8Config, the target with DeepseekV4FP8Config" in answer
    assert "51758" in answer


@pytest.mark.real
def test_the_drafts_slots_are_counted_as_vllm_does(v4_answers: dict[str, Any]) -> None:
    """K - 1 of them a sequence: 63 sequences leave something of 256 tokens, 64 nothing."""
    assert v4_answers["a few slots"]["num_speculative_tokens"] == 5
    assert "does not allow any tokens to be scheduled" in v4_answers["no slot"]


@pytest.mark.real
def test_vllms_own_words_are_passed_on(v4_answers: dict[str, Any]) -> None:
    """K below the block, a flag it lacks, pipeline parallelism."""
    assert "num_speculative_tokens >= dspark_block_size (5)" in v4_answers["K below the block"]
    assert "--no-such-flag" in v4_answers["unknown flag"]
    assert "Pipeline parallelism is not supported" in v4_answers["pipeline"]


@pytest.mark.real
def test_vllm_refuses_in_one_line(v4_answers: dict[str, Any]) -> None:
    """A length the model does not have passes the vocabulary and is vLLM's to refuse."""
    ended = v4_answers["refused"]
    assert (ended["code"], ended["out"]) == (1, "")
    (line,) = [text for text in ended["err"].splitlines() if text.startswith("engine-config: ")]
    assert "max_model_len" in line
    assert "Traceback" not in ended["err"]


@pytest.mark.real
def test_the_rehearsal_inspects_a_models_class_in_its_own_process(
    v4_answers: dict[str, Any],
) -> None:
    """vLLM's registry would start one for each class, which imports vLLM again."""
    assert v4_answers["inspects here"]
