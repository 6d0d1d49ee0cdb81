"""The smoke test against a scripted server: its rows, its report, its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy import recipe
from deploy.recipe import Health
from healthcheck import smoke
from healthcheck.client import Client
from healthcheck.judge import Outcome
from healthcheck.smoke import results
from healthcheck.smoke.long_prompts import lengths
from tests.support.scripted_server import MODEL, Reply, ScriptedServer, error, scripted_server

ROOT = Path(__file__).resolve().parents[2]


def run(url: str, *more: str) -> int:
    """The command, waiting a second at most for a server that is not there."""
    return smoke.main([url, "--profile", "rehearsal", "--model", MODEL, "--wait", "1", *more])


def run_full(url: str, *more: str) -> int:
    """All of it, by a profile whose models are real and that has parsers."""
    return smoke.main([url, "--profile", "mi355x", "--model", MODEL, "--wait", "1", *more])


def run_chats(url: str, *more: str) -> int:
    """The same without what has no chat and takes the longest."""
    return run_full(url, "--without", "long", "--without", "concurrency", *more)


def report_of(path: Path) -> dict[str, Any]:
    """The JSON that was written."""
    data = json.loads(path.read_text("utf-8"))
    assert isinstance(data, dict)
    return data


def rows(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Its checks by name."""
    return {check["name"]: check for check in report["checks"]}


def test_a_healthy_server_holds_in_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 0; table and JSON say the same; acceptance is the counters', beside the reference."""
    path = tmp_path / "deep" / "report.json"
    with scripted_server() as server:
        assert run(server.url, "--json", str(path)) == 0
        engine = server.engines["0"]
    report = report_of(path)
    assert report["verdict"] == "good"
    assert {row["outcome"] for row in report["checks"]} == {"good"}
    expected = {"listening", "version", "first answer", "real tokens", "variety", "logprobs"}
    expected |= {"sampling", "drafting", "second seed", "chat", "acceptance", "chat stream"}
    expected |= {"stream", "stop", "usage", "JSON schema", "concurrency 4"}
    assert set(rows(report)) == expected
    seen = report["acceptance"]
    assert 128 <= seen["drafts"] < engine.drafts
    assert seen["per_position"] == pytest.approx([0.75, 0.6, 0.5, 0.4], abs=0.05)
    assert seen["length"] == pytest.approx(1 + sum(seen["per_position"]))
    assert [
        low < at < high
        for at, (low, high) in zip(seen["per_position"], seen["intervals"], strict=True)
    ] == [True] * 4
    left_out = {item["name"] for item in report["left_out"]}
    assert left_out == {*("greedy", "key", "reasoning", "tools", "long", "concurrency", "speed-up")}
    table = capsys.readouterr().out
    assert "verdict: all held" in table
    assert "vLLM PR 51145" in table and "43.2%" in table
    for name in expected:
        assert name in table


def low(server: ScriptedServer) -> None:
    """Drafts are counted and none is accepted."""

    def complete(payload: Mapping[str, Any]) -> Reply:
        kept = server.engines["0"].accepted_at[:]
        answer = server.complete(payload)
        server.engines["0"].accepted_at = kept
        return answer

    server.on_completion = complete


def test_acceptance_is_that_of_the_same_requests_in_every_run(tmp_path: Path) -> None:
    """What was drafted for other checks does not count: it differs from run to run. Each request is
    drawn by a seed of its own, the same in every run."""
    first, again = (seeds_of_acceptance(tmp_path / "report.json") for _ in range(2))
    assert len(set(first)) == len(first) > 4
    assert sorted(first) == sorted(again)


def seeds_of_acceptance(path: Path) -> list[int]:
    """Of the requests that acceptance is made of, which the report at `path` is held against."""
    seeds: list[int] = []
    with scripted_server() as server:
        engine = server.engines["0"]

        def complete(payload: Mapping[str, Any]) -> Reply:
            kept = engine.accepted_at[:]
            answer = server.complete(payload)
            if "round-" in payload["prompt"]:
                seeds.append(payload["seed"])
            else:
                engine.accepted_at = kept
            return answer

        server.on_completion = complete
        assert run(server.url, "--json", str(path)) == 0
    seen = report_of(path)["acceptance"]
    assert seen["per_position"] == [a / seen["drafts"] for a in engine.accepted_at]
    return seeds


