"""`make evidence`: what it asks of a server, how it judges, and what its file never holds."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy import evidence, recipe
from deploy.evidence import Answer, EvidenceError, Redaction, Target
from deploy.preflight.host import RecordedHost
from deploy.word_problems import NEEDED, PROBLEMS, is_right, number_of
from tests.support.recorded_hosts import broken, gpu_host
from tests.support.scripted_server import ScriptedServer, completion, error

ROOT = Path(__file__).resolve().parents[2]
KEY = "a-key-of-the-test"

# A report of the smoke test as far as evidence reads it; the real one is used below.
SMOKE: Mapping[str, Any] = {
    "schema": 2,
    "verdict": "good",
    "target": "http://gpu-7.example.net:8000",
    "vllm_version": "0.27.1",
    "max_model_len": 65536,
    "speculates": True,
    "checks": [
        {"name": "listening", "outcome": "good", "code": "", "evidence": "at 10.1.2.3:8000"}
    ],
    "acceptance": {"rate": 0.4319, "drafts": 512},
    "reference": {"acceptance_rate": 0.4319},
    "levels": [],
    "left_out": [],
    "long_prompts": [
        {"prompt_tokens": 1000, "seconds": 1.0, "found": True},
        {"prompt_tokens": 64000, "seconds": 9.0, "found": True},
    ],
    "timings_s": {"total": 42.0},
}


class Reckoner(ScriptedServer):
    """A server that solves the word problems as far as `knows` goes; the others it gets wrong."""

    knows = len(PROBLEMS)
    says = "Step one.\nAnswer: {}"
    fails: int | None = None
    asked: list[Mapping[str, Any]]

    def chat(self, payload: Mapping[str, Any]) -> tuple[int, bytes]:
        """The problem's number, or a wrong one."""
        self.asked = [*getattr(self, "asked", []), payload]
        if self.fails is not None:
            return error(self.fails, "no")
        prompt = payload["messages"][-1]["content"]
        for place, problem in enumerate(PROBLEMS):
            if problem.question in prompt:
                number = problem.answer if place < self.knows else problem.answer + 1
                message = {"role": "assistant", "content": self.says.format(number)}
                body = completion(prompt, 0, 4)
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                return 200, json.dumps({**body, "choices": [choice]}).encode()
        return super().chat(payload)


@pytest.fixture
def server() -> Iterator[Reckoner]:
    """A server that is gone at the end."""
    one = Reckoner(models=("deepseek-v4-flash",))
    try:
        yield one
    finally:
        one.down()


def _target(server: ScriptedServer, profile: str = "mi300x", *, limit_s: float = 30.0) -> Target:
    chosen = recipe.load().profile(profile)
    health = dataclasses.replace(chosen.health, generation_timeout_s=limit_s)
    chosen = dataclasses.replace(chosen, health=health)
    return Target(chosen, urlsplit(server.url), chosen.served_model_name, key=server.key or "")


def _gathered(target: Target, tree: Path, smoke: Mapping[str, Any] = SMOKE) -> dict[str, Any]:
    return evidence.gather(target, RecordedHost(tree), recipe.load(), lambda _: smoke)


# --- the problems


def test_the_problems_are_sound() -> None:
    """Each has a name and a text of its own, and its answer does not stand in the text."""
    assert len({p.name for p in PROBLEMS}) == len({p.question for p in PROBLEMS}) == len(PROBLEMS)
    for problem in PROBLEMS:
        numbers = re.findall(r"\d[\d,]*", problem.question)
        assert str(problem.answer) not in [number.replace(",", "") for number in numbers]
    assert len(PROBLEMS) >= NEEDED


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Answer: 17", 17),
        ("So 3 + 4 = 7.\n**Answer: 1,260**", 1260),
        ("The answer is 25 minutes, not 24.", 25),
        ("answer: $740.00", 740),
        ("Answer: -3", -3),
        ("first 5, then 18", 18),
        ("Answer: none of 9", 9),
        ("", None),
        ("no number at all", None),
        ("1" * 5000, None),
    ],
)
def test_the_number_of_an_answer_is_found(text: str, number: float | None) -> None:
    """Behind the last "Answer", with thousands and currency; else the last number."""
    assert number_of(text) == number


def test_grading_takes_no_time_on_adversarial_text() -> None:
    """No text makes the search run away."""
    began = time.monotonic()
    for text in ("answer " * 50_000, "1," * 100_000, "answer" + "*" * 200_000, "-" * 200_000):
        is_right(PROBLEMS[0], text)
    assert time.monotonic() - began < 30


