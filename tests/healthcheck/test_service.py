"""The surfaces, over a real uvicorn on a free port, and the loop behind them in its thread."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import requests
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from deploy.recipe import Health
from healthcheck.client import Client
from healthcheck.judge import Finding, Outcome
from healthcheck.reasons import GARBAGE
from healthcheck.service import app as service
from healthcheck.service import page, report, settings
from healthcheck.service.cause import Log
from healthcheck.service.generate import Generator
from healthcheck.service.loop import Loop
from healthcheck.service.provenance import Provenance
from healthcheck.service.settings import Settings
from healthcheck.signs import shown as shown_signs
from healthcheck.signs.model import Compiler, Ended, Signs
from healthcheck.verdict import Policy, State
from tests.support.inline_runner import InlineRunner
from tests.support.made_signs import card, signs
from tests.support.running_service import QUICK, Running, running
from tests.support.scripted_server import MODEL, Reply, completion, error, scripted_server
from tests.support.waiting import PATIENCE_S

DATA = Path(__file__).with_name("data")
TOKEN = "t0ken-of-the-test"


def statuses(service_: Running) -> dict[str, int]:
    paths = ("/startupz", "/readyz", "/livez", "/livez/engine")
    return {path: service_.get(path).status_code for path in paths}


def test_the_probes_follow_a_server_through_its_life() -> None:
    """Refused, ready, wedged, back, gone: the four probes answer as the contract's table says."""
    with running(start=False) as it:
        it.target.down()
        it.loop.start()
        it.wait(lambda: it.loop.snapshot.turns > 1)
        refused = statuses(it)
        assert refused == {"/startupz": 503, "/readyz": 503, "/livez": 200, "/livez/engine": 200}
        it.target.up()
        it.wait_for(State.READY)
        assert set(statuses(it).values()) == {200}
        it.target.health = None  # closes every connection, as a port proxy without a backend
        it.wait_for(State.DEAD)
        dead = statuses(it)
        assert dead == {"/startupz": 503, "/readyz": 503, "/livez": 200, "/livez/engine": 503}
        it.target.health = (200, b"")
        it.wait_for(State.READY)


def test_a_gate_that_reads_garbage_names_it_where_no_token_is_needed() -> None:
    """/startupz is open and terse: the codes behind its state tell garbage from other failures."""
    with running(token=TOKEN, start=False) as it:
        it.target.on_completion = repeated
        it.loop.start()
        it.wait(lambda: it.loop.snapshot.memory.gate.failures > 0)
        answer = it.get("/startupz")
        state, *codes = answer.text.split()
        assert (answer.status_code, state) == (503, "SMOKE")
        assert GARBAGE.intersection(codes) == {"text.one_token"}


def repeated(payload: Mapping[str, Any]) -> Reply:
    """One token over and over, as a process whose graphs replay wrongly may write."""
    body = completion(payload["prompt"], payload["seed"], payload["max_tokens"])
    body["choices"][0]["token_ids"] = [7] * payload["max_tokens"]
    return 200, json.dumps(body).encode()


def test_verbose_explains() -> None:
    """?verbose adds what the reasons mean and what to do."""
    with running(start=False) as it:
        it.loop.turn()
        it.target.down()
        it.loop.turn()
        text = it.get("/readyz?verbose").text
        assert "nothing listens on the server's port" in text
        assert "turn 2" in it.get("/livez?verbose").text


def test_reading_a_probe_asks_the_server_nothing() -> None:
    """However often the probes are asked, only the loop talks to the server."""
    with running(start=False) as it:
        it.loop.turn()
        before = it.loop.snapshot
        it.target.down()
        for _ in range(20):
            statuses(it)
            it.get("/report")
            it.get("/metrics")
            it.get("/")
        assert it.loop.snapshot is before