def collapsed(server: ScriptedServer) -> None:
    """Only the first position of a draft is ever accepted."""

    def complete(payload: Mapping[str, Any]) -> Reply:
        kept = server.engines["0"].accepted_at[1:]
        answer = server.complete(payload)
        server.engines["0"].accepted_at[1:] = kept
        return answer

    server.on_completion = complete


def perfect(server: ScriptedServer) -> None:
    """Every drafted token is accepted."""

    def complete(payload: Mapping[str, Any]) -> Reply:
        engine = server.engines["0"]
        answer = server.complete(payload)
        engine.accepted_at = [engine.drafts] * 4
        return answer

    server.on_completion = complete


def no_engine(server: ScriptedServer) -> None:
    """/metrics has no number of any engine."""
    server.metrics = 200, b"process_start_time_seconds 1\n"


def metrics_lost(server: ScriptedServer) -> None:
    """/metrics is gone once the requests that are counted have begun."""

    def complete(payload: Mapping[str, Any]) -> Reply:
        if "round-" in payload["prompt"]:
            server.metrics = 503, b""
        return server.complete(payload)

    server.on_completion = complete


def nan(server: ScriptedServer) -> None:
    """The model computes NaN."""
    server.on_completion = lambda _: error(400, "Out of range float values are not JSON compliant")


def no_metrics(server: ScriptedServer) -> None:
    """A proxy lets no /metrics through."""
    server.metrics = 404, b""


FAULTS = [
    ({"stream_done": False}, None, 1, "stream", "stream.broken"),
    ({"stream_usage": False}, None, 1, "chat stream", "stream.no_usage"),
    ({"obeys_stop": False}, None, 1, "stop", "stop.ignored"),
    ({"version": "0.25.1"}, None, 2, "version", "server.old"),
    ({}, no_metrics, 2, "acceptance", "metrics.unavailable"),
    ({"drafting": False}, None, 1, "drafting", "speculation.not_drafting"),
    ({"speculates": False}, None, 1, "acceptance", "speculation.absent"),
    ({}, low, 1, "acceptance", "acceptance.low"),
    ({}, collapsed, 1, "acceptance", "acceptance.collapsed"),
    ({}, perfect, 2, "acceptance", "acceptance.high"),
    ({}, no_engine, 2, "acceptance", "metrics.no_engine"),
    ({}, metrics_lost, 2, "acceptance", "metrics.unavailable"),
    ({}, nan, 1, "logprobs", "numerics.nan"),
    ({"greedy": True}, None, 1, "sampling", "sampling.greedy"),
    ({"fixed_seed": True}, None, 1, "second seed", "sampling.seed_ignored"),
    ({"models": ("other",)}, None, 2, "listening", "config.wrong_model"),
    ({"key": "secret"}, None, 2, "listening", "config.unauthorized"),
]


@pytest.mark.parametrize(
    ("fields", "script", "code", "row", "reason"),
    FAULTS,
    ids=[f"{f[-1]}-{i}" for i, f in enumerate(FAULTS)],
)
def test_a_fault_is_named_in_its_row(
    tmp_path: Path, fields: dict[str, Any], script: Any, code: int, row: str, reason: str
) -> None:
    """Bad is exit 1, not being able to tell is exit 2, and the row carries the reason's code."""
    path = tmp_path / "report.json"
    with scripted_server(**fields) as server:
        if script is not None:
            script(server)
        assert run(server.url, "--json", str(path)) == code
    report = report_of(path)
    assert report["verdict"] == {1: "bad", 2: "unknown"}[code]
    assert rows(report)[row]["code"] == reason


def test_a_server_without_a_draft_is_not_blamed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the entrypoint's switch off nothing about drafts is asked."""
    monkeypatch.setenv("DSPARK_SPECULATION", "off")
    with scripted_server(speculates=False) as server:
        assert run(server.url) == 0