def test_every_problem_is_asked_greedily_and_sampled(server: Reckoner) -> None:
    """Both ways, with seeds and the model's name, and the key where there is one."""
    server.key = KEY
    part = evidence.arithmetic_part(_target(server))
    assert part["outcome"] == "good"
    assert [part[way]["right"] for way in ("greedy", "sampled")] == [len(PROBLEMS)] * 2
    assert [p["temperature"] for p in server.asked] == [0.0] * len(PROBLEMS) + [1.0] * len(PROBLEMS)
    assert {p["model"] for p in server.asked} == {"deepseek-v4-flash"}
    # Thoughts would eat the tokens of the answer, and releases differ in whether they think.
    assert not any(p["chat_template_kwargs"]["thinking"] for p in server.asked)


def test_a_server_that_reckons_wrongly_is_bad(server: Reckoner) -> None:
    """Answers 200 throughout, reads well, is wrong: what a broken sampler looks like."""
    server.knows = NEEDED - 1
    part = evidence.arithmetic_part(_target(server))
    assert part["outcome"] == "bad"
    assert part["greedy"]["right"] == NEEDED - 1
    wrong = part["sampled"]["answers"][-1]
    assert (wrong["right"], wrong["said"]) == (False, PROBLEMS[-1].answer + 1)


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
def test_a_server_that_refuses_is_not_called_wrong(server: Reckoner, status: int) -> None:
    """What was not answered is unknown, and after a few failures nothing more is asked."""
    server.fails = status
    part = evidence.arithmetic_part(_target(server))
    assert part["outcome"] == "unknown"
    assert len(server.asked) == 2 * evidence.FAILURES
    assert part["greedy"]["answers"][0]["failure"] == f"HTTP {status}"


