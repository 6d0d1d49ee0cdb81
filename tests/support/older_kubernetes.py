"""The manifests in the words of a Kubernetes older than they need, so that one can be drilled.

`Kubernetes 1.30 or newer` stays what the product asks for. CHANGES is all that is said otherwise, and
deploy/k8s/DRILLS.md lists it; to a server that is new enough nothing is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Table = dict[str, Any]
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@dataclass(frozen=True)
class Change:
    """What a server older than 1.`since` is told instead."""

    since: int
    text: str
    make: Callable[[Table], bool]  # whether there was something to change in a resource


def _native_sidecars(resource: Table) -> bool:
    changed = False
    for pod in _pods(resource):
        before = pod.get("initContainers", [])
        sidecars = [c for c in before if c.pop("restartPolicy", None) == "Always"]
        if sidecars:
            rest = [c for c in before if c not in sidecars]
            pod["containers"] = [*sidecars, *pod["containers"]]
            pod["initContainers"] = rest
            changed = True
    return changed


def _without_grace(resource: Table) -> bool:
    probes = [c.get(kind, {}) for c in _containers(resource) for kind in _PROBES]
    dropped = [probe.pop("terminationGracePeriodSeconds", None) for probe in probes]
    return any(grace is not None for grace in dropped)


def _grpc_probes(resource: Table) -> bool:
    probes = [c[kind] for c in _containers(resource) for kind in _PROBES if kind in c]
    found = [probe for probe in probes if "grpc" in probe]
    for probe in found:
        probe["tcpSocket"] = {"port": probe.pop("grpc")["port"]}
    return bool(found)


def _unhealthy_evictions(resource: Table) -> bool:
    if resource["kind"] != "PodDisruptionBudget":
        return False
    policy = resource["spec"].pop("unhealthyPodEvictionPolicy", None)
    return policy is not None


def _budgets(resource: Table) -> bool:
    found: bool = resource["kind"] == "PodDisruptionBudget"
    if found:
        resource["apiVersion"] = "policy/v1beta1"
    return found


CHANGES = (
    Change(28, "a native sidecar is a container before the server's", _native_sidecars),
    Change(26, "a PodDisruptionBudget says nothing of unhealthy pods", _unhealthy_evictions),
    Change(24, "a gRPC probe asks whether the port is open", _grpc_probes),
    Change(22, "a probe has no grace period of its own: the pod's holds", _without_grace),
    Change(21, "a PodDisruptionBudget is one of policy/v1beta1", _budgets),
)


def said_for(minor: int, resources: Iterable[Mapping[str, Any]]) -> tuple[list[Table], list[str]]:
    """The resources for a server of version 1.`minor`, and the texts of the changes made."""
    made, texts = [copy.deepcopy(dict(r)) for r in resources], []
    for change in CHANGES:
        if minor < change.since and sum(map(change.make, made)):
            texts.append(change.text)
    return made, texts


def _pods(resource: Table) -> list[Table]:
    """The specs of the pods that it makes, of Kubernetes' own kinds."""
    template = resource.get("template") or resource.get("spec", {}).get("template")
    return [template["spec"]] if isinstance(template, dict) and "spec" in template else []


def _containers(resource: Table) -> list[Table]:
    pods = _pods(resource)
    return [c for pod in pods for c in (*pod["containers"], *pod.get("initContainers", []))]
