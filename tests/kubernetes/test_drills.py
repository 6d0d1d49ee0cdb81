"""The rehearsal under faults on a real kubelet; one server for all drills, each from ready to ready.

What a kubelet did, and what the health service said meanwhile, is written to build/kubernetes: a copy
of it in tests/support/recorded_kubelets holds the simulated kubelet to the real one.
"""

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from healthcheck.verdict import State
from tests.support import kubelet
from tests.support.cluster import CHANGE_S, Cluster, moment
from tests.support.documents import ROOT
from tests.support.manifests import REHEARSAL, render, with_components
from tests.support.served import NAME, Asking, Served
from tests.support.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(3 * CHANGE_S)]

RECORDS = ROOT / "build" / "kubernetes"
(DEPLOYMENT,) = (r for r in render(REHEARSAL) if r["kind"] == "Deployment")
LIVENESS = next(
    probe
    for probe in kubelet.probes(DEPLOYMENT["spec"]["template"]["spec"])
    if (probe.container, probe.kind) == ("server", "liveness")
)


def record(cluster: Cluster, drill: str, **told: Any) -> dict[str, Any]:
    """Write down what a drill saw."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    whole = {"kubernetes": cluster.version, "machine": platform.machine(), "drill": drill, **told}
    (RECORDS / f"{drill}.json").write_text(json.dumps(whole, indent=1) + "\n")
    return whole


@dataclass(frozen=True)
class Before:
    """What was so before a fault: the pod, the time by its clock, its restarts, failures of liveness."""

    pod: str
    at: float
    server: int
    health: int
    failures: int


def look(served: Served) -> Before:
    """At the one pod."""
    pod = served.pod()
    return Before(pod, now(served), *served.restarts(pod), served.failed_liveness(pod))


def follow_restart(
    served: Served,
    drill: str,
    before: Before,
    again: Callable[[], bool] = lambda: False,
    **told: float,
) -> dict[str, Any]:
    """The server's container, and no other, is restarted, once for the fault and once each time that
    `again` says that it made another; it ends in ready.

    What happened, in seconds since the health service first said that something is wrong; `told` are
    other moments, in seconds since 1970.
    """
    pod = before.pod
    unready = served.until_condition(pod, ready=False)
    restarts: list[dict[str, Any]] = []
    while not restarts or again():
        restarts.append(served.until_restarted(pod, before.server + len(restarts)))
    ready = served.until_condition(pod, ready=True)
    assert served.pod() == pod
    assert served.restarts(pod) == (before.server + len(restarts), before.health)
    states = said_since(served, before)
    first = states[0][0]
    return record(
        served.cluster,
        drill,
        states=[[round(at - first, 1), state] for at, state in states],
        liveness_failures=served.failed_liveness(pod) - before.failures,
        unready=round(unready - first, 1),
        restarts=[
            {
                "ended": round(moment(seen["lastState"]["terminated"]["finishedAt"]) - first, 1),
                "exit_code": seen["lastState"]["terminated"]["exitCode"],
                "started": round(moment(seen["state"]["running"]["startedAt"]) - first, 1),
            }
            for seen in restarts
        ],
        ready=round(ready - first, 1),
        **{name: round(at - first, 1) for name, at in told.items()},
    )


def said_since(served: Served, before: Before) -> list[tuple[float, str]]:
    """What the health service has become since a look and when, seconds since 1970."""
    return [(at, state) for at, state in served.states(before.pod) if at >= before.at]


def now(served: Served) -> float:
    """The time by the node's clock, seconds since 1970."""
    told = served.cluster.python(served.pod(), "health", "-c", "import time; print(time.time())")
    return float(told.stdout)


def names(seen: dict[str, Any]) -> list[str]:
    """The states of a record, in their order."""
    return [state for _, state in seen["states"]]


