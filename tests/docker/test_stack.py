"""The pair of containers under faults, with the verdict that each must bring.

The stack is one for all drills; each starts from READY, and what still runs after it is READY again.
"""

import json
import time
from collections.abc import Iterator

import pytest
import requests

import docker
from tests.support.containers import READY_S, Images, Stack
from tests.support.waiting import until

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def from_ready_to_ready(stack: Stack) -> Iterator[None]:
    """Each drill begins when the service is ready and must end so."""
    if not stack.runs():
        stack.up()
    stack.until_state("READY", deadline_s=READY_S)
    yield
    if stack.runs():
        stack.until_state("READY", "DEGRADED", deadline_s=READY_S)


def test_up_returned_because_sampled_text_was_generated(stack: Stack) -> None:
    """After `up --wait` the gate's proofs are in the report, and both containers are healthy."""
    report = stack.report()
    assert report["gate"]["passed"] is True
    checks = {c["check"]: c["outcome"] for c in report["gate"]["findings"]["probe"]}
    assert checks["real tokens"] == checks["sampling"] == checks["drafting"] == "good"
    for service in ("server", "healthcheck"):
        assert stack.container(service).attrs["State"]["Health"]["Status"] == "healthy"


def test_a_client_needs_the_key_and_gets_an_answer(stack: Stack) -> None:
    """The key of the secret file guards /v1; with it, text comes back."""
    body = {"model": "rehearsal", "prompt": "say", "max_tokens": 8, "temperature": 1.0}
    url = f"{stack.server_url}/v1/completions"
    assert requests.post(url, json=body, timeout=60).status_code == 401
    key = {"Authorization": f"Bearer {stack.key}"}
    answer = requests.post(url, json=body, headers=key, timeout=120)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]


def test_probes_are_open_and_the_report_is_not(stack: Stack) -> None:
    """/readyz answers anyone; /report wants the token of the secret file."""
    assert stack.probe("/readyz")[0] == 200
    assert requests.get(f"{stack.health_url}/report", timeout=10).status_code == 401


def test_the_health_service_can_see_what_the_server_was_made_of(stack: Stack) -> None:
    """The provenance in the server's image lies beside the log, readable without rights."""
    read = ["cat", "/var/log/dspark-rocm/provenance.json"]
    seen = stack.container("healthcheck").exec_run(read)
    assert seen.exit_code == 0, seen.output
    built = stack.container("server").exec_run(["cat", "/opt/dspark-rocm/provenance.json"]).output
    assert seen.output == built
    assert json.loads(built)["tree"]["carried"] is True


def test_ports_are_bound_to_the_loopback(stack: Stack) -> None:
    """Nothing is published beyond this host unless SERVER_BIND or HEALTH_BIND say so."""
    for service in ("server", "healthcheck"):
        ports = stack.container(service).attrs["NetworkSettings"]["Ports"]
        assert {b["HostIp"] for bound in ports.values() for b in bound or []} == {"127.0.0.1"}


def test_secrets_are_in_no_environment_and_no_log(stack: Stack) -> None:
    """Neither `docker inspect` nor the logs show the key or the token."""
    for service in ("server", "healthcheck"):
        container = stack.container(service)
        shown = f"{container.attrs}{container.logs().decode()}"
        assert stack.key not in shown
        assert stack.token not in shown


def test_an_init_is_the_first_process(stack: Stack) -> None:
    """Orphans are reaped: process 1 of the server's container is an init."""
    first = stack.container("server").exec_run(["cat", "/proc/1/comm"]).output.decode()
    assert "init" in first


def test_an_engine_that_stops_for_a_while_is_not_ready_meanwhile(stack: Stack) -> None:
    """SIGSTOP: /health stays 200, the verdict falls to NOT_READY, SIGCONT brings READY back."""
    pid = stack.engine_process()
    stack.signal_engine("STOP", pid)
    try:
        stack.until_state("NOT_READY", "STALLED")
        assert requests.get(f"{stack.server_url}/health", timeout=10).status_code == 200
        assert stack.probe("/readyz")[0] == 503
    finally:
        stack.signal_engine("CONT", pid)


