"""The accuracy test against servers that solve its tasks, or do not: rows, scores, exit code."""

from __future__ import annotations

import json
import os
import random
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy import recipe
from deploy.validation import accuracy as make_target
from healthcheck import accuracy
from healthcheck.accuracy import calls, gsm8k
from healthcheck.accuracy.ask import CALLS, CALLS_FLOOR, FORM_TASKS, KINDS, SIDE_BY_SIDE
from healthcheck.accuracy.needles import DEPTHS
from healthcheck.accuracy.results import CLAMPED, UNCLAMPED, Report
from healthcheck.accuracy.score import (
    Score,
    answers_to_tell,
    chance_of_bad,
    sees_below,
    told_from,
    verdict,
)
from healthcheck.client import Client
from healthcheck.judge import PICKED_TOKENS, Outcome, tasks
from healthcheck.judge.numbers import number_of
from healthcheck.smoke.results import Check
from healthcheck.smoke.target import Session, Target
from tests.support.scripted_server import MODEL, completion, error
from tests.support.solving_server import SolvingServer

ROOT = Path(__file__).resolve().parents[2]
LM_EVAL_RESULT = {
    "results": {"gsm8k": {"exact_match,strict-match": 0.9, "exact_match,flexible-extract": 0.95}},
    "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}},
}


@pytest.fixture
def served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., SolvingServer]]:
    """Makes servers that are gone at the end; no lm_eval is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made: list[SolvingServer] = []

    def make(**fields: Any) -> SolvingServer:
        made.append(SolvingServer(**{"max_model_len": 10_000, **fields}))
        return made[-1]

    yield make
    for server in made:
        server.down()


def run(server: SolvingServer, path: Path, *more: str, profile: str = "mi355x") -> int:
    """The command, with its reports in a folder."""
    words = [server.url, "--profile", profile, "--model", MODEL, "--wait", "1"]
    files = ["--json", str(path / "a.json"), "--html", str(path / "a.html")]
    return accuracy.main([*words, *files, *more])


def report_of(path: Path) -> dict[str, Any]:
    """The JSON that was written."""
    data = json.loads((path / "a.json").read_text("utf-8"))
    assert isinstance(data, dict)
    return data


def rows(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Its checks by name."""
    return {check["name"]: check for check in report["checks"]}


# --- the tasks


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_tasks_are_drawn_by_their_seed(kind: Any) -> None:
    """The same seed asks the same, fewer tasks are the first of more, another seed asks others."""
    made = tasks.make(kind.draw, 1, 50)
    assert made == tasks.make(kind.draw, 1, 60)[:50]
    assert len({task.prompt for task in made}) == 50
    assert not set(made) & set(tasks.make(kind.draw, 2, 50))
    for task in made:
        assert task.is_right(f"so {task.answer + 2}\nAnswer: {task.answer:,}")
        assert not task.is_right(f"Answer: {task.answer + 1}")


def test_no_task_is_so_long_that_attention_chooses() -> None:
    """Two characters a token are fewer than any tokenizer needs for words and numbers."""
    for kind in KINDS:
        for task in tasks.make(kind.draw, 3, 100):
            assert len(task.prompt) / 2 < PICKED_TOKENS


def test_a_chain_ends_where_its_steps_lead() -> None:
    """Its written steps, done one after the other, give the answer; all three lengths are drawn."""
    lengths = set()
    for task in tasks.make(tasks.chain, 4, 40):
        head, *lines = task.prompt.split("\n\n")[0].splitlines()
        total = int(head.split()[2])
        lengths.add(len(lines))
        for line in lines:
            verb, *_, number = line.split(". ", 1)[1].split()
            total = {
                "add": total + int(number),
                "take": total - int(number),
                "multiply": total * int(number),
                "divide": total // int(number),
            }[verb]
            assert 0 <= total <= 9999
        assert total == task.answer
    assert lengths == set(tasks.CHAIN_STEPS)


