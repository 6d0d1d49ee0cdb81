"""`make evidence`: what it asks of a server, how it judges, and what its file never holds."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy import recipe
from deploy.validation import evidence
from deploy.validation.evidence import Target, Tester, redaction
from deploy.validation.parts import EvidenceError
from deploy.validation.row import HEADER
from tests.support.recorded_hosts import RecordedHost, broken, gpu_host
from tests.support.scripted_server import ScriptedServer, scripted_server

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


# Of the accuracy test likewise.
ACCURACY: Mapping[str, Any] = {
    "schema": 1,
    "verdict": "good",
    "seed": 1,
    "checks": [
        {"name": "arithmetic", "outcome": "good", "code": "", "evidence": "238 of 240 right"}
    ],
    "scores": [
        {"name": "arithmetic", "right": 238, "answered": 240},
        {"name": "GSM8K", "right": 1253, "answered": 1319},
    ],
    "needles": [
        {"prompt_tokens": 1500, "asked": 5, "found": 5},
        {"prompt_tokens": 64000, "asked": 5, "found": 5},
    ],
    "limits": ["GSM8K alone passes it"],
    "left_out": [],
    "timings_s": {"total": 420.0},
}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server that is gone at the end."""
    with scripted_server(models=("deepseek-v4-flash",)) as one:
        yield one


def _target(server: ScriptedServer, profile: str = "mi300x") -> Target:
    chosen = recipe.load().profile(profile)
    return Target(chosen, urlsplit(server.url), chosen.served_model_name, key=server.key or "")


def _reports(smoke: Mapping[str, Any] = SMOKE, accuracy: Mapping[str, Any] = ACCURACY) -> Tester:
    return lambda name, _: {"smoke": smoke, "accuracy": accuracy}[name]


def _gathered(
    target: Target,
    tree: Path,
    smoke: Mapping[str, Any] = SMOKE,
    accuracy: Mapping[str, Any] = ACCURACY,
) -> dict[str, Any]:
    return evidence.gather(target, RecordedHost(tree), recipe.load(), _reports(smoke, accuracy))


# --- the whole


def test_all_that_holds_is_good_and_fills_a_row(server: ScriptedServer, tmp_path: Path) -> None:
    """Machine, preflight, smoke test and accuracy test of a host that serves well."""
    found = _gathered(_target(server), gpu_host(tmp_path, "mi300x", gpus=1).done())
    assert (found["schema"], found["verdict"]) == (evidence.SCHEMA, "good")
    assert found["profile"]["pinned_image_digest"] == recipe.load().vllm.digest
    assert found["machine"]["gpus"][0]["compute_units"] == 304
    for kept in ("seed", "scores", "needles", "limits"):
        assert found["accuracy"][kept] == ACCURACY[kept]
    assert found["row"].startswith("| `mi300x` | 1 x MI300X | gfx942 | good on ")
    for word in (
        "vLLM 0.27.1", "ROCm 7.2.3-81", "driver 6.16.6", "acceptance 43.2%",
        "needles 10 of 10, up to 64000 tokens", "arithmetic 238 of 240, GSM8K 1253 of 1319",
    ):  # fmt: skip
        assert word in found["row"]
    assert HEADER in (ROOT / "README.md").read_text("utf-8")


NOTHING: Mapping[str, Any] = {**ACCURACY, "scores": [], "needles": []}


