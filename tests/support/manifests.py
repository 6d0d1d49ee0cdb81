"""The Kubernetes manifests as kustomize renders them, for tests with a cluster and without one."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from deploy import recipe
from tests.support import tools
from tests.support.documents import ROOT

Resource = dict[str, Any]

K8S = ROOT / "deploy" / "k8s"
CRDS = ROOT / "tests" / "support" / "crds"
AMD = tuple(p.name for p in recipe.load().profiles.values() if not p.is_rehearsal)
REHEARSAL = "overlays/rehearsal"
EXAMPLES = tuple(f"examples/{p.name}" for p in sorted((K8S / "examples").iterdir()))
COMPONENTS = tuple(p.name for p in sorted((K8S / "components").iterdir()))
# What serves a profile on its cards, and all that can be applied.
RENDERED = (*(f"overlays/{name}" for name in AMD), *EXAMPLES)
EVERY = (*RENDERED, REHEARSAL)

GROUP = "leaderworkerset.x-k8s.io/v1"


@functools.cache
def render(folder: str) -> list[Resource]:
    """The resources that kustomize makes of a folder of deploy/k8s."""
    return _kustomize(K8S / folder)


def with_components(
    folder: str, components: Iterable[str], scratch: Path, fields: str = ""
) -> list[Resource]:
    """The resources of a user's own folder, `scratch`, that adds components to an overlay; `fields`
    are further lines of its kustomization."""
    up = Path("../" * (len(scratch.resolve().parts) - 1))
    chosen = [str(up / (K8S / "components" / name).relative_to("/")) for name in components]
    (scratch / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{up / (K8S / folder).relative_to('/')}]\n"
        f"components: {json.dumps(chosen)}\n{fields}"
    )
    return _kustomize(scratch)


def own_kinds(resources: Iterable[Resource]) -> list[Resource]:
    """What Kubernetes itself defines, with the pod templates inside custom resources."""
    found = []
    for resource in resources:
        if resource["kind"] not in schemas():
            found.append(resource)
        if resource["apiVersion"] == GROUP:
            group = resource["spec"]["leaderWorkerTemplate"]
            for role in ("leaderTemplate", "workerTemplate"):
                name = {"name": role.lower()}
                body = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": name}
                found.append({**body, "template": group[role]})
    return found


@functools.cache
def schemas() -> dict[str, Any]:
    """Schemas of the custom resources, by kind."""
    return {path.stem: json.loads(path.read_text()) for path in CRDS.glob("*.json")}


def _kustomize(folder: Path) -> list[Resource]:
    made = tools.run("kubectl", "kustomize", folder)
    assert made.returncode == 0, made.stderr
    return [r for r in yaml.safe_load_all(made.stdout) if r]