def test_a_recalled_key_is_that_of_the_room_that_the_mail_goes_to() -> None:
    """The table holds the way to it, and only one."""
    for task in tasks.make(tasks.recall, 5, 20):
        table = {}
        for line in task.prompt.splitlines()[: tasks.ROOMS]:
            words = line.rstrip(".").replace(":", "").replace(",", "").split()
            table[words[3]] = (words[1], int(words[5]), words[10])
        guest = task.prompt.split("The mail of guest ")[1].split()[0]
        keys = {room: key for room, key, _ in table.values()}
        assert len(table) == tasks.ROOMS
        assert keys[table[guest][2]] == task.answer


def test_word_problems_have_answers_that_can_be() -> None:
    """Whole and not negative, of every template; each reads its own numbers."""
    texts = set()
    for draw in range(600):
        task = tasks.arithmetic(random.Random(draw))
        assert task.answer >= 0
        texts.add(task.prompt.split()[1])
    assert len(texts) > 4


def test_calls_ask_for_either_tool_in_turn() -> None:
    """The right call is one of a tool that is offered, with all of its arguments."""
    offered = {tool["function"]["name"]: tool["function"] for tool in calls.TOOLS}  # type: ignore[index]
    for call in calls.make(1, 20):
        needed = offered[call.name]["parameters"]["required"]
        assert set(call.arguments) == set(needed)
        assert all(str(value) in call.question for value in call.arguments.values())
        assert call.is_right((call.name, dict(call.arguments)))
        assert not call.is_right((call.name, {**call.arguments, "station": "7"}))
        assert not call.is_right(None)


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
    """No text makes the search run away: a run of one that did would not end."""
    for text in ("answer " * 50_000, "1," * 100_000, "answer" + "*" * 200_000, "-" * 200_000):
        number_of(text)


# --- scores


@pytest.mark.parametrize(
    ("right", "answered", "outcome"),
    [
        (95, 100, Outcome.GOOD),
        (90, 100, Outcome.GOOD),
        (89, 100, Outcome.UNKNOWN),
        (84, 100, Outcome.UNKNOWN),
        (83, 100, Outcome.BAD),
        (0, 29, Outcome.UNKNOWN),
        (0, 30, Outcome.BAD),
        (0, 0, Outcome.UNKNOWN),
    ],
)
def test_a_rate_is_bad_where_its_interval_is_below_the_floor(
    right: int, answered: int, outcome: Outcome
) -> None:
    """A few wrong ones are no verdict, and none of none is none."""
    assert verdict(right, answered, 0.9) is outcome


@pytest.mark.parametrize(
    ("right", "failed", "outcome"),
    [
        (90, 10, Outcome.GOOD),
        (89, 11, Outcome.UNKNOWN),
        (70, 5, Outcome.BAD),
        (0, 100, Outcome.UNKNOWN),
    ],
)
def test_what_was_not_answered_leaves_it_open_where_it_mattered(
    right: int, failed: int, outcome: Outcome
) -> None:
    """Of 100 tasks: the verdict holds whatever the missing answers would have been, or is none."""
    assert Score("x", right, 100 - failed, failed, 0.9, "ours").outcome is outcome


def test_the_power_is_that_of_a_simulation() -> None:
    """How often tasks call a server bad, reckoned and counted, agree."""
    draw = random.Random(1)
    for tasks_, floor, rate in ((240, 0.9, 0.83), (60, 0.85, 0.7), (120, 0.75, 0.75)):
        runs = [
            verdict(sum(draw.random() < rate for _ in range(tasks_)), tasks_, floor)
            for _ in range(2000)
        ]
        counted = runs.count(Outcome.BAD) / len(runs)
        assert chance_of_bad(tasks_, floor, rate) == pytest.approx(counted, abs=0.04)
    assert chance_of_bad(100, 0.9, 1.0) == 0
    assert chance_of_bad(100, 0.9, 0.0) == 1
    assert chance_of_bad(29, 0.9, 0.0) == 0
    floors = (0.75, 0.85, 0.9, 0.91)
    assert max(chance_of_bad(n, f, f) for f in floors for n in range(1, 260)) < 0.031


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_sees_a_fall_and_seldom_invents_one(kind: Any) -> None:
    """A server at the floor is bad in 2 of 100 runs at most, one at two thirds of it nearly always."""
    assert chance_of_bad(kind.count, kind.floor, kind.floor) < 0.02
    assert sees_below(kind.count, kind.floor) > 0.75 * kind.floor
    assert chance_of_bad(kind.count, kind.floor, kind.floor * 2 / 3) > 0.99