@pytest.mark.parametrize(
    "says", ["x" * (evidence.ANSWER_BYTES + 1), "Nothing to say.", "Answer: {0} Answer: {0}"]
)
def test_odd_answers_are_taken(server: Reckoner, says: str) -> None:
    """An answer of megabytes, one without a number, one that repeats itself: no error."""
    server.says = says
    answer = evidence.ask(_target(server), PROBLEMS[0], 0.0, 1.0, 1)
    assert answer.right == (says == "Answer: {0} Answer: {0}")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"null", b'{"choices": []}', b'{"choices": [{"message": 3}]}']
)
def test_what_is_no_answer_is_a_failure(
    server: Reckoner, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 200 with anything but a chat answer is told as such."""
    monkeypatch.setattr(server, "chat", lambda payload: (200, body), raising=True)
    answer = evidence.ask(_target(server), PROBLEMS[0], 0.0, 1.0, 1)
    assert answer.failure == "not an answer of /v1/chat/completions"


def test_a_server_that_is_gone_is_a_failure(server: Reckoner) -> None:
    """Refused connections are told by their kind."""
    server.down()
    assert (
        evidence.ask(_target(server), PROBLEMS[0], 0.0, 1.0, 1).failure == "ConnectionRefusedError"
    )


@pytest.mark.parametrize(
    ("right", "failed", "outcome"),
    [
        (NEEDED, 0, "good"),
        (NEEDED - 1, 0, "bad"),
        (NEEDED - 1, 1, "unknown"),
        (0, 0, "bad"),
        (0, 12, "unknown"),
    ],
)
def test_answers_are_judged_by_what_was_answered(right: int, failed: int, outcome: str) -> None:
    """Failures leave it open only if they could have made the difference."""
    wrong = len(PROBLEMS) - right - failed
    answers = [Answer("x", True)] * right + [Answer("x", False)] * wrong
    answers += [Answer("x", False, failure="HTTP 500")] * failed
    assert evidence.judge(answers) == outcome


# --- the whole


def test_all_that_holds_is_good_and_fills_a_row(server: Reckoner, tmp_path: Path) -> None:
    """Machine, preflight, smoke, needle and arithmetic of a host that serves well."""
    found = _gathered(_target(server), gpu_host(tmp_path, "mi300x", gpus=1).done())
    assert (found["schema"], found["verdict"]) == (evidence.SCHEMA, "good")
    assert found["profile"]["pinned_image_digest"] == recipe.load().vllm.digest
    assert found["machine"]["gpus"][0]["compute_units"] == 304
    assert found["needle"] == {
        "outcome": "good", "asked": 2, "found": 2, "longest_found_tokens": 64000,
    }  # fmt: skip
    assert found["row"].startswith("| `mi300x` | 1 x MI300X | gfx942 | good on ")
    for word in (
        "vLLM 0.27.1", "ROCm 7.2.3-81", "driver 6.16.6", "acceptance 43.2%", "needle 2 of 2",
        "arithmetic 12 of 12 greedy, 12 of 12 sampled",
    ):  # fmt: skip
        assert word in found["row"]
    assert evidence.HEADER in (ROOT / "README.md").read_text("utf-8")


def test_a_rehearsal_is_not_asked_what_random_weights_cannot(
    server: Reckoner, tmp_path: Path
) -> None:
    """Needle and arithmetic do not apply, are not asked, and are no part of the verdict; no image
    ran."""
    found = _gathered(_target(server, "rehearsal"), gpu_host(tmp_path, "mi300x").done())
    for part in ("needle", "arithmetic"):
        assert found[part]["outcome"] == "not applicable"
        assert "rehearsal" in found[part]["why"]
    assert found["verdict"] == "good"
    assert found["profile"]["pinned_image_digest"] is None
    assert not hasattr(server, "asked")
    assert "needle not applicable; arithmetic not applicable" in found["row"]


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"verdict": "bad"}, "bad"),
        ({"verdict": "unknown"}, "unknown"),
        ({"long_prompts": [{"prompt_tokens": 1000, "found": False}]}, "bad"),
        ({"long_prompts": []}, "unknown"),
        ({"long_prompts": [{"prompt_tokens": 1000, "found": None}]}, "unknown"),
    ],
)
def test_the_worst_part_is_the_verdict(
    server: Reckoner, tmp_path: Path, changed: Mapping[str, Any], verdict: str
) -> None:
    """A smoke test or a needle that fails, or could not be judged, is the whole's verdict."""
    tree = gpu_host(tmp_path, "mi300x", gpus=1).done()
    assert _gathered(_target(server), tree, {**SMOKE, **changed})["verdict"] == verdict


def test_what_is_no_smoke_report_is_refused(server: Reckoner, tmp_path: Path) -> None:
    """A report without verdict or rows ends it, before any row is filled."""
    tree = gpu_host(tmp_path, "mi300x", gpus=1).done()
    for report in ({}, {"verdict": "fine", "checks": []}, {"verdict": "good", "checks": 3}):
        with pytest.raises(EvidenceError, match="smoke: its report has verdict"):
            _gathered(_target(server), tree, report)


def test_what_the_running_server_causes_is_not_held_against_the_machine(
    server: Reckoner, tmp_path: Path
) -> None:
    """Memory in use and a taken port are the server itself."""
    found = _gathered(_target(server), broken(tmp_path).done())
    levels = {finding["check"]: finding["level"] for finding in found["preflight"]}
    assert levels["gpu.vram"] == levels["net.serve_port"] == "not applicable"
    assert levels["gpu.kfd"] == "fail"


def test_another_machines_server_says_nothing_about_this_one(
    server: Reckoner, tmp_path: Path
) -> None:
    """Where the server is elsewhere, neither preflight nor the cards here belong to it."""
    target = dataclasses.replace(
        _target(server), url=urlsplit("http://gpu-7.example.net:8000"), profile=_rehearsal()
    )
    found = _gathered(target, gpu_host(tmp_path, "mi300x").done())
    assert (found["machine"], found["preflight"]) == (None, None)


def _rehearsal() -> recipe.Profile:
    return recipe.load().profile("rehearsal")


# --- what is not sent


def test_nothing_that_names_machine_person_or_secret_is_written(
    server: Reckoner, tmp_path: Path
) -> None:
    """Of a host with everything wrong, whose findings name paths, hosts and addresses."""
    server.key = KEY
    rows = [
        {
            "name": "listening",
            "outcome": "bad",
            "evidence": f"http://gpu-7:8000 at 10.1.2.3:8000, fe80:0:0:1::2, {KEY}, "
            "hf_abcdefghijkl, read '/srv/my models/x' and /home/user/.cache/a.json of node-1",
        }
    ]
    target = _target(server)
    found = _gathered(target, broken(tmp_path).done(), {**SMOKE, "verdict": "bad", "checks": rows})
    text = json.dumps(found)
    for secret in (
        KEY, "hf_abc", "gpu-7", "10.1.2.3", "10.0.0.7", "fe80", "node-1", "/home", "/srv",
        "my models", "/cache/aiter", "/models/hub", "127.0.0.1", str(tmp_path), "example.net",
    ):  # fmt: skip
        assert secret not in text, secret
    assert "/dev/kfd" in text
    assert found["profile"]["name"] == "mi300x"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("27/48 at 50/99 ms, 15.6 tokens/s", "27/48 at 50/99 ms, 15.6 tokens/s"),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-ai/DeepSeek-V4-Flash-0731"),
        ("2026-11-29T19:22:00+00:00", "2026-11-29T19:22:00+00:00"),
        ("ROCm 7.2.3-81, driver 6.12.12.60400", "ROCm 7.2.3-81, driver 6.12.12.60400"),
        ("GET /v1/models and /dev/dri/renderD128", "GET /v1/models and /dev/dri/renderD128"),
        ("~/models/x, /a", "<path>, <path>"),
        ("box and box-2 of box.example.org", "<host> and box-2 of <host>"),
    ],
)
def test_redaction_leaves_what_is_no_secret(
    text: str, clean: str, server: Reckoner, tmp_path: Path
) -> None:
    """Figures, versions, routes and devices stay; names and paths go."""
    tree = gpu_host(tmp_path, "mi300x")
    tree.notes["hostname"] = "box.example.org"
    assert Redaction.of(_target(server), RecordedHost(tree.done())).text(text) == clean