def test_a_loop_that_stopped_fails_livez_and_readyz() -> None:
    """A verdict that nobody renews is not served as ready, and /livez says so."""
    now = [0.0]
    with scripted_server() as target:
        policy = Policy(QUICK, MODEL)
        loop = Loop(Client(target.url), policy, clock=lambda: now[0], say=lambda _: None)
        made = Settings("rehearsal", target.url, policy, "127.0.0.1", 0)
        sock = service.listen("127.0.0.1", 0)
        server = uvicorn.Server(service.configured(service.app(loop, made)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        try:
            assert requests.get(f"{url}/livez", timeout=PATIENCE_S).status_code == 200
            now[0] = 1000.0
            for path in ("/livez", "/readyz", "/startupz"):
                answer = requests.get(url + path, timeout=PATIENCE_S)
                assert answer.status_code == 503
                assert answer.text.startswith("service.loop_stopped")
            assert requests.get(f"{url}/livez/engine", timeout=PATIENCE_S).status_code == 200
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            sock.close()


def test_the_report_is_health_json_without_secrets() -> None:
    """/report is application/health+json, complete, and holds no secret."""
    with running(TOKEN) as it:
        it.wait_for(State.READY)
        answer = it.get("/report", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/health+json"
        data = answer.json()
        assert data["status"] == "pass" and data["state"] == "READY"
        assert data["gate"]["passed"] is True
        assert {f["check"] for f in data["gate"]["findings"]["second-seed"]} >= {"second seed"}
        assert data["configuration"]["budgets"]["gate_tokens"] == 64
        record = data["answers"]["any"]
        assert record["read_s_ago"] >= 0 and (record["bad"], record["out"]) == (0, False)
        assert [t["state"] for t in data["timeline"]][:3] == ["LOADING", "SMOKE", "READY"]
        assert "sk-hidden" not in answer.text and TOKEN not in answer.text


@pytest.mark.parametrize("path", ["/report", "/"])
def test_what_shows_details_takes_the_token(path: str) -> None:
    """Without or with a wrong token: 401. As bearer, or as a browser's password: 200."""
    with running(TOKEN) as it:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic !!"}):
            answer = it.get(path, headers=headers)
            assert answer.status_code == 401
            assert "Basic" in answer.headers["www-authenticate"]
        assert it.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert it.get(path, auth=("anyone", TOKEN)).status_code == 200
        assert statuses(it)["/livez"] == 200  # probes stay open


def test_a_token_that_changes_in_its_file_is_the_one_that_opens(tmp_path: Path) -> None:
    """The service need not be started again for it."""
    file = tmp_path / "token"
    file.write_text("first\n")
    token = settings.secret("--token-file", file)
    with running(TOKEN, start=False) as it:
        made = replace(it.settings, token=token)
        with TestClient(service.app(it.loop, made)) as client:

            def opens(word: str) -> int:
                return client.get(
                    "/report", headers={"Authorization": f"Bearer {word}"}
                ).status_code

            assert (opens("first"), opens("second")) == (200, 401)
            file.write_text("second\n")
            assert (opens("first"), opens("second")) == (401, 200)


def test_a_token_that_is_not_ascii_is_refused_and_no_error() -> None:
    """Bytes outside ASCII in the header are a wrong token, not a 500."""
    with running(TOKEN) as it:
        answer = it.get("/report", headers={"Authorization": b"Bearer \xff\xfe"})
        assert answer.status_code == 401


def test_drain_is_a_post_with_the_token() -> None:
    """POST /drain turns /readyz to 503 for good, and is refused without the token as Bearer: a
    browser adds a known password to what any page sends."""
    with running(TOKEN) as it:
        it.wait_for(State.READY)
        assert it.get("/drain").status_code == 405
        refused = requests.post(f"{it.url}/drain", timeout=PATIENCE_S)
        assert refused.status_code == 401
        assert it.get("/readyz").status_code == 200
        for odd in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-origin"}):
            headers = {"Authorization": f"Bearer {TOKEN}", **odd}
            from_page = requests.post(f"{it.url}/drain", headers=headers, timeout=PATIENCE_S)
            assert (from_page.status_code, from_page.text) == (
                403,
                "draining is not for web pages\n",
            )
        by_password = requests.post(f"{it.url}/drain", auth=("anyone", TOKEN), timeout=PATIENCE_S)
        assert by_password.status_code == 401
        assert by_password.headers["www-authenticate"] == "Bearer"
        assert it.get("/readyz").status_code == 200
        headers = {"Authorization": f"Bearer {TOKEN}"}
        drained = requests.post(f"{it.url}/drain", headers=headers, timeout=PATIENCE_S)
        assert drained.status_code == 202
        it.wait_for(State.DRAINING)
        assert it.get("/readyz").status_code == 503
        assert it.get("/livez/engine").status_code == 200


def test_without_a_token_nobody_drains() -> None:
    """A service that was given no token refuses POST /drain and names both ways."""
    with running() as it:
        it.wait_for(State.READY)
        refused = requests.post(f"{it.url}/drain", timeout=PATIENCE_S)
        assert refused.status_code == 403
        assert "--token-file" in refused.text and "SIGTERM" in refused.text
        assert it.get("/readyz").status_code == 200


@pytest.mark.parametrize("path", ["/report/", "/readyz/", "/drain/", "//"])
def test_no_client_is_sent_to_the_host_it_named(path: str) -> None:
    """A route that is none is 404: no redirect repeats what the Host header says."""
    with running(start=False) as it:
        answer = it.get(path, headers={"Host": "evil.example"}, allow_redirects=False)
        assert answer.status_code == 404
        assert "evil.example" not in f"{answer.headers}{answer.text}"


def test_metrics_are_an_exposition() -> None:
    """/metrics parses, has the state once, and the probes under blackbox_exporter's names."""
    with running() as it:
        it.wait_for(State.READY)
        families = {f.name: f for f in text_string_to_metric_families(it.get("/metrics").text)}
        states = {s.labels["state"]: s.value for s in families["dspark_health_state"].samples}
        assert sum(states.values()) == 1 and states["READY"] == 1
        success = {s.labels["probe"]: s.value for s in families["probe_success"].samples}
        assert success["health"] == success["metrics"] == success["generation"] == 1
        assert families["dspark_health_ready"].samples[0].value == 1
        assert families["dspark_health_turns"].samples[0].value > 1


def test_metrics_show_the_acceptance_of_the_last_window() -> None:
    """Per engine and position once there was traffic, for the dashboard; before, there is none."""
    with running(start=False) as it:
        for _ in range(12):
            it.loop.turn()
            it.target.serve_traffic()
        it.wait(lambda: it.loop.turn().memory.state is State.READY)
        for _ in range(3):
            it.target.serve_traffic()
            it.loop.turn()
        text = it.get("/metrics").text
    families = {f.name: f for f in text_string_to_metric_families(text)}
    shown = {
        (s.labels["engine"], s.labels["position"]): s.value
        for s in families["dspark_acceptance_ratio"].samples
    }
    assert shown == pytest.approx(
        {("0", str(i)): rate for i, rate in enumerate((0.75, 0.6, 0.5, 0.4))}, abs=0.02
    )
    (length,) = families["dspark_acceptance_length"].samples
    assert length.value == pytest.approx(3.25, abs=0.05)


def test_the_page_says_how_far_a_start_has_come(tmp_path: Path) -> None:
    """While the server loads: the stage that is open, with its percent."""
    log = tmp_path / "server.log"
    whole = (DATA / "log-healthy.log").read_text("utf-8")
    begin, bar, _ = whole.partition("Loading safetensors checkpoint shards: ")
    log.write_text(f"{begin}{bar} 40% Completed | 2/5 [00:01<00:02,  1.2it/s]\n")
    shown = page.render(_report_of(log))
    assert "log: weights" in shown
    assert "(40 %)" in shown
    assert 'class="open"' in shown


def test_the_page_names_the_cause_of_a_failed_start() -> None:
    """A server that is not up, with a log that says why: cause, remedy and source."""
    shown = page.render(_report_of(DATA / "log-missing-d2t.log"))
    assert "<h2>Cause, from the server" in shown
    assert "<code>dspark.missing_d2t_attr</code>" in shown


@pytest.mark.parametrize(("age", "told"), [(119.0, "119 s"), (600.0, "10 min"), (9000.0, "2.5 h")])
def test_the_page_tells_a_long_time_in_minutes_and_hours(age: float, told: str) -> None:
    """A state that has lasted is told as people tell it."""
    assert page._duration(age) == told


def _report_of(log: Path) -> dict[str, Any]:
    """The report on a server that is down and wrote this log."""
    with scripted_server() as script:
        script.down()
        policy = Policy(Health(), MODEL)
        loop = Loop(
            Client(script.url), policy, clock=lambda: 0.0, say=lambda line: None, log=Log(log)
        )
        for turn in range(3):
            loop.turn(5.0 * turn)
        made = settings.make("rehearsal", target=script.url, log=log)
        return dict(report.as_json(loop.snapshot, made, loop.snapshot.at))


def test_a_name_that_is_no_text_breaks_no_surface() -> None:
    """A served name with half a character, a terminal's escape and a line break: every surface
    still answers, and says it on one line."""
    with running(start=False) as it:
        it.target.models = ("\ud800\x1b[31mred\nline",)
        it.loop.turn()
        for path in ("/", "/report"):
            assert it.get(path).status_code == 200
        assert it.get("/livez/engine?verbose").status_code == 200
        told = it.get("/readyz?verbose")
        assert told.status_code == 503
        first, second = told.content.decode().splitlines()[:2]
        assert first.endswith("served \ufffd\ufffd[31mred line)")
        assert second.startswith("since ")


def test_a_report_with_nan_is_still_json() -> None:
    """A NaN in evidence is named as text, for JSON has none."""
    finding = Finding("x", Outcome.BAD, "numerics.nan", {"mean": float("nan")})
    json.dumps(report.finding_as_json(finding), allow_nan=False)


def test_the_cause_of_a_failed_start_comes_from_the_log(tmp_path: Path) -> None:
    """With the server's log at hand the report names the cause; when it serves, none is named."""
    log = tmp_path / "server.log"
    log.write_text(
        "(APIServer pid=1) INFO 11-29 14:59:00 [utils.py:1] non-default args: {}\n"
        "(Worker pid=7) ERROR 11-29 15:00:00 [x.py:1] AttributeError: "
        "'DSparkDeepseekV4ForCausalLM' object has no attribute 'draft_id_to_target_id'\n"
    )
    now = [0.0]
    said: list[str] = []
    with scripted_server() as target:
        policy = Policy(QUICK, MODEL)
        client = Client(target.url)
        runner = InlineRunner(Generator(client, policy))
        loop = Loop(
            client, policy, clock=lambda: now[0], runner=runner, log=Log(log), say=said.append
        )
        target.down()
        found = loop.turn(0.0).cause
        assert found is not None and found.id == "dspark.missing_d2t_attr"
        assert sum("draft_id_to_target_id" in line for line in said) == 1
        assert "draft_id_to_target_id" not in report.verbose(loop.snapshot, 0.0)
        log.unlink()
        assert loop.turn(60.0).cause == found  # what was read stays known
        log.write_text("INFO 11-29 15:10:00 [utils.py:1] non-default args: {}\n")
        loop.turn(120.0)  # sees a start of its own
        assert loop.turn(180.0).cause is None
        target.up()
        for second in range(181, 200):
            loop.turn(float(second))
        assert loop.snapshot.verdict.state is State.READY
        assert loop.snapshot.cause is None


def test_stopping_aborts_the_running_generation() -> None:
    """A generation under way when the loop stops is cut, so that vLLM drops the request."""
    entered, left = threading.Event(), threading.Event()

    def slow(_: object) -> tuple[int, bytes]:
        entered.set()
        left.wait(PATIENCE_S)
        return error(500, "late")

    others = set(threading.enumerate())
    with running(start=False) as it:
        it.target.on_completion = slow
        it.loop.start()
        assert entered.wait(PATIENCE_S)
        (generation,) = (t for t in {*threading.enumerate()} - others if t.name == "generation")
        it.loop.stop()
        it.wait(lambda: not generation.is_alive())
        left.set()


def test_scraping_goes_on_while_a_generation_runs() -> None:
    """A hanging generation does not stop the turns."""
    left = threading.Event()

    def slow(_: object) -> tuple[int, bytes]:
        left.wait(PATIENCE_S)
        return error(500, "late")

    with running(start=False) as it:
        it.target.on_completion = slow
        it.loop.start()
        it.wait(lambda: it.loop.snapshot.memory.outstanding is not None)
        turns = it.loop.snapshot.turns
        it.wait(lambda: it.loop.snapshot.turns > turns + 3)
        left.set()


def test_a_used_port_is_one_clear_line() -> None:
    """Listening on a port that is taken names the setting, the value and the fix."""
    taken = service.listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with taken, pytest.raises(settings.SettingsError, match=rf"--port: got {port}; .*in use"):
        service.listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profile": None}, r"--profile: got none; it is one of .*rehearsal"),
        ({"profile": "mi999"}, r"profile: got 'mi999'; it is one of"),
        ({"target": "localhost:8000"}, r"--target: got 'localhost:8000'; give an address"),
        ({"target": "http://"}, r"--target: got 'http://'; give an address"),
        ({"target": "http://a:99999"}, r"--target: got 'http://a:99999'; give an address"),
        ({"target": "http://u:p@host"}, r"--target: holds a user name"),
        ({"target": "http://host/?a=1"}, r"--target: .*leave the query out"),
        ({"port": 70000}, r"--port: got 70000; give a port"),
        ({"target": "http://a..b"}, r"--target: got 'http://a..b'; give an address"),
        ({"target": "http://a/\udcff"}, r"--target: got 'http://a/\\udcff'; give an address"),
        ({"drain_s": -1.0}, r"--drain: got -1.0; give seconds"),
        ({"drain_s": float("nan")}, r"--drain: got nan; give seconds"),
        ({"drain_s": float("inf")}, r"--drain: got inf; give seconds"),
        ({"profile": None}, r"--profile: got none; it is one of mi355x, "),
        ({"grpc_port": 0}, r"--grpc-port: got 0; give a port"),
        ({"port": 8080, "grpc_port": 8080}, r"--grpc-port: got 8080, which is --port"),
        ({"token_file": Path("nowhere")}, r"--token-file: nowhere cannot be read"),
    ],
)
def test_each_bad_setting_has_its_line(change: dict[str, object], message: str) -> None:
    """A setting that cannot be used is refused in one line: setting, value, fix."""
    arguments = {"profile": "rehearsal", **change}
    with pytest.raises(settings.SettingsError, match=message) as refusal:
        settings.make(**arguments)  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)