def test_a_lost_clamp_is_not_seen_by_scores() -> None:
    """0.936 and 0.928 of GSM8K take more answers than there are, so the report must say so."""
    assert 25_000 < answers_to_tell(0.936, 0.928) < 26_500
    assert verdict(round(0.928 * 1319), 1319, gsm8k.FLOOR) is Outcome.GOOD
    assert told_from(1319, 0.936) < 0.928
    told = told_from(240, 0.95)
    assert answers_to_tell(0.95, told) <= 240 < answers_to_tell(0.95, told + 0.002)


# --- the run


def test_a_server_that_solves_all_is_good(
    served: Callable[..., SolvingServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0; scores with intervals, needles by length, and what was not judged, in both reports."""
    server = served()
    assert run(server, tmp_path, "--seed", "1") == 0
    check_sampling(server)
    check_depths(server)
    report = report_of(tmp_path)
    assert (report["kind"], report["verdict"], report["seed"]) == ("accuracy", "good", 1)
    counts = {kind.name: kind.count for kind in KINDS} | {"tool calls": CALLS}
    assert {s["name"]: s["right"] for s in report["scores"]} == counts
    assert all(s["low"] < 0.99 < s["high"] and s["rate"] == 1 for s in report["scores"])
    assert [n["prompt_tokens"] for n in report["needles"]] == [1500, 8000, 9968]
    assert all(n["asked"] == n["found"] == len(DEPTHS) for n in report["needles"])
    assert [item["name"] for item in report["left_out"]] == ["GSM8K"]
    assert "lm_eval is not on PATH" in report["left_out"][0]["why"]
    for text in (json.dumps(report["limits"]), capsys.readouterr().out):
        assert "GSM8K alone passes the two worst faults" in text
        assert "25,774 answers of each" in text
    page = (tmp_path / "a.html").read_text("utf-8")
    assert page.count("<svg") == 2 and "What it does not see" in page and "25,774" in page


def check_sampling(server: SolvingServer) -> None:
    """At the model card's temperature, each with a seed of its own, without a thought."""
    assert {payload["temperature"] for payload in server.asked} == {1.0}
    assert not any(p["chat_template_kwargs"]["thinking"] for p in server.asked)
    assert {p["seed"] for p in server.asked} == set(range(1, 241))
    assert len(server.asked) == sum(kind.count for kind in KINDS) + CALLS


def test_needles_lost_past_2048_tokens_name_the_indexer(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """Every score holds; the report shows from which length on needles are missed."""
    assert run(served(reads_tokens=PICKED_TOKENS), tmp_path) == 1
    report = report_of(tmp_path)
    assert {s["outcome"] for s in report["scores"]} == {"good"}
    assert [n["found"] for n in report["needles"]] == [5, 0, 0]
    seen = rows(report)
    assert seen["needles at 1500"]["outcome"] == "good"
    for length in (8000, 9968):
        assert seen[f"needles at {length}"]["code"] == "text.needle_missed_past_2048"


def test_a_needle_is_missed_when_it_is_missed_twice(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """Sampling may lose one: a second prompt of that length is asked, and the report says both."""
    server = served(max_model_len=2000)

    def forgets_first(payload: Mapping[str, Any]) -> tuple[int, bytes]:
        status, body = server.complete(payload)
        if not re.search(r"needle-1500-[\d.]+-1\.", str(payload["prompt"])):
            return status, body
        answer = json.loads(body)
        answer["choices"][0]["text"] = "water light house river stone"
        return status, json.dumps(answer).encode()

    server.on_completion = forgets_first
    assert run(server, tmp_path) == 0
    first, *_ = report_of(tmp_path)["needles"]
    assert (first["asked"], first["found"], first["found_at_first"]) == (5, 5, 0)


def check_depths(server: SolvingServer) -> None:
    """The pages that are asked for are as far into each prompt as the depths say."""
    asked = [
        (len(re.findall("^Page", prompt, re.MULTILINE)) - 1, int(found[1]))
        for prompt in (str(payload["prompt"]) for payload in server.completions)
        if (found := re.search(r"Page (\d+) again\. Number$", prompt))
    ]
    assert len(asked) == 3 * len(DEPTHS)
    seen = sorted(page / pages for pages, page in asked)
    for place, share in enumerate(seen):
        assert share == pytest.approx(DEPTHS[place // 3], abs=0.05)


def test_what_is_solved_badly_is_bad_alone(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """Its row is bad with its share, and so are calls of the right tool with wrong arguments; the
    others hold."""
    first = KINDS[0].name
    server = served(solves=lambda name: 0.5 if name == first else 1.0, calls_right=0.5)
    assert run(server, tmp_path) == 1
    report = report_of(tmp_path)
    bad = {row["name"]: row["code"] for row in report["checks"] if row["outcome"] != "good"}
    assert bad == {first: "accuracy.low", "tool calls": "accuracy.low"}


@pytest.mark.parametrize("where", ["content", "arguments"])
def test_calls_that_leak_are_bad(
    served: Callable[..., SolvingServer], tmp_path: Path, where: str
) -> None:
    """Marks of a call beside it or in its arguments are a parser's fault, however few; they count
    as wrong too."""
    leaks = {"content": "leaks", "arguments": "argument_leaks"}[where]
    assert run(served(**{leaks: 0.08}), tmp_path) == 1
    report = report_of(tmp_path)
    assert rows(report)["tools"]["code"] == f"tools.in_{where}"
    (score,) = [s for s in report["scores"] if s["name"] == "tool calls"]
    assert 2 <= CALLS - score["right"] < 10


@pytest.mark.parametrize(("status", "code"), [(500, 1), (503, 2), (400, 2)])
def test_a_server_that_refuses_is_not_called_wrong(
    served: Callable[..., SolvingServer], tmp_path: Path, status: int, code: int
) -> None:
    """There is no score, and after a few refusals nothing more is asked of a kind."""
    asked = []

    def refuse(payload: Mapping[str, Any]) -> tuple[int, bytes]:
        asked.append(payload)
        return error(status, "no")

    assert run(served(on_chat=refuse), tmp_path) == code
    report = report_of(tmp_path)
    assert report["scores"] == []
    assert {rows(report)[kind.name]["outcome"] for kind in KINDS} == {
        "bad" if code == 1 else "unknown"
    }
    assert len(asked) <= 4 * (SIDE_BY_SIDE + 3)


def test_answers_of_another_kind_are_no_answers(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """A whole completion with status 200 where a chat was asked for holds nothing."""
    body = json.dumps(completion("", 1, 16)).encode()
    assert run(served(on_chat=lambda _: (200, body)), tmp_path) == 2
    assert {rows(report_of(tmp_path))[kind.name]["code"] for kind in KINDS} == {"answer.malformed"}


def test_a_budget_that_is_spent_leaves_tasks_out(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """What was not begun is told, and no verdict is made of nothing."""
    assert run(served(), tmp_path, "--budget", "0") == 2
    report = report_of(tmp_path)
    left = {item["name"]: item["why"] for item in report["left_out"]}
    assert left["arithmetic, 240 of 240"].startswith("no more were begun in the 0 s given")
    assert "accuracy.unsettled" in {row["code"] for row in report["checks"]}


def test_random_weights_are_asked_for_form_alone(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """The profile says that its models find nothing: rows say what was answered, and no score is."""
    server = served(solves=lambda _: 0.0)
    assert run(server, tmp_path, profile="rehearsal") == 0
    report = report_of(tmp_path)
    assert (report["scores"], report["needles"]) == ([], [])
    left = {item["name"]: item["why"] for item in report["left_out"]}
    assert set(left) == {*(kind.name for kind in KINDS), "needles", "tools", "GSM8K"}
    assert all("needle = false" in why for name, why in left.items() if name != "tools")
    assert rows(report)["arithmetic answered"]["evidence"] == "2 of 2"
    assert len(server.asked) == FORM_TASKS * len(KINDS)


# --- GSM8K


def lm_eval(folder: Path, body: str) -> Path:
    """A program that stands in for lm_eval; it notes its arguments and what of the environment is
    told to it."""
    program = folder / "bin" / "lm_eval"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\nimport json, os, pathlib, sys, time\n"
        f"told = {{'argv': sys.argv, 'env': dict(os.environ)}}\n"
        f"pathlib.Path({str(folder / 'told.json')!r}).write_text(json.dumps(told))\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('--output_path') + 1]) / 'tiny'\n"
        "out.mkdir()\n"
        f"result = {json.dumps(LM_EVAL_RESULT)!r}\n{body}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


WRITES = "(out / 'results_2026-01-01T00-00-00.json').write_text(result)"


def test_gsm8k_is_judged_where_lm_eval_is(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """Its score has the published floor; lm_eval is told to be offline, and the key by its environment."""
    lm_eval(tmp_path, WRITES)
    key = tmp_path / "key"
    key.write_text("sk-very-secret\n")
    server = served(key="sk-very-secret")
    assert run(server, tmp_path, "--api-key-file", str(key)) == 0
    (score,) = [s for s in report_of(tmp_path)["scores"] if s["name"] == "GSM8K"]
    assert (score["right"], score["answered"], score["floor"]) == (1253, 1319, 0.91)
    assert "InferenceX" in score["source"]
    told = json.loads((tmp_path / "told.json").read_text())
    assert all(told["env"][name] == value for name, value in gsm8k.OFFLINE.items())
    assert told["env"]["OPENAI_API_KEY"] == "sk-very-secret"
    assert "very-secret" not in " ".join(told["argv"])
    assert f"base_url={server.url}/v1/completions" in told["argv"][4]


@pytest.fixture
def gsm8k_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str, float], tuple[list[Check], list[str]]]:
    """What is made of an lm_eval of this body within so many seconds: its rows, and why there are
    none."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def judged(body: str, budget_s: float) -> tuple[list[Check], list[str]]:
        lm_eval(tmp_path, body)
        profile = recipe.load().profile("mi355x")
        target = Target(Client("http://127.0.0.1:9"), profile, MODEL, 1.0, budget_s=budget_s)
        report = Report("http://127.0.0.1:9", "mi355x", "unverified", MODEL)
        made = list(gsm8k.gsm8k_rows(report, Session(target, report, print)))
        return made, [item.why for item in report.left_out]

    return judged


def test_a_low_gsm8k_is_bad(gsm8k_alone: Callable[..., tuple[list[Check], list[str]]]) -> None:
    """0.04, as of a broken sampler (vLLM PR 51768)."""
    ((row,), _) = gsm8k_alone(f"result = result.replace('0.95', '0.04'); {WRITES}", 60.0)
    assert row.code == "accuracy.low"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit('OfflineModeIsEnabled: openai/gsm8k')", "lm_eval ended with 1 (OfflineModeIs"),
        ("sys.exit(3)", "lm_eval ended with 3 (it says nothing)"),
        ("pass", "lm_eval wrote no score that can be read (IndexError)"),
        (f"result = '{{}}'; {WRITES}", "lm_eval wrote no score that can be read (KeyError)"),
        (
            f"result = result.replace('0.95', '95'); {WRITES}",
            "no score that can be read (ValueError)",
        ),
    ],
)
def test_what_lm_eval_lacks_is_not_the_servers_fault(
    gsm8k_alone: Callable[..., tuple[list[Check], list[str]]], body: str, why: str
) -> None:
    """GSM8K is then not judged; the line says why and how it would be."""
    (made, (left,)) = gsm8k_alone(body, 60.0)
    assert made == [] and why in left and "pip install 'lm_eval[api]'" in left


def test_lm_eval_that_does_not_end_is_ended(
    gsm8k_alone: Callable[..., tuple[list[Check], list[str]]], tmp_path: Path
) -> None:
    """With its children, when the budget is spent."""
    child = tmp_path / "child"
    body = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(child.pid))\ntime.sleep(600)"
    )
    (_, (left,)) = gsm8k_alone(body, 2.0)
    assert "did not end in the 2 s given (--budget)" in left
    if child.exists():  # a machine under load may not have come that far
        state = Path(f"/proc/{child.read_text()}/stat")
        assert not state.exists() or state.read_text().split()[2] == "Z"


# --- the command


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            [],
            "accuracy: the following arguments are required: URL; see python3 -m healthcheck accuracy --help",
        ),
        (["gpu:8000"], "accuracy: URL: got 'gpu:8000'; give an address such as http"),
        (["http://h", "--profile", "mi999"], "accuracy: profile: got 'mi999'"),
        (["http://h", "--seed", "x"], "accuracy: argument --seed: invalid int value: 'x'"),
        (["http://h", "--json", "/"], "accuracy: --json /: is a folder; give a file"),
        (
            ["http://h", "--html", "/dev/null/x"],
            "accuracy: --html /dev/null/x: /dev/null is not a folder",
        ),
    ],
)
def test_misuse_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, before anything is asked."""
    assert accuracy.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith(line)


def test_a_server_that_is_not_there_ends_it(
    served: Callable[..., SolvingServer], tmp_path: Path
) -> None:
    """One row, and no task is asked."""
    server = served()
    server.down()
    assert run(server, tmp_path) == 1
    assert [row["name"] for row in report_of(tmp_path)["checks"]] == ["listening"]


def test_make_asks_the_containers_or_an_address() -> None:
    """The port and the key that `make up` was given; an address goes before the port."""
    environ = {"SERVER_PORT": "9000", "API_KEY_FILE": "/keys/server"}
    profiles = recipe.load().profiles
    words = make_target.arguments(profiles["mi300x"], "", environ)
    assert words[2] == "http://127.0.0.1:9000"
    assert words[words.index("--api-key-file") + 1] == "/keys/server"
    words = make_target.arguments(profiles["mi300x"], "http://gpu:1", {})
    assert words[2:5] == ["http://gpu:1", "--profile", "mi300x"]
    written = [word for word in words if "accuracy-report" in word]
    assert [word.rpartition(os.sep)[2] for word in written] == [
        "accuracy-report.json",
        "accuracy-report.html",
    ]
    rehearsal = profiles["rehearsal"]
    assert make_target.arguments(rehearsal, "", {})[2].endswith(f":{rehearsal.ports.serve}")


def test_the_document_says_what_is_asked_and_seen() -> None:
    """Counts, floors and power of the guide's table are those of the code."""
    text = " ".join((ROOT / "healthcheck" / "README.md").read_text("utf-8").split())
    asked = [(kind.count, kind.floor) for kind in KINDS] + [(CALLS, CALLS_FLOOR)]
    for count, floor in [*asked, (1319, gsm8k.FLOOR)]:
        assert f"| {count:,} | {floor:.0%}".replace("%", " %") in text
    for count, floor in asked:
        assert f"{sees_below(count, floor):.1%}".replace("%", " %") in text
    told = f"Two runs tell 95 % from {100 * told_from(KINDS[0].count, 0.95):.1f} %"
    assert told in text
    assert f"{answers_to_tell(CLAMPED, UNCLAMPED):,} answers of each" in text
