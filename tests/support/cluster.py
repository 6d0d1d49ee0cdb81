"""A cluster as the drills use it: by kubectl, in a namespace of their own that goes when they end."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from tests.support import older_kubernetes, tools
from tests.support.waiting import until

Table = dict[str, Any]

# Of one call to the server, and of what a cluster takes its time for.
CALL_S = 60.0
CHANGE_S = 900.0


class NoClusterError(RuntimeError):
    """There is no cluster to drill on; one line: the setting, the value seen, the fix."""


class KubectlError(OSError):
    """kubectl failed or took too long: to whoever waits, not yet."""


@dataclass(frozen=True)
class Cluster:
    """kubectl with one kubeconfig and one namespace; `minor` of the server's version 1.x."""

    kubectl: str
    kubeconfig: str
    namespace: str
    version: str
    minor: int

    def attempt(
        self, *words: str, stdin: str | None = None, within_s: float = CALL_S
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; whether that went well is the caller's to judge. Raises KubectlError."""
        command = [self.kubectl, f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"]
        try:
            return subprocess.run(
                [*command, *words],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"kubectl {' '.join(words)}: not done in {within_s:g} s") from error

    def run(self, *words: str, stdin: str | None = None, within_s: float = CALL_S) -> str:
        """What kubectl prints. Raises KubectlError with its complaint."""
        done = self.attempt(*words, stdin=stdin, within_s=within_s)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(words)}: {done.stderr[-2000:]}")
        return done.stdout

    def get(self, *words: str) -> Table:
        """A resource, or a list of them."""
        found: Table = json.loads(self.run("get", *words, "--output=json"))
        return found

    def apply(self, resources: Iterable[Mapping[str, Any]]) -> list[str]:
        """Apply them in the words of the server's version; the changes that this took."""
        said, changes = older_kubernetes.said_for(self.minor, resources)
        self.run("apply", "--filename=-", stdin=yaml.safe_dump_all(said))
        return changes

    def python(self, pod: str, container: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Python inside a container."""
        return self.attempt("exec", pod, f"--container={container}", "--", "python3", *words)


@contextmanager
def cluster(environ: Mapping[str, str] = os.environ) -> Iterator[Cluster]:
    """The cluster of KUBECONFIG, with a new namespace that enforces `baseline` and a Secret in it.

    Raises NoClusterError.
    """
    kubeconfig = environ.get("KUBECONFIG")
    if not kubeconfig:
        raise NoClusterError("KUBECONFIG: is not set; name the file of a cluster to drill on")
    if not Path(kubeconfig).is_file():
        raise NoClusterError(f"KUBECONFIG: got {kubeconfig}; give one file that is there")
    kubectl = tools.program("kubectl")
    if kubectl is None:
        raise NoClusterError(f"kubectl: is not installed; {tools.INSTALL['kubectl']}")
    asked = Cluster(kubectl, kubeconfig, "default", "", 0)
    done = asked.attempt("get", "--raw=/version", "--request-timeout=20s")
    if done.returncode:
        told = done.stderr.strip().splitlines()
        raise NoClusterError(
            f"KUBECONFIG: {kubeconfig}: {told[-1] if told else done.returncode}; start the cluster"
        )
    version = json.loads(done.stdout)["gitVersion"]
    minor = int(version.split(".")[1])
    name = f"dspark-test-{os.getpid()}"
    found = Cluster(kubectl, kubeconfig, name, version, minor)
    label = {"pod-security.kubernetes.io/enforce": "baseline"}
    namespace = {"metadata": {"name": name, "labels": label}}
    try:
        found.apply([{"apiVersion": "v1", "kind": "Namespace", **namespace}])
        until(lambda: found.attempt("get", "serviceaccount", "default").returncode == 0)
        keys = ("api-key", "health-token")
        literals = [f"--from-literal={key}={secrets.token_hex(16)}" for key in keys]
        found.run("create", "secret", "generic", "dspark", *literals)
        yield found
    finally:
        # What still drains is not waited for, and nobody makes a pod anew meanwhile.
        makers = ("delete", "deployments,replicasets", "--all", "--cascade=orphan")
        for words in (makers, ("delete", "pods", "--all", "--grace-period=1")):
            found.attempt(*words, within_s=CHANGE_S)
        found.attempt("delete", "namespace", name, within_s=CHANGE_S)


def moment(told: str) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", told)).timestamp()