def test_a_paused_server_is_not_ready_and_recovers(stack: Stack) -> None:
    """A frozen container answers nothing: not ready, and never taken for a dead one."""
    server = stack.container("server")
    server.pause()
    try:
        assert stack.until_state("NOT_READY", "STALLED", "DEAD") != "DEAD"
    finally:
        server.unpause()


def test_a_cut_network_is_not_ready_and_recovers(stack: Stack) -> None:
    """The health service off the network cannot tell, says not ready, and finds back."""
    network = next(
        n
        for n in stack.engine.networks.list()
        if n.name == f"{stack.values['COMPOSE_PROJECT_NAME']}_default"
    )
    health = stack.container("healthcheck")
    network.disconnect(health)
    try:
        stack.until_state("NOT_READY", "DEAD")
    finally:
        network.connect(health, aliases=["healthcheck"])


def test_a_stalled_engine_that_is_killed_is_replaced(stack: Stack) -> None:
    """STALLED asks for a restart; vLLM ends with code 0 when its engine dies, and is READY again
    by a new gate only."""
    before = stack.container("server").attrs["RestartCount"]
    pid = stack.engine_process()
    stack.signal_engine("STOP", pid)
    stack.until_state("STALLED")
    kept = until(stack.flights, good=lambda text: "STALLED progress." in text)
    assert f"EngineCore ({pid}) is stopped by a signal, in " in kept
    assert stack.probe("/livez/engine")[0] == 503
    assert stack.probe("/livez")[0] == 200
    stack.signal_engine("KILL", pid)
    until(lambda: stack.container("server").attrs["RestartCount"] > before)
    stack.until_state("DEAD", "SMOKE", "LOADING")
    stack.until_state("READY", deadline_s=READY_S)
    assert stack.report()["gate"]["passed"] is True


def test_too_little_memory_is_an_oom_kill_and_not_a_quiet_end(
    engine: docker.DockerClient, stack: Stack, images: Images
) -> None:
    """A start under a limit that it does not fit into ends by the kernel, and the engine says so."""
    container = engine.containers.run(
        images.server,
        detach=True,
        init=True,
        mem_limit="300m",
        memswap_limit="300m",
        environment={"DSPARK_PROFILE": "rehearsal"},
        volumes={stack.values["REHEARSAL_SITE"]: {"bind": "/opt/rehearsal/site", "mode": "ro"}},
    )
    try:
        code = container.wait(timeout=180)["StatusCode"]
        container.reload()
        assert code != 0
        assert container.attrs["State"]["OOMKilled"] is True
    finally:
        container.remove(force=True)


def test_a_stop_of_a_stuck_server_keeps_what_it_was_doing(stack: Stack) -> None:
    """`stop` while the engine does not move: its stacks are kept before the end, within the grace."""
    stack.until_state("READY", deadline_s=READY_S)

    def kept() -> set[str]:
        return {line for line in stack.flights().splitlines() if " SIGTERM p" in line}

    before = kept()
    stack.signal_engine("STOP", stack.engine_process())
    stack.until_state("NOT_READY", "STALLED")
    stack.compose("stop", "server")
    assert kept() - before
    stack.start()


def test_stopping_drains_and_ends_well(stack: Stack) -> None:
    """`stop` ends both within their grace: SIGTERM is enough, nothing is killed."""
    started = time.monotonic()
    stack.compose("stop")
    took = time.monotonic() - started
    codes = {s: stack.container(s).attrs["State"]["ExitCode"] for s in ("server", "healthcheck")}
    assert codes == {"server": 0, "healthcheck": 0}
    assert took < 35 + 15  # the grace periods of both