def test_a_server_that_never_listens_is_bad_after_the_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Refused for as long as was allowed."""
    with scripted_server() as server:
        server.down()
        assert run(server.url) == 1
    assert "start.over_budget" in capsys.readouterr().out


def test_a_server_that_ended_is_not_waited_for() -> None:
    """How it ended is the row; the wait is over at once."""
    profile = recipe.load().profile("rehearsal")
    with scripted_server() as server:
        server.down()
        target = smoke.Target(
            client=Client(server.url),
            profile=profile,
            model=MODEL,
            wait_s=3600,
            ended=lambda: "server ended with exit code 1",
            say=lambda _: None,
        )
        report = smoke.run(target)
    assert report.exit_code == 1
    assert [c.outcome for c in report.checks] == [Outcome.BAD]
    assert "server ended with exit code 1" in report.checks[0].evidence


def test_the_key_file_is_used_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key opens the server and stands in no output."""
    key, path = tmp_path / "key", tmp_path / "report.json"
    key.write_text("sk-very-secret\n", "utf-8")
    with scripted_server(key="sk-very-secret") as server:
        assert run(server.url, "--api-key-file", str(key), "--json", str(path)) == 0
    printed = capsys.readouterr()
    assert "very-secret" not in printed.out + printed.err + path.read_text("utf-8")
    key_row = rows(report_of(path))["key"]
    assert key_row["outcome"] == "good"
    assert "/v1/completions 401, /invocations 401" in key_row["evidence"]


def test_a_path_that_generates_without_the_key_is_bad(tmp_path: Path) -> None:
    """vLLM alone asks for its key under /v1 and leaves /invocations open: the row says it."""
    key, path = tmp_path / "key", tmp_path / "report.json"
    key.write_text("sk-very-secret\n", "utf-8")
    with scripted_server(key="sk-very-secret", door=False) as server:
        assert run(server.url, "--api-key-file", str(key), "--json", str(path)) == 1
    key_row = rows(report_of(path))["key"]
    assert (key_row["outcome"], key_row["code"]) == ("bad", "key.not_asked")
    assert "/v1/completions 401, /invocations 200" in key_row["evidence"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["10.0.0.1:8000"], "smoke: URL: got '10.0.0.1:8000'; give an address such as http"),
        ([], "smoke: the following arguments are required: URL; see python3 -m healthcheck smoke --help"),
        (["http://h", "--ful"], "smoke: unrecognized arguments: --ful; see python3 -m healthcheck smoke --help"),
        (["http://h", "--full", "--quick"], "smoke: argument --quick: not allowed with argument --full"),
        (["http://h", "--without", "chat"], "smoke: argument --without: invalid choice: 'chat'"),
        (["http://h", "--budget", "-1"], "smoke: argument --budget: got '-1'; give seconds from 0 to 1e+06"),
        (["http://h", "--wait", "nan"], "smoke: argument --wait: got 'nan'; give seconds from 0 to 1e+06"),
        (["http://h", "--baseline", "/none.json"], "smoke: /none.json: No such file or directory; give a report"),
        (["http://h", "--html", "/"], "smoke: --html /: is a folder; give a file that can be written"),
        (["compare", "/none.json"], "smoke: the following arguments are required: B; see python3 -m healthcheck smoke compare --help"),
        (["http://h", "--profile", "mi999"], "smoke: profile: got 'mi999'; it is one of "),
        (["http://h", "--profile", "rehearsal", "--api-key-file", "/none"], "smoke: --api-key-file: /none cannot be read (No such file or directory); mend it"),
    ],
)  # fmt: skip
def test_misuse_is_one_line_and_exit_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The setting, the value, the fix; nothing is asked."""
    assert smoke.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(line)
    assert len(printed.err.splitlines()) == 1


def test_a_report_that_cannot_be_written_is_told_before_the_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, one line, and the server is asked nothing."""
    blocked = tmp_path / "file"
    blocked.write_text("", "utf-8")
    with scripted_server() as server:
        assert run(server.url, "--json", str(blocked / "report.json")) == 2
        assert server.completions == []
    line = f"smoke: --json {blocked / 'report.json'}: {blocked} is not a folder; give a file"
    assert capsys.readouterr().err.startswith(line)