def test_a_rehearsal_is_not_judged_by_what_random_weights_cannot(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """An accuracy test that was for form alone is enough there; no image ran."""
    tree = gpu_host(tmp_path, "mi300x").done()
    found = _gathered(_target(server, "rehearsal"), tree, accuracy=NOTHING)
    assert found["verdict"] == "good"
    assert found["profile"]["pinned_image_digest"] is None
    assert "needles not judged; answers not judged" in found["row"]


LOST = [
    {"prompt_tokens": 1500, "asked": 5, "found": 5},
    {"prompt_tokens": 8000, "asked": 5, "found": 0},
]


@pytest.mark.parametrize(
    ("smoke", "accuracy", "verdict", "told"),
    [
        ({"verdict": "bad"}, {}, "bad", "smoke test bad"),
        ({"verdict": "unknown"}, {}, "unknown", "smoke test unknown"),
        ({}, {"verdict": "bad", "needles": LOST}, "bad", "needles 5 of 10, up to 1500 tokens"),
        ({}, {"verdict": "unknown"}, "unknown", "arithmetic 238 of 240"),
        ({}, {"needles": []}, "unknown", "needles not judged"),
        ({}, {"scores": []}, "unknown", "answers not judged"),
        ({}, {"verdict": "bad", "scores": []}, "bad", "answers not judged"),
    ],
)
def test_the_worst_part_is_the_verdict(
    server: ScriptedServer,
    tmp_path: Path,
    smoke: Mapping[str, Any],
    accuracy: Mapping[str, Any],
    verdict: str,
    told: str,
) -> None:
    """A test that fails, or on real weights has judged nothing, is the whole's verdict."""
    tree = gpu_host(tmp_path, "mi300x", gpus=1).done()
    found = _gathered(_target(server), tree, {**SMOKE, **smoke}, {**ACCURACY, **accuracy})
    assert found["verdict"] == verdict
    assert told in found["row"]


@pytest.mark.parametrize("name", ["smoke", "accuracy"])
def test_what_is_no_report_is_refused(server: ScriptedServer, tmp_path: Path, name: str) -> None:
    """A report without verdict or rows ends it, before any row is filled."""
    tree = gpu_host(tmp_path, "mi300x", gpus=1).done()
    for report in ({}, {"verdict": "fine", "checks": []}, {"verdict": "good", "checks": 3}):
        with pytest.raises(EvidenceError, match=f"{name}: its report has verdict"):
            _gathered(_target(server), tree, **{name: report})
    with pytest.raises(EvidenceError, match="accuracy: its report has no scores or needles"):
        _gathered(_target(server), tree, accuracy={"verdict": "good", "checks": []})


def test_what_the_running_server_causes_is_not_held_against_the_machine(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """Memory in use and a taken port are the server itself."""
    found = _gathered(_target(server), broken(tmp_path).done())
    levels = {finding["check"]: finding["level"] for finding in found["preflight"]}
    assert levels["gpu.vram"] == levels["net.serve_port"] == "not applicable"
    assert levels["gpu.kfd"] == "fail"


def test_another_machines_server_says_nothing_about_this_one(
    server: ScriptedServer, tmp_path: Path
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
    server: ScriptedServer, tmp_path: Path
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
    text: str, clean: str, server: ScriptedServer, tmp_path: Path
) -> None:
    """Figures, versions, routes and devices stay; names and paths go."""
    tree = gpu_host(tmp_path, "mi300x")
    tree.notes["hostname"] = "box.example.org"
    assert redaction(_target(server), RecordedHost(tree.done())).text(text) == clean


# --- the command


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
def test_misuse_is_one_line_before_anything_runs(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and what to give."""
    assert evidence.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert words in said.err


def test_the_command_writes_the_file_and_prints_the_row(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code by the verdict; the file is the evidence, the row stands on standard output."""
    out = tmp_path / "made" / "evidence.json"
    arguments = ["--profile", "mi300x", "--url", server.url, "--out", str(out)]
    assert evidence.main(arguments, _reports()) == 0
    printed = capsys.readouterr().out
    found = json.loads(out.read_text("utf-8"))
    assert printed == f"{HEADER}\n{found['row']}\n"
    assert evidence.main(arguments, _reports(accuracy={**ACCURACY, "verdict": "bad"})) == 1
    assert [path.name for path in out.parent.iterdir()] == ["evidence.json"]


def test_a_smoke_test_without_a_report_leaves_no_file(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """Whatever ends the smoke test early ends the evidence, with its exit code told."""
    out = tmp_path / "evidence.json"
    server.down()

    def broken(name: str, target: Target) -> Mapping[str, Any]:
        return evidence.test_with("/bin/false", name, target)

    arguments = ["--profile", "mi300x", "--url", server.url, "--out", str(out)]
    assert evidence.main(arguments, broken) == 2
    assert not out.exists()


def test_the_real_tests_are_read(server: ScriptedServer, tmp_path: Path) -> None:
    """Smoke and accuracy test as users run them, against a server: their reports become parts."""
    target = dataclasses.replace(_target(server, "rehearsal"), model="deepseek-v4-flash")
    found = evidence.gather(
        target,
        RecordedHost(gpu_host(tmp_path, "mi300x").done()),
        recipe.load(),
        partial(evidence.test_with, sys.executable),
    )
    assert found["smoke"]["vllm_version"] == "0.27.1"
    names = [check["name"] for check in found["smoke"]["checks"]]
    assert names[:2] == ["listening", "version"]
    names = [check["name"] for check in found["accuracy"]["checks"]]
    assert "arithmetic answered" in names and found["accuracy"]["outcome"] == "good"
    assert "127.0.0.1" not in json.dumps(found)
