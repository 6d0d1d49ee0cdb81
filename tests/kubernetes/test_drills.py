"""The rehearsal under faults on a real kubelet; one server for all drills, each from ready to ready.

What a kubelet did, and what the health service said meanwhile, is written to build/kubernetes: a copy
of it in tests/support/recorded_kubelets holds the simulated kubelet to the real one.
"""

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster import CHANGE_S, Cluster, moment
from tests.support.documents import ROOT
from tests.support.manifests import REHEARSAL, with_components
from tests.support.served import NAME, Asking, Served
from tests.support.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(3 * CHANGE_S)]

RECORDS = ROOT / "build" / "kubernetes"


def record(cluster: Cluster, drill: str, **told: Any) -> dict[str, Any]:
    """Write down what a drill saw."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    whole = {"kubernetes": cluster.version, "machine": platform.machine(), "drill": drill, **told}
    (RECORDS / f"{drill}.json").write_text(json.dumps(whole, indent=1) + "\n")
    return whole


def follow_restart(served: Served, drill: str, began: float) -> dict[str, Any]:
    """The server's container, and no other, was or will be restarted once; it ends in ready.

    What happened, in seconds since the health service first said that something is wrong.
    """
    pod = served.pod()
    server, health = served.restarts(pod)
    unready = served.until_condition(pod, ready=False)
    seen = served.until_restarted(pod, server)
    ready = served.until_condition(pod, ready=True)
    assert served.pod() == pod and served.restarts(pod) == (server + 1, health)
    states = [(at, state) for at, state in served.states(pod) if at >= began]
    first = states[0][0]
    ended = seen["lastState"]["terminated"]
    return record(
        served.cluster,
        drill,
        states=[[round(at - first, 1), state] for at, state in states],
        killed=[round(at - first, 1) for at in served.killings(pod) if at >= began],
        unready=round(unready - first, 1),
        ended=round(moment(ended["finishedAt"]) - first, 1),
        exit_code=ended["exitCode"],
        started=round(moment(seen["state"]["running"]["startedAt"]) - first, 1),
        ready=round(ready - first, 1),
    )


def now(served: Served) -> float:
    """The time by the node's clock, seconds since 1970."""
    told = served.cluster.python(served.pod(), "health", "-c", "import time; print(time.time())")
    return float(told.stdout)


def names(seen: dict[str, Any]) -> list[str]:
    """The states of a record, in their order."""
    return [state for _, state in seen["states"]]


def test_a_start_ends_in_ready_without_a_restart(served: Served) -> None:
    """The gate's proofs are in the report; the sidecar reads the server's log and may write that the
    server is stuck, in the one folder that is its own."""
    pod = served.pod()
    report = served.report(pod)
    checks = {c["check"]: c["outcome"] for c in report["gate"]["findings"]["probe"]}
    assert report["gate"]["passed"] is True
    assert checks["real tokens"] == checks["sampling"] == checks["drafting"] == "good"
    assert served.restarts(pod) == (0, 0)
    may = (
        "import os; at = '/var/log/dspark-rocm'; print(os.access(at + '/server.log', os.R_OK),"
        " os.access(at, os.W_OK), os.access(at + '/told', os.W_OK))"
    )
    assert served.cluster.python(pod, "health", "-c", may).stdout.split() == [
        "True",
        "False",
        "True",
    ]


def test_a_stalled_engine_is_out_of_rotation_and_the_server_alone_restarted(served: Served) -> None:
    """An engine that is stopped: unready first, then STALLED, then liveness restarts the server once;
    the sidecar lives on, and ready comes by a new gate only."""
    pod, began = served.pod(), now(served)
    served.signal_engine(pod, "STOP")
    seen = follow_restart(served, "stall", began)
    stalled, killed = dict(map(reversed, seen["states"]))["STALLED"], seen["killed"]
    assert len(killed) == 1 and seen["unready"] <= stalled < killed[0] <= seen["ended"]
    assert names(seen)[-2:] == ["SMOKE", "READY"]


def test_a_server_whose_engine_dies_ends_with_0_and_is_started_again(served: Served) -> None:
    """vLLM ends well when its engine is gone; the health service says DEAD, and kubelet starts it
    again without having killed it."""
    pod, began = served.pod(), now(served)
    served.signal_engine(pod, "KILL")
    seen = follow_restart(served, "dead", began)
    assert (seen["exit_code"], seen["killed"]) == (0, [])
    assert "DEAD" in names(seen) and names(seen)[-2:] == ["SMOKE", "READY"]


def test_a_server_that_stalled_before_its_kubelet_restarted_is_restarted_once(
    served: Served,
) -> None:
    """kubelet asks about the start anew: the process that once passed its gate counts as started, so
    that liveness restarts it."""
    command = os.environ.get("KUBELET_RESTART")
    if not command:
        pytest.skip("KUBELET_RESTART: is not set; give the command that restarts the kubelet")
    pod, began = served.pod(), now(served)
    served.signal_engine(pod, "STOP")
    served.until_state(pod, "STALLED")
    subprocess.run(shlex.split(command), check=True, timeout=CHANGE_S, cwd=ROOT)
    restarted = now(served)
    seen = follow_restart(served, "kubelet-restart", began)
    again = dict(map(reversed, seen["states"]))["STALLED"] + restarted
    record(served.cluster, "kubelet-restart", **{**seen, "kubelet_restarted": again})
    assert len(seen["killed"]) == 1 and seen["killed"][0] <= seen["ended"]
    assert names(seen)[-2:] == ["SMOKE", "READY"]


@pytest.fixture(scope="module")
def asked(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """Two servers by the component `surge`, and clients that ask them without end."""
    scratch = tmp_path_factory.mktemp("surge")
    served.cluster.apply(with_components(REHEARSAL, ["surge"], scratch))
    served.until_ready(2)
    asking = served.ask_without_end()
    try:
        yield asking
    finally:
        asking.end()


def test_a_server_that_is_taken_away_under_load_ends_its_answers(
    served: Served, asked: Asking
) -> None:
    """A pod that is deleted while it works: nobody's answer is cut off or refused, by it or by the one
    that is left."""
    asked.until_more()

    def busy() -> list[str]:
        names = [p["metadata"]["name"] for p in served.pods()]
        return [name for name in names if served.running(name) >= 1]

    (pod, *_) = until(busy, within_s=CHANGE_S)
    served.cluster.run("delete", "pod", pod, "--wait=false")
    served.until_gone(pod)
    served.until_ready(2)
    seen = asked.until_more()
    record(served.cluster, "drain", **seen)
    assert seen["failed"] == []


def test_a_roll_out_under_load_fails_no_request(served: Served, asked: Asking) -> None:
    """Each server is replaced by one that is ready before it ends: every request is answered whole."""
    before = {p["metadata"]["name"] for p in served.pods()}
    begun = asked.until_more()
    served.cluster.run("rollout", "restart", f"deployment/{NAME}")
    served.until_ready(2)
    for pod in before:
        served.until_gone(pod)
    assert not before & {p["metadata"]["name"] for p in served.pods()}
    seen = asked.until_more()
    counts = {kind: seen[kind] - begun[kind] for kind in ("whole", "streams")}
    record(served.cluster, "roll-out", **counts, failed=seen["failed"])
    assert seen["failed"] == []