def test_a_report_that_cannot_be_written_after_all_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is printed all the same; exit 2, because the report was asked for; no rest is left."""
    blocked = tmp_path / "folder"
    blocked.mkdir()
    report = smoke.Report("http://h", "rehearsal", "none", MODEL)
    report.checks.append(smoke.Check("chat", Outcome.GOOD, "held"))
    assert smoke.finish(report, smoke.Files(html=blocked)) == 2
    printed = capsys.readouterr()
    assert "verdict: all held" in printed.out
    assert f"smoke: --html {blocked}: " in printed.err
    assert list(tmp_path.iterdir()) == [blocked]


def test_everything_is_asked_of_a_server_that_is_no_rehearsal(tmp_path: Path) -> None:
    """Thought, call, greedy, needles up to the server's context, three concurrencies: all good."""
    path = tmp_path / "report.json"
    with scripted_server(pause_s=0.002) as server:
        assert run_full(server.url, "--json", str(path)) == 0
    report = report_of(path)
    named = rows(report)
    assert {"reasoning", "tools", "temperature 0", "concurrency 1", "concurrency 16"} <= set(named)
    assert "the reference's 73%" in named["acceptance"]["evidence"]
    asked = [each["prompt_tokens"] for each in report["long_prompts"]]
    assert asked == [1500, 8000, 16352]
    assert all(each["found"] for each in report["long_prompts"])
    levels = {level["concurrency"]: level for level in report["levels"]}
    assert sorted(levels) == [1, 4, 16]
    for level in levels.values():
        assert level["failed"] == 0 and level["tokens"] == level["requests"] * 96
        assert level["tokens_per_piece"] == pytest.approx(4)
        assert level["gap_s"]["count"] == level["requests"] * 23
        assert level["first_s"]["p50"] <= level["first_s"]["p90"] <= level["first_s"]["p99"]
        assert level["gap_s"]["p50"] >= 0.002
    assert {item["name"] for item in report["left_out"]} == {"key", "speed-up"}


def test_each_chat_says_whether_it_thinks() -> None:
    """Releases differ in what they take it for; only the check of thinking thinks."""
    asked: list[Mapping[str, Any]] = []
    with scripted_server() as server:

        def chat(payload: Mapping[str, Any]) -> Reply:
            asked.append(payload)
            return server.chat(payload)

        server.on_chat = chat
        assert run_chats(server.url) == 0
    thinking = {True: 0, False: 0}
    for payload in asked:
        said = payload["chat_template_kwargs"]
        assert said["thinking"] == said["enable_thinking"]
        thinking[said["thinking"]] += 1
    assert thinking[True] == 1 and thinking[False] >= 2


def test_parts_can_be_left_out_by_name_or_by_size(tmp_path: Path) -> None:
    """What is left out is told with the option that did it, and is no part of the verdict."""
    path = tmp_path / "report.json"
    with scripted_server() as server:
        assert (
            run_full(server.url, "--without", "tools", "--without", "long", "--json", str(path))
            == 0
        )
        some = report_of(path)
        assert run_full(server.url, "--quick", "--json", str(path)) == 0
    why = {item["name"]: item["why"] for item in some["left_out"]}
    assert why["tools"] == why["long"] == "by --without"
    assert "reasoning" in rows(some) and "tools" not in rows(some)
    assert "reasoning" not in rows(report_of(path))


def test_a_needle_that_random_models_cannot_find_is_not_judged(tmp_path: Path) -> None:
    """Against the rehearsal the long request has to be answered; that its words are missed is told."""
    path = tmp_path / "report.json"
    with scripted_server(reads_tokens=0) as server:
        assert run(server.url, "--full", "--json", str(path)) == 0
        report = report_of(path)
        assert run_full(server.url, "--json", str(path)) == 1
    assert {each["found"] for each in report["long_prompts"]} == {None}
    assert "random weights" in {i["name"]: i["why"] for i in report["left_out"]}["needle"]
    failed = rows(report_of(path))["prompt of 1500"]
    assert failed["code"] == "text.needle_missed"
    assert [each["found"] for each in report_of(path)["long_prompts"]] == [False]


def test_a_needle_missed_once_is_asked_for_again(tmp_path: Path) -> None:
    """Sampling may lose a word; twice in a row it is the model."""
    path = tmp_path / "report.json"
    with scripted_server() as server:

        def complete(payload: Mapping[str, Any]) -> Reply:
            first = "needle-8000-" in payload["prompt"] and payload["seed"] == 1
            server.reads_tokens = 0 if first else 1e9
            return server.complete(payload)

        server.on_completion = complete
        assert run_full(server.url, "--json", str(path)) == 0
    assert "at the second try" in rows(report_of(path))["prompt of 8000"]["evidence"]


