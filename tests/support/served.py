"""The rehearsal's Deployment on a cluster: its pods, what they say, and what is done to them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster import CHANGE_S, Cluster, moment
from tests.support.waiting import until

NAME = "dspark-rehearsal"
LABELS = "app.kubernetes.io/name=dspark,app.kubernetes.io/instance=rehearsal"
#: Reasons of a container that waits for what will not come by itself.
LOST = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "CreateContainerConfigError")
ASKING = Path(__file__).with_name("asking.py")

_ENGINE = """for p in /proc/[0-9]*; do
 if grep -q VLLM::EngineCor $p/comm; then echo ${p#/proc/}; fi; done"""
_REPORT = """import urllib.request as u
token = open("/run/secrets/dspark/health-token").read().strip()
asked = u.Request("http://127.0.0.1:8080/report", headers={"Authorization": f"Bearer {token}"})
print(u.urlopen(asked, timeout=10).read().decode())"""
_RUNNING = """import urllib.request as u
told = u.urlopen("http://127.0.0.1:8000/metrics", timeout=10).read().decode().splitlines()
print(sum(float(l.split()[-1]) for l in told if l.startswith("vllm:num_requests_running")))"""


@dataclass(frozen=True)
class Served:
    """The Deployment of the overlay in the cluster's namespace."""

    cluster: Cluster

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not on their way out, the oldest first."""
        found = self.cluster.get("pods", f"--selector={LABELS}")["items"]
        kept = [p for p in found if "deletionTimestamp" not in p["metadata"]]
        return sorted(kept, key=lambda p: str(p["metadata"]["creationTimestamp"]))

    def pod(self) -> str:
        """The name of the one there is."""
        (one,) = self.pods()
        return str(one["metadata"]["name"])

    def container(self, pod: str, name: str) -> dict[str, Any]:
        """The status of a container of a pod, whether it is a sidecar or not."""
        status = self.cluster.get("pod", pod)["status"]
        kinds = ("containerStatuses", "initContainerStatuses")
        found: dict[str, Any] = next(
            c for kind in kinds for c in status.get(kind, ()) if c["name"] == name
        )
        return found

    def restarts(self, pod: str) -> tuple[int, int]:
        """Of the server and of the health service."""
        counts = (self.container(pod, name)["restartCount"] for name in ("server", "health"))
        server, health = map(int, counts)
        return server, health

    def until_ready(self, replicas: int) -> None:
        """Until so many pods of the latest template, and no other, are ready to serve."""

        def settled() -> bool:
            for pod in self.pods():
                for container in pod["status"].get("containerStatuses", ()):
                    waiting = container["state"].get("waiting", {})
                    assert waiting.get("reason") not in LOST, (
                        f"{container['image']}: {waiting.get('message', '')[:300]}: load the image"
                        " onto the nodes, as deploy/k8s/README.md says"
                    )
            made = self.cluster.get("deployment", NAME)
            status = made["status"]
            return bool(
                status.get("observedGeneration") == made["metadata"]["generation"]
                and status.get("updatedReplicas") == replicas == status.get("readyReplicas")
                and status.get("replicas") == replicas == len(self.pods())
            )

        until(settled, within_s=CHANGE_S, pause_s=2.0, why=self.told)

    def told(self) -> str:
        """What the pods and the namespace's events say, for a failure."""
        events = self.cluster.attempt("get", "events", "--sort-by=.lastTimestamp").stdout
        pods = self.cluster.attempt("get", "pods", "--output=wide").stdout
        return f"\n{pods}\n{events[-3000:]}"

    def until_condition(self, pod: str, ready: bool) -> float:
        """Waits until the pod is ready, or is not; when that began, seconds since 1970."""
        wanted = "True" if ready else "False"

        def condition() -> dict[str, str]:
            told = self.cluster.get("pod", pod)["status"].get("conditions", ())
            return next((c for c in told if c["type"] == "Ready"), {})

        seen = until(
            condition,
            good=lambda c: c.get("status") == wanted,
            within_s=CHANGE_S,
            pause_s=1.0,
            why=self.told,
        )
        return moment(seen["lastTransitionTime"])

    def until_gone(self, pod: str) -> None:
        """Until there is no such pod, not even one that ends."""
        until(
            lambda: "NotFound" in self.cluster.attempt("get", "pod", pod).stderr,
            within_s=CHANGE_S,
            pause_s=1.0,
            why=self.told,
        )

    def until_restarted(self, pod: str, before: int) -> dict[str, Any]:
        """The status of the server's container, once it runs again."""
        return until(
            lambda: self.container(pod, "server"),
            good=lambda c: (
                c["restartCount"] > before
                and "running" in c["state"]
                and "terminated" in c["lastState"]
            ),
            within_s=CHANGE_S,
            pause_s=1.0,
            why=self.told,
        )

    def until_state(self, pod: str, *states: str) -> None:
        """Until the health service says one of them."""
        until(
            lambda: self.state(pod),
            good=lambda state: state in states,
            within_s=CHANGE_S,
            pause_s=1.0,
            why=self.told,
        )

    def state(self, pod: str) -> str:
        """The health service's state in one word."""
        done = self.cluster.python(pod, "health", *["-m", "healthcheck", "check", "--for", "ready"])
        return (done.stdout.split() or ["nothing"])[0]

    def report(self, pod: str) -> dict[str, Any]:
        """The health service's report."""
        report: dict[str, Any] = json.loads(self._python(pod, _REPORT))
        return report

    def running(self, pod: str) -> float:
        """How many requests the server works at."""
        return float(self._python(pod, _RUNNING))

    def _python(self, pod: str, script: str) -> str:
        return self.cluster.python(pod, "health", "-c", script).stdout

    def signal_engine(self, pod: str, name: str) -> None:
        """Send a signal to vLLM's engine, a second later: a container that ends by it would take the
        answer along."""
        shell = ("exec", pod, "--container=server", "--", "sh", "-c")
        (pid,) = until(lambda: self.cluster.run(*shell, _ENGINE).split())
        self.cluster.run(*shell, f"(sleep 1; kill -{name} {pid}) > /dev/null 2>&1 &")

    def states(self, pod: str) -> list[tuple[float, str]]:
        """What the health service has become and when, seconds since 1970."""
        log = self.cluster.run("logs", pod, "--container=health", "--timestamps")
        found = re.findall(r"^(\S+) health: \w+ -> (\w+)", log, re.MULTILINE)
        return [(moment(at), state) for at, state in found]

    def failed_liveness(self, pod: str) -> int:
        """How many liveness probes of the server its kubelet saw fail, since it began.

        Of kubelet's own metrics: its events are no evidence, for it sends of one pod no more than 25
        and then one in five minutes, and a server that is not ready for long has used them up.
        """
        node = self.cluster.get("pod", pod)["spec"]["nodeName"]
        told = self.cluster.run("get", f"--raw=/api/v1/nodes/{node}/proxy/metrics/probes")
        wanted = (f'pod="{pod}"', 'container="server"', 'probe_type="Liveness"', 'result="failed"')
        lines = (line for line in told.splitlines() if all(word in line for word in wanted))
        return sum(int(float(line.split()[-1])) for line in lines)

    def ask_without_end(self) -> Asking:
        """A pod that asks the Service until it is taken away."""
        secret = {"secretKeyRef": {"name": "dspark", "key": "api-key"}}
        address = {
            "HOST": {"value": self.cluster.get("service", NAME)["spec"]["clusterIP"]},
            "PORT": {"value": "8000"},
            "API_KEY": {"valueFrom": secret},
        }
        container = {
            "name": "asking",
            "image": "dspark-rocm/healthcheck:rehearsal",
            "command": ["python3", "-c", ASKING.read_text()],
            "env": [{"name": name, **value} for name, value in address.items()],
        }
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
        name = {"metadata": {"name": "asking"}}
        self.cluster.apply([{"apiVersion": "v1", "kind": "Pod", **name, "spec": spec}])
        return Asking(self.cluster)


@dataclass(frozen=True)
class Asking:
    """The pod that asks."""

    cluster: Cluster

    def seen(self) -> dict[str, Any]:
        """What there has been so far: `whole`, `streams` and `failed`."""
        last = self.cluster.run("logs", "asking", "--tail=1")
        seen: dict[str, Any] = json.loads(last)
        return seen

    def until_more(self) -> dict[str, Any]:
        """What there has been, once more of everything is whole: or more has failed, in vain."""
        before = until(self.seen, within_s=CHANGE_S, pause_s=1.0)

        def more(now: dict[str, Any]) -> bool:
            whole = now["whole"] >= before["whole"] + 5 and now["streams"] >= before["streams"] + 2
            return whole or len(now["failed"]) > len(before["failed"])

        return until(self.seen, good=more, within_s=CHANGE_S, pause_s=1.0)

    def end(self) -> None:
        """Take the pod away."""
        self.cluster.run("delete", "pod", "asking", "--wait=true")
