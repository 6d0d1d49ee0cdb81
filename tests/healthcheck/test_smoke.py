"""The smoke test against a scripted server: its rows, its report, its exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from healthcheck import smoke
from healthcheck.judge import Outcome
from tests.support.scripted_server import MODEL, Reply, ScriptedServer, error, scripted_server


def run(url: str, *more: str) -> int:
    """The command, waiting a second at most for a server that is not there."""
    return smoke.main([url, "--profile", "rehearsal", "--model", MODEL, "--wait", "1", *more])


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
    expected |= {"sampling", "drafting", "second seed", "chat", "acceptance"}
    assert set(rows(report)) == expected
    seen = report["acceptance"]
    assert seen["drafts"] == engine.drafts
    assert seen["per_position"] == [a / engine.drafts for a in engine.accepted_at]
    assert seen["length"] == pytest.approx(1 + sum(engine.accepted_at) / engine.drafts)
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


def nan(server: ScriptedServer) -> None:
    """The model computes NaN."""
    server.on_completion = lambda _: error(400, "Out of range float values are not JSON compliant")


FAULTS = [
    ({"drafting": False}, None, 1, "drafting", "speculation.not_drafting"),
    ({"speculates": False}, None, 1, "acceptance", "speculation.absent"),
    ({}, low, 1, "acceptance", "acceptance.low"),
    ({}, nan, 1, "logprobs", "numerics.nan"),
    ({"greedy": True}, None, 1, "sampling", "sampling.greedy"),
    ({"fixed_seed": True}, None, 1, "second seed", "sampling.seed_ignored"),
    ({"models": ("other",)}, None, 2, "listening", "config.wrong_model"),
    ({"key": "secret"}, None, 2, "listening", "config.unauthorized"),
]


@pytest.mark.parametrize(
    ("fields", "script", "code", "row", "reason"), FAULTS, ids=[f[-1] for f in FAULTS]
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
    profile = smoke.recipe.load().profile("rehearsal")
    with scripted_server() as server:
        server.down()
        target = smoke.Target(
            client=smoke.Client(server.url),
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


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["10.0.0.1:8000"], "smoke: URL: got '10.0.0.1:8000'; give http://HOST:PORT"),
        (["http://h", "--profile", "mi999"], "smoke: profile: got 'mi999'; it is one of "),
        (["http://h", "--profile", "rehearsal", "--api-key-file", "/none"], "smoke: --api-key-file /none: No such file or directory"),
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


def test_a_report_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is printed all the same; exit 2, because the report was asked for."""
    blocked = tmp_path / "file"
    blocked.write_text("", "utf-8")
    with scripted_server() as server:
        assert run(server.url, "--json", str(blocked / "report.json")) == 2
    printed = capsys.readouterr()
    assert "verdict: all held" in printed.out
    assert f"smoke: --json {blocked / 'report.json'}: " in printed.err