def test_long_prompts_stop_where_the_next_one_does_not_fit_the_budget(tmp_path: Path) -> None:
    """What was not asked is told, from which length on."""
    path = tmp_path / "report.json"
    with scripted_server() as server:
        assert run_full(server.url, "--budget", "0", "--json", str(path)) == 0
    report = report_of(path)
    assert [each["prompt_tokens"] for each in report["long_prompts"]] == [1500]
    why = {item["name"]: item["why"] for item in report["left_out"]}
    assert "--budget" in why["prompts from 8000 tokens"]


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (None, (1500, 8000)),
        (8192, (1500, 8000)),
        (12000, (1500, 8000, 11968)),
        (900, (868,)),
        (131072, (1500, 8000, 32_000, 64_000, 128_000)),
    ],
)
def test_lengths_end_at_what_the_server_holds(room: int | None, expected: tuple[int, ...]) -> None:
    """Prompt and answer fit in together; a context that is much longer than the last gets its own."""
    assert lengths(Health().long_prompt_tokens, room) == expected


def test_the_gates_own_lengths_come_first() -> None:
    """A profile whose gate asks for longer prompts has them in the smoke test, in order."""
    assert lengths((2000, 96_000), 300_000) == (2000, 96_000, 128_000, 256_000)


def test_a_needle_missed_in_long_prompts_only_names_the_sparse_indexer(tmp_path: Path) -> None:
    """What the smoke test found in shorter prompts tells where it goes wrong, as in the gate."""
    path = tmp_path / "report.json"
    with scripted_server(reads_tokens=2048) as server:
        assert run_full(server.url, "--json", str(path)) == 1
    named = rows(report_of(path))
    assert named["prompt of 1500"]["outcome"] == "good"
    assert named["prompt of 8000"]["code"] == "text.needle_missed_past_2048"
    assert "found_at=1500, missed_at=8000" in named["prompt of 8000"]["evidence"]


def called(arguments: str, name: str = "water_level", **beside: str) -> dict[str, Any]:
    """A message with a call, and what may stand beside it."""
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}], **beside}


TOOL_ROWS = ("tools", "tools streamed", "required tool", "required tool streamed")
CHATS = [
    ("reasoning", {"content": "<think>hm</think> two"}, 1, "reasoning.in_content"),
    ("reasoning", {"content": "two"}, 2, "reasoning.none"),
    ("tools", {"content": "it is high"}, 2, "tools.none"),
    ("tools", {"content": '<tool_call>{"name": "water_level"}'}, 1, "tools.in_content"),
    ("tools", {"tool_calls": [{"function": {"name": "water_level", "arguments": "{"}}]}, 1, "tools.malformed"),
    ("tools", {"tool_calls": [{"function": {"name": "other", "arguments": '{"river": "Elbe"}'}}]}, 1, "tools.malformed"),
    ("tools", {"tool_calls": 7}, 1, "tools.malformed"),
    ("tools", called('{"river": "Elbe</｜DSML｜parameter'), 1, "tools.in_arguments"),
    ("tools", called('{"river": "Elbe</｜DSML｜parameter>"}'), 1, "tools.in_arguments"),
    ("tools", called('{"river": "Elbe</"}'), 1, "tools.in_arguments"),
    ("tools", called('{"river": "Elbe"}', name="water_level</｜DSML｜invoke>"), 1, "tools.in_arguments"),
    ("tools", called('{"river": "Elbe"}', content="</｜DSML｜tool_calls>"), 1, "tools.in_content"),
    ("tools", called('{"river": "Elbe"}', reasoning='<｜DSML｜invoke name="water_level">'), 1, "tools.in_content"),
    ("tools", {"tool_calls": [*called('{"river": "Elbe"}')["tool_calls"], *called('{"river": "<invoke"}')["tool_calls"]]}, 1, "tools.in_arguments"),
    ("tools streamed", called('{"river": "Elbe</｜DSML｜parameter"}'), 1, "tools.in_arguments"),
    ("tools streamed", called('{"river": "Elbe"}', content="<｜DSML｜tool_calls>"), 1, "tools.in_content"),
    ("tools streamed", {"content": "it is high"}, 2, "tools.none"),
    ("tools streamed", called('{"river"'), 1, "tools.malformed"),
    ("required tool", {"content": "it is high"}, 1, "tools.not_required"),
    ("required tool", called('{"river": "Main"}'), 1, "tools.malformed"),
    ("required tool streamed", {"content": "it is high"}, 1, "tools.not_required"),
    ("required tool streamed", called('{"river": "Elbe</｜DSML｜parameter"}'), 1, "tools.in_arguments"),
    ("JSON schema", {"content": "it is high"}, 1, "schema.ignored"),
    ("JSON schema", {"content": '{"river": "Main"}'}, 1, "schema.ignored"),
    ("JSON schema", {"content": '{"river": "Elbe", "high": true}'}, 1, "schema.ignored"),
]  # fmt: skip


