"""Every manifest through the server's own validation: admitted as it would be, and kept nowhere."""

import copy
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tests.support import older_kubernetes
from tests.support.cluster import Cluster
from tests.support.manifests import (
    COMPONENTS,
    EVERY,
    EXAMPLES,
    K8S,
    REHEARSAL,
    Resource,
    own_kinds,
    render,
    schemas,
    with_components,
)

pytestmark = pytest.mark.kubernetes


def ask(cluster: Cluster, resources: Iterable[Resource]) -> CompletedProcess[str]:
    """A dry run on the server, which refuses fields that it does not know."""
    said, _ = older_kubernetes.said_for(cluster.minor, resources)
    words = ("apply", "--dry-run=server", "--validate=strict", "--filename=-")
    return cluster.attempt(*words, stdin=yaml.safe_dump_all(said))


@pytest.mark.parametrize("folder", EVERY)
def test_a_folder_is_admitted(folder: str, cluster: Cluster) -> None:
    """What Kubernetes itself defines of an overlay or example, and pods inside custom resources."""
    resources = own_kinds(render(folder))
    done = ask(cluster, resources)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(server dry run)") == len(resources) >= 5


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_admitted(component: str, cluster: Cluster, tmp_path: Path) -> None:
    """In a user's own folder."""
    done = ask(cluster, own_kinds(with_components(REHEARSAL, [component], tmp_path)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", sorted(schemas()))
def test_a_custom_resource_is_admitted(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    """Where the cluster has its definition."""
    folders = [render(folder) for folder in EXAMPLES]
    folders.append(with_components("overlays/mi355x", ["service-monitor"], tmp_path))
    resource = next(r for folder in folders for r in folder if r["kind"] == kind)
    group = resource["apiVersion"].partition("/")[0]
    if not cluster.run("api-resources", f"--api-group={group}", "--output=name").strip():
        pytest.skip(f"{kind}: this cluster has no definition of {group}")
    done = ask(cluster, [resource])
    assert done.returncode == 0, done.stderr


def test_the_namespace_is_admitted(cluster: Cluster) -> None:
    """With the label that admits the pod of a card."""
    done = ask(cluster, [yaml.safe_load((K8S / "namespace.yaml").read_text())])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("periodSecond", 1, "periodSecond"), ("failureThreshold", -1, "failureThreshold")],
)
def test_the_server_refuses_what_is_wrong(
    name: str, value: int, told: str, cluster: Cluster
) -> None:
    """A field that is misspelt, and a value that cannot be."""
    resources = copy.deepcopy(own_kinds(render(REHEARSAL)))
    deployment = next(r for r in resources if r["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"][name] = value
    done = ask(cluster, resources)
    assert done.returncode != 0 and told in done.stderr