def when(seen: dict[str, Any], wanted: State) -> float:
    """When it first became so."""
    return next(float(at) for at, state in seen["states"] if state == wanted)


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
    """An engine that is stopped: unready first, then STALLED, then as many failures of liveness as it
    takes restart the server once; the sidecar lives on, and ready comes by a new gate only."""
    before = look(served)
    served.signal_engine(before.pod, "STOP")
    seen = follow_restart(served, "stall", before)
    assert seen["liveness_failures"] == LIVENESS.failure_threshold
    (restart,) = seen["restarts"]
    assert seen["unready"] <= when(seen, State.STALLED) < restart["ended"]
    assert names(seen)[-2:] == [State.SMOKE, State.READY]


def test_a_server_whose_engine_dies_ends_with_0_and_is_dead_until_one_stays(
    served: Served,
) -> None:
    """vLLM ends well when its engine is gone; no probe of liveness has failed then. While the next
    engines die as they load, its kubelet starts it later each time, and DEAD is said."""
    before = look(served)

    def until_dead() -> bool:
        if State.DEAD in [state for _, state in said_since(served, before)]:
            return False
        served.signal_engine(before.pod, "KILL")
        return True

    assert until_dead()
    seen = follow_restart(served, "dead", before, until_dead)
    assert (seen["restarts"][0]["exit_code"], seen["liveness_failures"]) == (0, 0)
    assert names(seen)[-2:] == [State.SMOKE, State.READY]


def test_a_server_that_stalled_before_its_kubelet_restarted_is_restarted_once(
    served: Served,
) -> None:
    """kubelet asks about the start anew: the process that once passed its gate counts as started, so
    that liveness, counted from nothing, restarts it."""
    command = os.environ.get("KUBELET_RESTART")
    if not command:
        pytest.skip("KUBELET_RESTART: is not set; give the command that restarts the kubelet")
    before = look(served)
    served.signal_engine(before.pod, "STOP")
    served.until_state(before.pod, State.STALLED)
    subprocess.run(shlex.split(command), check=True, timeout=CHANGE_S, cwd=ROOT)
    restarted = until(lambda: now(served))
    before = replace(before, failures=0)  # it counts from nothing
    seen = follow_restart(served, "kubelet-restart", before, kubelet_restarted=restarted)
    assert seen["liveness_failures"] == LIVENESS.failure_threshold
    (restart,) = seen["restarts"]
    assert when(seen, State.STALLED) < seen["kubelet_restarted"] < restart["ended"]
    assert names(seen)[-2:] == [State.SMOKE, State.READY]


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


def during(begun: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """What has come since."""
    counts = {kind: seen[kind] - begun[kind] for kind in ("whole", "streams")}
    return {**counts, "failed": seen["failed"][len(begun["failed"]) :]}


def test_a_server_that_is_taken_away_under_load_ends_its_answers(
    served: Served, asked: Asking
) -> None:
    """A pod that is deleted while it works: nobody's answer is cut off or refused, by it or by the one
    that is left."""
    begun = asked.until_more()
    assert begun["failed"] == []

    def busy() -> list[str]:
        names = [p["metadata"]["name"] for p in served.pods()]
        return [name for name in names if served.running(name) >= 1]

    (pod, *_) = until(busy, within_s=CHANGE_S)
    served.cluster.run("delete", "pod", pod, "--wait=false")
    served.until_gone(pod)
    served.until_ready(2)
    seen = record(served.cluster, "drain", **during(begun, asked.until_more()))
    assert seen["failed"] == [] and seen["whole"] and seen["streams"]


def test_a_roll_out_under_load_fails_no_request(served: Served, asked: Asking) -> None:
    """Each server is replaced by one that is ready before it ends: every request is answered whole."""
    before = {p["metadata"]["name"] for p in served.pods()}
    begun = asked.until_more()
    served.cluster.run("rollout", "restart", f"deployment/{NAME}")
    served.until_ready(2)
    for pod in before:
        served.until_gone(pod)
    assert not before & {p["metadata"]["name"] for p in served.pods()}
    seen = record(served.cluster, "roll-out", **during(begun, asked.until_more()))
    assert seen["failed"] == [] and seen["whole"] and seen["streams"]