def row_of(payload: Mapping[str, Any]) -> str:
    """The row whose question a chat is, empty for those without a form."""
    if "tools" in payload:
        name = {"auto": "tools", "required": "required tool"}[payload["tool_choice"]]
        return name + (" streamed" if payload.get("stream") else "")
    if "response_format" in payload:
        return "JSON schema"
    return "reasoning" if payload["max_tokens"] == 512 else ""


@pytest.mark.parametrize(("row", "message", "code", "reason"), CHATS)
def test_a_parser_that_is_off_or_wrong_is_named(
    tmp_path: Path, row: str, message: dict[str, Any], code: int, reason: str
) -> None:
    """Marks left in a call or beside it are bad, and so is what guided decoding cannot write; a
    model that was free not to do as told leaves it open."""
    path = tmp_path / "report.json"
    with scripted_server() as server:

        def chat(payload: Mapping[str, Any]) -> Reply:
            if row_of(payload) != row:
                return server.chat(payload)
            whole = {"role": "assistant", "content": None, "reasoning": "", **message}
            usual = json.loads(server.chat({**payload, "max_tokens": 1})[1])
            choice = {**usual["choices"][0], "message": whole}
            return 200, json.dumps({**usual, "choices": [choice]}).encode()

        server.on_chat = chat
        assert run_chats(server.url, "--json", str(path)) == code
    assert rows(report_of(path))[row]["code"] == reason


@pytest.mark.parametrize(("written", "context"), [(512, 16384), (480, 500)])
def test_a_call_that_is_cut_off_is_left_open(tmp_path: Path, written: int, context: int) -> None:
    """An answer of all the tokens that it may have, or that the context holds, need not have a whole
    call, whatever its finish_reason is."""
    path = tmp_path / "report.json"
    with scripted_server(max_model_len=context) as server:

        def chat(payload: Mapping[str, Any]) -> Reply:
            if "tools" not in payload:
                return server.chat(payload)
            body = json.loads(server.chat({**payload, "max_tokens": written})[1])
            body["choices"][0]["message"] |= called("{}")
            body["choices"][0]["finish_reason"] = "tool_calls"
            return 200, json.dumps(body).encode()

        server.on_chat = chat
        assert run_chats(server.url, "--json", str(path)) == 2
    assert {rows(report_of(path))[name]["code"] for name in TOOL_ROWS} == {"tools.cut"}


def test_tools_that_are_refused_are_bad(tmp_path: Path) -> None:
    """vLLM's 400 for a server without a parser is not a chance of the model."""
    path = tmp_path / "report.json"
    refused = (
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    )
    with scripted_server() as server:
        server.on_chat = lambda p: error(400, refused) if "tools" in p else server.chat(p)
        assert run_chats(server.url, "--json", str(path)) == 1
    assert {rows(report_of(path))[name]["code"] for name in TOOL_ROWS} == {"tools.refused"}


def test_random_weights_are_asked_for_the_calls_that_guided_decoding_makes(tmp_path: Path) -> None:
    """On the rehearsal a required tool is judged, whose schema binds, and that nothing else is, is
    told."""
    path = tmp_path / "report.json"
    asked: list[Mapping[str, Any]] = []

    def chat(payload: Mapping[str, Any]) -> Reply:
        asked.extend(payload.get("tools", ()))
        return server.chat(payload)

    with scripted_server() as server:
        server.on_chat = chat
        few = ("--full", "--without", "long", "--without", "concurrency")
        assert run(server.url, *few, "--json", str(path)) == 0
    report = report_of(path)
    assert set(TOOL_ROWS) & set(rows(report)) == {"required tool", "required tool streamed"}
    assert "tools" in {item["name"] for item in report["left_out"]}
    assert [tool["function"]["strict"] for tool in asked] == [True, True]


def test_a_greedy_answer_that_is_not_argmax_is_bad(tmp_path: Path) -> None:
    """Temperature 0 that samples."""
    path = tmp_path / "report.json"
    with scripted_server() as server:
        server.on_completion = lambda p: server.complete({**p, "temperature": 1.0})
        assert run_full(server.url, "--json", str(path)) == 1
    assert rows(report_of(path))["temperature 0"]["code"] == "sampling.not_greedy"