def test_settings_take_what_the_recipe_says(tmp_path: Path) -> None:
    """Port, model, budgets and speculation come from the profile; secrets do not print."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    made = settings.make("rehearsal", token_file=file)
    assert (made.port, made.target) == (8080, "http://127.0.0.1:8000")
    assert made.policy.model == "rehearsal" and made.policy.speculates
    assert made.policy.health.canary_after_s == 15
    assert made.token is not None and made.token.reveal() == TOKEN
    assert TOKEN not in repr(made) + json.dumps(dict(made.shown()))


def status_page(
    tmp_path: Path, seeing: Callable[[float], Signs] | None = None, **server: Any
) -> str:
    """The page over a server of a test's own and over a recorded log, once READY."""
    log = tmp_path / "server.log"
    log.write_bytes((DATA / "log-healthy.log").read_bytes())
    (tmp_path / "provenance.json").write_text('{"series": {"patches": ["0001-x"]}, "audit": "ok"}')
    with scripted_server(**server) as script:
        client = Client(script.url)
        policy = Policy(Health(), MODEL)
        loop = Loop(
            client,
            policy,
            clock=lambda: 0.0,
            runner=InlineRunner(Generator(client, policy)),
            say=lambda line: None,
            log=Log(log),
            provenance=Provenance(log),
            signs=None if seeing is None else lambda: seeing(at),
        )
        for turn in range(12):
            at = 5.0 * turn
            loop.turn(at)
        made = settings.make("rehearsal", target=script.url, log=log)
        return page.render(report.as_json(loop.snapshot, made, loop.snapshot.at))