# --- the command


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.evidence", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--profile", "mi999"), "got 'mi999'; it is one of"),
        (("--profile", "mi300x", "--url", "gpu:8000"), "--url: got 'gpu:8000'; give http://"),
        (("--profile", "mi300x", "--url", "http://u:p@gpu"), "--url: got"),
        (("--profile", "mi300x", "--out", "/"), "--out /: is a folder; give a file"),
        (("--profile", "mi300x", "--out", "/dev/null/x"), "/dev/null is not a folder; give a file"),
        (("--profile", "mi300x", "--api-key-file", "/none"), "No such file"),
        (("--profile", "mi300x", "--api-key-file", "/dev/null"), "no key in it"),
        (("--bogus",), "unrecognized arguments: --bogus; see"),
    ],
)
def test_misuse_is_one_line_before_anything_runs(arguments: tuple[str, ...], words: str) -> None:
    """Exit code 2, and what to give."""
    ran = _run(*arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert words in ran.stderr


def test_the_command_writes_the_file_and_prints_the_row(
    server: Reckoner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code by the verdict; the file is the evidence, the row stands on standard output."""
    out = tmp_path / "made" / "evidence.json"
    arguments = ["--profile", "mi300x", "--url", server.url, "--out", str(out)]
    assert evidence.main(arguments, lambda _: SMOKE) == 0
    printed = capsys.readouterr().out
    found = json.loads(out.read_text("utf-8"))
    assert printed == f"{evidence.HEADER}\n{found['row']}\n"
    server.knows = 0
    assert evidence.main(arguments, lambda _: SMOKE) == 1
    assert [path.name for path in out.parent.iterdir()] == ["evidence.json"]


def test_a_smoke_test_without_a_report_leaves_no_file(server: Reckoner, tmp_path: Path) -> None:
    """Whatever ends the smoke test early ends the evidence, with its exit code told."""
    out = tmp_path / "evidence.json"
    server.down()

    def broken_smoke(target: Target) -> Mapping[str, Any]:
        return evidence.smoke_with("/bin/false", target)

    arguments = ["--profile", "mi300x", "--url", server.url, "--out", str(out)]
    assert evidence.main(arguments, broken_smoke) == 2
    assert not out.exists()


def test_the_real_smoke_test_is_read(server: Reckoner, tmp_path: Path) -> None:
    """The smoke test as users run it, against a server: its report becomes a part."""
    target = dataclasses.replace(_target(server, "rehearsal"), model="deepseek-v4-flash")
    found = evidence.gather(
        target,
        RecordedHost(gpu_host(tmp_path, "mi300x").done()),
        recipe.load(),
        lambda asked: evidence.smoke_with(sys.executable, asked),
    )
    assert found["smoke"]["vllm_version"] == "0.27.1"
    names = [check["name"] for check in found["smoke"]["checks"]]
    assert names[:2] == ["listening", "version"]
    assert "127.0.0.1" not in json.dumps(found)