def test_a_server_that_fails_under_load_is_asked_for_no_more(tmp_path: Path) -> None:
    """The concurrency that fails has its row and its figures; the next one is not sent."""
    path = tmp_path / "report.json"
    with scripted_server() as server:

        def complete(payload: Mapping[str, Any]) -> Reply:
            return error(500, "boom") if "at-4-7" in payload["prompt"] else server.complete(payload)

        server.on_completion = complete
        assert run_full(server.url, "--json", str(path)) == 1
    report = report_of(path)
    assert rows(report)["concurrency 4"]["code"] == "server.error"
    assert {level["concurrency"]: level["failed"] for level in report["levels"]} == {1: 0, 4: 1}


def test_a_server_that_hides_what_it_is_is_judged_by_the_rest(tmp_path: Path) -> None:
    """No version, no token ids: told as not judged, and the verdict stands."""
    path = tmp_path / "report.json"
    with scripted_server(version=None) as server:

        def complete(payload: Mapping[str, Any]) -> Reply:
            status, body = server.complete(payload)
            answer = json.loads(body)
            del answer["choices"][0]["token_ids"]
            return status, json.dumps(answer).encode()

        server.on_completion = complete
        assert run(server.url, "--json", str(path)) == 0
    report = report_of(path)
    assert report["vllm_version"] is None
    assert {"version", "token ids"} <= {item["name"] for item in report["left_out"]}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/version", {"version": f"{'9' * 6000}.1"}),
        ("/version", {"version": ["0.27.1"]}),
        ("/tokenize", {"count": 10**4000}),
        ("/tokenize", {"count": True}),
        ("/v1/models", {"data": [{"id": MODEL, "max_model_len": 10**4000}]}),
        ("/v1/models", {"data": [{"id": MODEL, "max_model_len": True}]}),
        ("/v1/models", {"data": [{"id": MODEL, "max_model_len": float("inf")}]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_figure_that_cannot_be_one_is_passed_over(
    tmp_path: Path, path: str, answer: Mapping[str, Any]
) -> None:
    """A length, count or version beyond all reason ends in a report that can be read again."""
    report = tmp_path / "report.json"
    with scripted_server() as server:
        usual = server.answer

        def odd(method: str, asked: str, *rest: Any) -> Reply | None:
            return (
                (200, json.dumps(answer).encode()) if asked == path else usual(method, asked, *rest)
            )

        server.answer = odd  # type: ignore[method-assign]
        assert run_full(server.url, "--without", "concurrency", "--json", str(report)) == 0
    assert results.read(report).verdict == "good"


@pytest.mark.parametrize(
    ("body", "row", "code"),
    [
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 9}}, "usage", "usage.wrong"),
        ({"usage": None}, "usage", "usage.wrong"),
        ({"choices": [{"text": "---", "finish_reason": "length"}]}, "stop", "stop.not_seen"),
    ],
)  # fmt: skip
def test_the_end_of_a_completion_is_judged(
    tmp_path: Path, body: dict[str, Any], row: str, code: str
) -> None:
    """Token counts that do not add up are bad; a text in which no stop string could be seen is open."""
    path = tmp_path / "report.json"
    with scripted_server() as server:

        def complete(payload: Mapping[str, Any]) -> Reply:
            status, raw = server.complete(payload)
            return status, json.dumps(
                json.loads(raw) | (body if "stop" in payload else {})
            ).encode()

        server.on_completion = complete
        run(server.url, "--json", str(path))
    assert rows(report_of(path))[row]["code"] == code


def test_chats_that_fail_are_rows_of_their_own(tmp_path: Path) -> None:
    """A server whose completions hold and whose chats end in HTTP 500: each part that asks says so."""
    path = tmp_path / "report.json"
    with scripted_server() as server:
        server.on_chat = lambda _: error(500, "boom")
        assert run_full(server.url, "--without", "concurrency", "--json", str(path)) == 1
    seen = rows(report_of(path))
    failed = {name for name, row in seen.items() if row["code"] == "server.error"}
    assert failed == {"chat", "chat stream", "JSON schema", "reasoning", *TOOL_ROWS}
    assert seen["real tokens"]["outcome"] == "good"


