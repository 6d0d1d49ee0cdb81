"""What tests of any folder share: a Docker engine for those that need one, and the order of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
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


# Longest first; the first of them wait for most of their time.
LONGEST = (
    "healthcheck/test_real_engine.py",
    "lane/test_next_release.py",
    "rehearsal/test_server.py",
    "rehearsal/test_amd_server.py",
    "patches/test_compiled.py",
    "healthcheck/test_scenarios.py",
)
_HERE = Path(__file__).parent

# A real server takes 2 GB, and its tests and drivers some more.
_WORKER_GB = 3.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, then the others that drive a real vLLM: the short ones fill the
    gaps that they leave at the end of a run and while a server is waited for."""
    order = {_HERE / name: place for place, name in enumerate(LONGEST)}
    real = {item.path for item in items if item.get_closest_marker("real")}
    items.sort(key=lambda item: order.get(item.path, len(order) + (item.path not in real)))


def pytest_xdist_auto_num_workers() -> int:
    """Two for each core, as tests wait for servers half of their time, if memory holds them."""
    held = int(psutil.virtual_memory().available / (_WORKER_GB * 1e9))
    return max(1, min(2 * (os.cpu_count() or 1), held))