def test_the_page_shows_start_acceptance_checks_and_provenance(tmp_path: Path) -> None:
    """The page of a READY server draws its start, its acceptance, its gate, its image."""
    shown = status_page(tmp_path)
    ElementTree.fromstring(shown[shown.index("<svg") : shown.index("</svg>") + 6])
    assert 'aria-label="accepted per draft. 0: 75%' in shown
    assert shown.count('class="whisker"') == 4
    assert shown.count("<title>floor: ") == 1
    for text in ("log: weights", "gate: long", "gate: at-once", "series.patches.0", "0001-x"):
        assert f">{text}<" in shown
    assert "budgets.canary_after_s" in shown


def test_the_page_escapes_what_the_server_says(tmp_path: Path) -> None:
    """A model's name or an error that is markup arrives as text."""
    shown = status_page(tmp_path, models=("<script>alert(1)</script>",))
    assert "<script>" not in shown and "&lt;script&gt;" in shown


def test_the_page_shows_the_vital_signs(tmp_path: Path) -> None:
    """Processes, compilers, cards and ends; a page without signs has no such tables."""

    def seeing(at: float) -> Signs:
        killed = Ended("Worker", 9, 1.0, None, "SIGKILL", by_oom=True)
        compiler = Compiler("<hipcc>", 0.0, 7.0)
        return signs(at, still=0.0, compilers=(compiler,), cards=(card(97),), ended=(killed,))

    shown = status_page(tmp_path, seeing)
    for text in ("EngineCore (2)", "S for 55 s", "0000:c1:00.0", "&lt;hipcc&gt;", "Worker (9)"):
        assert f">{text}<" in shown
    assert "SIGKILL by the kernel, out of memory" in shown
    assert "Processes" not in status_page(tmp_path)