def test_a_health_service_whose_gate_failed_is_not_waited_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gate.failed` on /readyz is bad at once; what it said is the row's evidence."""
    path = tmp_path / "report.json"
    said = ["SMOKE gate.running (warm-up)", "NOT_READY gate.failed (numerics.nan)"]
    with scripted_server() as server, scripted_server() as health:
        usual = health.answer

        def readyz(method: str, asked: str, *rest: Any) -> Reply | None:
            if not asked.startswith("/readyz"):
                return usual(method, asked, *rest)
            return 503, (said.pop(0) if len(said) > 1 else said[0]).encode()

        health.answer = readyz  # type: ignore[method-assign]
        assert run(server.url, "--health", health.url, "--json", str(path)) == 1
    seen = rows(report_of(path))
    row = seen["ready"]
    assert (row["outcome"], row["code"]) == ("bad", "gate.failed")
    assert seen["first answer"]["outcome"] == "good"
    assert "numerics.nan" in row["evidence"]
    assert "SMOKE gate.running (warm-up)" in capsys.readouterr().err


def test_the_gain_is_the_ratio_to_a_server_without_a_draft(tmp_path: Path) -> None:
    """The report of a slower server without speculation: above 1, and so is the interval; that of a
    faster one is bad."""
    slow, path = tmp_path / "slow.json", tmp_path / "report.json"
    with scripted_server(speculates=False, pause_s=0.004) as plain, scripted_server() as server:
        assert (
            run_full(plain.url, "--speculation", "off", "--without", "long", "--json", str(slow))
            == 0
        )
        some = ("--quick", "--baseline", str(slow), "--json", str(path))
        assert run_full(server.url, *some) == 0
        gain = report_of(path)["speed_up"]
        assert 1 < gain["low"] <= gain["ratio"] <= gain["high"]
        server.pause_s = 0.008
        assert run_full(server.url, *some) == 1
        assert rows(report_of(path))["speed-up"]["code"] == "speculation.no_gain"


def test_a_baseline_that_speculates_is_none(tmp_path: Path) -> None:
    """A report of a server that drafts cannot show what drafting gains."""
    first, path = tmp_path / "first.json", tmp_path / "report.json"
    with scripted_server() as server:
        assert run_full(server.url, "--quick", "--json", str(first)) == 0
        some = ("--quick", "--baseline", str(first), "--json", str(path))
        assert run_full(server.url, *some) == 2
        assert rows(report_of(path))["speed-up"]["code"] == "baseline.unusable"


def test_a_server_that_ends_in_the_middle_ends_the_test() -> None:
    """What was found so far stays; how it ended is the last row."""
    ended: list[str] = []
    with scripted_server() as server:

        def complete(payload: Mapping[str, Any]) -> Reply:
            ended.append("server ended with SIGKILL")
            return error(500, "EngineCore encountered an issue")

        server.on_completion = complete
        target = smoke.Target(
            client=Client(server.url),
            profile=recipe.load().profile("rehearsal"),
            model=MODEL,
            wait_s=1,
            ended=lambda: ended[0] if ended else None,
            say=lambda _: None,
        )
        report = smoke.run(target)
    assert [c.name for c in report.checks] == ["listening", "version", "first answer", "server"]
    assert "server ended with SIGKILL during first answer" in report.checks[-1].evidence


def test_an_interrupted_test_says_so_and_writes_nothing(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the load: one line, exit 130, no report."""
    with scripted_server(pause_s=0.05) as server:
        command = [sys.executable, "-m", "healthcheck", "smoke", server.url, "--model", MODEL]
        command += ["--profile", "mi355x", "--json", str(tmp_path / "report.json")]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for told in process.stderr:
            if "prompt of 16352" in told:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(120) == 130
    assert rest == "smoke: interrupted; no report is written\n"
    assert list(tmp_path.iterdir()) == []


def test_a_health_service_adds_its_verdict_and_saves_the_warm_up(tmp_path: Path) -> None:
    """Its /readyz is a row; a server that has generated for it needs no first answer."""
    path = tmp_path / "report.json"
    with scripted_server() as server, scripted_server() as health:
        answers = {"/readyz?verbose": (200, b"READY ok\nsince 3 s")}
        health.answer = lambda method, at, *_: answers.get(at)  # type: ignore[method-assign]
        assert run(server.url, "--health", health.url, "--json", str(path)) == 0
        good = rows(report_of(path))
        assert "READY ok" in good["ready"]["evidence"] and "first answer" not in good
