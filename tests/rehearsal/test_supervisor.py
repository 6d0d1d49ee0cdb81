"""Server and health service run together, as `make rehearsal` and `make smoke-test` run them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests

from deploy.rehearsal import supervisor
from deploy.rehearsal.environment import AMD
from deploy.rehearsal.supervisor import LOGS, PORTS, free_port
from healthcheck.signs import file
from healthcheck.signs.model import NAME
from patches.loadcheck.card import CARDS
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
# A start is ten seconds on idle cores, several times that on busy ones.
PATIENCE_S = 500.0
MISSING = "dspark.missing_d2t_attr"


def command(*words: str, **environ: str) -> subprocess.Popen[str]:
    """`python3 -m deploy.rehearsal` with its output piped."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("REHEARSAL_", "DSPARK_P"))}
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.rehearsal", *words],
        cwd=ROOT,
        env={**kept, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Everything that descends from it now."""
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them is left, given a moment."""
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.real
def test_the_smoke_test_holds_on_real_vllm(tmp_path: Path) -> None:
    """The main job: real server, real draft, real health service, every row good, nothing left."""
    report = tmp_path / "report.json"
    process = command("smoke", "--json", str(report))
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    data = json.loads(report.read_text("utf-8"))
    assert data["verdict"] == "good"
    assert data["vllm_version"] == "0.27.1"
    asked = {"ready", "sampling", "drafting", "JSON schema", "acceptance"}
    assert asked <= {c["name"] for c in data["checks"]}
    assert 0.4 < data["acceptance"]["rate"] < 0.9
    assert len(data["acceptance"]["per_position"]) == 5
    signs = file.read(LOGS / NAME)
    assert signs is not None
    assert {"APIServer", "EngineCore", "Worker"} <= {p.name for p in signs.processes}


@pytest.mark.prove
@pytest.mark.real
@pytest.mark.parametrize("arch", CARDS)
def test_the_smoke_test_holds_on_the_amd_classes(arch: str, tmp_path: Path) -> None:
    """The same through the AMD target and draft, with the flags of the cards; every row good."""
    report = tmp_path / "report.json"
    process = command("smoke", "--profile", AMD, "--json", str(report), REHEARSAL_ARCH=arch)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    data = json.loads(report.read_text("utf-8"))
    assert data["verdict"] == "good"
    assert {"ready", "sampling", "chat", "acceptance"} <= {c["name"] for c in data["checks"]}


@pytest.mark.real
def test_the_missing_attribute_is_named_and_not_its_wrapper(tmp_path: Path) -> None:
    """Without patch 0001 the real start of the AMD classes ends as PR 51145 says. The smoke test,
    exit 1, its report, `explain` and the health service all name it, from the worker's line."""
    report = tmp_path / "report.json"
    process = command(
        *("smoke", "--profile", AMD, "--json", str(report)),
        REHEARSAL_FAULT="drop-draft-attribute",
    )
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert f"cause: {MISSING} in Worker" in output
    cause = json.loads(report.read_text("utf-8"))["cause"]
    assert cause["id"] == MISSING
    assert cause["evidence"][0]["text"].endswith(
        "AttributeError: 'DSparkDeepseekV4ForCausalLM' object has no attribute "
        "'draft_id_to_target_id'"
    )
    log = LOGS / "server.log"
    assert "rehearsal: without 0001-rocm-dspark-draft-id" in log.read_text("utf-8")
    explained = subprocess.run(
        [sys.executable, "-m", "healthcheck", "explain", "--format", "json", str(log)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert json.loads(explained.stdout)["cause"]["id"] == MISSING, explained.stdout
    port = free_port()
    watching = [sys.executable, "-m", "healthcheck", "serve", "--profile", AMD, "--port", str(port)]
    watching += ["--target", f"http://127.0.0.1:{free_port()}", "--log", str(log), "--drain", "0"]
    with subprocess.Popen(watching, cwd=ROOT, stdout=subprocess.DEVNULL) as health:
        try:
            report_of = f"http://127.0.0.1:{port}/report"
            until(lambda: MISSING in requests.get(report_of, timeout=PATIENCE_S).text)
        finally:
            health.terminate()


def test_a_free_port_is_none_that_the_kernel_hands_out() -> None:
    """A connection or a server of anybody's that asks for any port does not take it meanwhile."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert PORTS[0] <= free_port() <= PORTS[-1] < lowest


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that listens is passed over; where all do, an error says which."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(supervisor, "PORTS", [port] * 100)
        with pytest.raises(OSError, match=f"no port from {port} to {port} is free"):
            free_port()


@pytest.mark.real
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_leaves_no_process(sign: signal.Signals) -> None:
    """Interrupted while the server loads, both services are stopped and the exit code says so."""
    server, health = free_port(), free_port()
    process = command("run", "--port", str(server), "--health-port", str(health))
    until(lambda: len(family(process)) >= 2)
    time.sleep(3)  # into the imports, where a signal is handled last
    started = family(process)
    assert len(started) >= 2
    process.send_signal(sign)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert gone(started)
    assert f"http://127.0.0.1:{server}" in output
    assert f"http://127.0.0.1:{health}" in output


def test_a_port_in_use_starts_nothing() -> None:
    """One line that names the port, exit 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = command("run", "--port", str(port), "--health-port", str(free_port()))
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert output.splitlines() == [
        f"rehearsal: port {port} on 127.0.0.1: Address already in use: stop what listens there or"
        " give --port"
    ]
