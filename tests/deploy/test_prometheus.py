"""The monitoring as one chain, with a real Prometheus: it scrapes server and health service, a rule
fires on the verdict, and what it sends is routed to the receiver that pages."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from deploy.rehearsal.supervisor import free_port
from healthcheck.verdict import State
from tests.support import tools
from tests.support.running_service import QUICK, Running, running
from tests.support.scripted_server import Reply
from tests.support.waiting import PATIENCE_S, until

MONITORING = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
# A canary of a crowded machine must not be a stall.
HEALTH = replace(QUICK, stall_budget_s=15.0)


@dataclass
class Receiver:
    """Stands where Alertmanager listens, and keeps every alert that it is sent, by name."""

    port: int = 0
    alerts: dict[str, dict[str, Any]] = field(default_factory=dict)


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver on a free port."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kept.alerts |= {alert["labels"]["alertname"]: alert for alert in body}
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        kept.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield kept
        server.shutdown()


@dataclass
class Prometheus:
    """A Prometheus that runs."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of an expression; empty while it does not listen yet."""
        try:
            answer = requests.get(
                f"{self.url}/api/v1/query", params={"query": expression}, timeout=10
            )
        except requests.ConnectionError:
            assert self.process.poll() is None, self.log.read_text()
            return []
        return answer.json()["data"]["result"]  # type: ignore[no-any-return]

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """What it returns once that is true."""
        return until(true, why=lambda: f"{what}\n{self.log.read_text()}")

    def rules(self) -> Mapping[str, str]:
        """The health of every rule, by name; none before the first evaluation of all."""
        answer = requests.get(f"{self.url}/api/v1/rules", timeout=PATIENCE_S)
        groups = answer.json()["data"]["groups"]
        health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
        return {} if "unknown" in health.values() else health


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Prometheus with the product's files; only addresses and intervals are this test's own."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(MONITORING / "rules.yaml")]
    for job in (*config["scrape_configs"], *config["alerting"]["alertmanagers"]):
        for group in job["static_configs"]:
            group["targets"] = [targets[target] for target in group["targets"]]
    written = folder / "prometheus.yml"
    written.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        tools.find("prometheus"),
        f"--config.file={written}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Prometheus(f"http://{address}", process, log)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
def watched() -> Iterator[Running]:
    """A health service that is ready."""
    with running(health=HEALTH) as it:
        it.wait_for(State.READY)
        yield it


def test_a_stalled_engine_reaches_the_receiver_that_pages(watched: Running, tmp_path: Path) -> None:
    """Every rule evaluates on what the real targets show, and none fires; the engine stalls, and
    the alert arrives with its runbook and the labels that page; it moves again, and that resolves."""
    moves = threading.Event()

    def held(payload: Mapping[str, Any]) -> Reply:
        moves.wait(PATIENCE_S)
        return watched.target.complete(payload)

    with receiver() as received:
        targets = {
            "alertmanager:9093": f"127.0.0.1:{received.port}",
            "server:8000": f"127.0.0.1:{watched.target.port}",
            "healthcheck:8080": watched.url.removeprefix("http://"),
        }
        with prometheus(tmp_path, targets) as seen:
            seen.until(lambda: len(seen.query("up == 1")) == 2, "both targets are up")
            state = 'dspark_health_state{state="READY"} == 1'
            seen.until(lambda: seen.query(state), "the verdict is scraped")
            health = seen.until(seen.rules, "every rule is evaluated")
            assert "err" not in health.values(), health
            assert not seen.query("ALERTS")

            watched.target.on_completion = held
            watched.wait_for(State.STALLED)
            alert = seen.until(lambda: received.alerts.get("DsparkStalled"), "the alert arrives")
            assert alert["annotations"]["runbook_url"].endswith("#dsparkstalled")
            labels = [f"{name}={value}" for name, value in alert["labels"].items()]
            config = f"--config.file={MONITORING / 'alertmanager.yml'}"
            routed = tools.run("amtool", "config", "routes", "test", config, *labels)
            assert routed.stdout.strip() == "page"

            moves.set()
            watched.wait_for(State.READY)
            fires = 'ALERTS{alertname="DsparkStalled"}'
            seen.until(lambda: not seen.query(fires), "it resolves")