def test_the_metrics_show_the_vital_signs() -> None:
    """CPU and memory by process, errors by card, the signs' age; nothing where they are not seen.
    Two workers that have no rank yet are one series, or the whole scrape would be refused."""
    names = ("APIServer", "EngineCore", "Worker", "Worker")
    seen = signs(3.0, names=names, cards=(card(uncorrected=2),))
    shown = {m.name: m for m in shown_signs.metrics(seen, 5.0)}
    assert shown["dspark_signs_age_seconds"].samples[0].value == 2
    labels = [s.labels["process"] for s in shown["dspark_process_cpu_seconds"].samples]
    assert labels == ["APIServer", "EngineCore", "Worker", "others"]
    assert shown["dspark_process_resident_bytes"].samples[2].value == 2 << 30
    (error,) = shown["dspark_gpu_uncorrected_errors"].samples
    assert (error.labels, error.value) == ({"card": "0000:c1:00.0"}, 2)
    assert list(shown_signs.metrics(None, 5.0)) == []


def test_the_page_may_load_nothing() -> None:
    """A browser is told to run no script and fetch nothing for the page."""
    with running() as it:
        policy = it.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    "content",
    ["", "[1]", "{", "[" * 100_000, " " * 300_000 + "{}", '{"a":' + "[" * 300 + "]" * 300 + "}"],
)
def test_a_provenance_that_is_none_shows_none(tmp_path: Path, content: str) -> None:
    """Half a file, another type, one nested or large beyond reason: nothing to show, no error."""
    (tmp_path / "provenance.json").write_text(content)
    assert Provenance(tmp_path / "server.log").read() is None


def test_a_provenance_of_numbers_beyond_reason_is_shown(tmp_path: Path) -> None:
    """JSON's 1e999 is no number of a report's: it is shown as it was written."""
    (tmp_path / "provenance.json").write_text('{"a": 1e999, "b": [NaN, -1e999], "c": 1.5}')
    shown = Provenance(tmp_path / "server.log").read()
    assert shown == {"a": "1e999", "b": ["NaN", "-1e999"], "c": 1.5}
    json.dumps(shown, allow_nan=False)


def test_a_provenance_that_is_a_pipe_is_none(tmp_path: Path) -> None:
    """Nobody waits for what nobody writes."""
    os.mkfifo(tmp_path / "provenance.json")
    assert Provenance(tmp_path / "server.log").read() is None


def test_provenance_follows_the_file(tmp_path: Path) -> None:
    """It comes late, is replaced by another image's, and goes."""
    read = Provenance(tmp_path / "server.log").read
    assert read() is None
    path = tmp_path / "provenance.json"
    path.write_text('{"series": 1}')
    assert read() == {"series": 1}
    path.write_text('{"series": 10}')
    assert read() == {"series": 10}
    path.unlink()
    assert read() is None
