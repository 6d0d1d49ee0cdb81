"""What tests of any folder share: a Docker engine for those that need one, and the order of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import docker


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A Docker engine; without one a user's run skips, CI fails."""
    from tests.support import docker_engine  # not for runs without an engine

    try:
        with docker_engine.engine() as client:
            yield client
    except docker_engine.NoEngineError as error:
        if docker_engine.in_ci():
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _engine_for_those_marked(request: pytest.FixtureRequest) -> None:
    """Install and start the engine before any test that is marked `docker`."""
    if request.node.get_closest_marker("docker"):
        request.getfixturevalue("engine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that drive a real vLLM come first: they take longest, and the short ones fill the gaps
    that they leave at the end of a run and while a server is waited for."""
    real = {item.path for item in items if item.get_closest_marker("real")}
    items.sort(key=lambda item: item.path not in real)
