"""The cluster of KUBECONFIG and the rehearsal on it, made once for all drills and taken away."""

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, NoClusterError
from tests.support.cluster import cluster as open_cluster
from tests.support.manifests import REHEARSAL, render
from tests.support.served import Served


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster; without one the run ends with one line."""
    try:
        with open_cluster() as found:
            print(f"drilled: Kubernetes {found.version}, in the namespace {found.namespace}")
            yield found
    except NoClusterError as error:
        pytest.exit(f"test-kubernetes: {error}", returncode=2)


@pytest.fixture(scope="session")
def served(cluster: Cluster) -> Served:
    """The overlay's server, once it is ready."""
    cluster.apply(render(REHEARSAL))
    made = Served(cluster)
    made.until_ready(1)
    return made
