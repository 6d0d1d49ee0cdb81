"""Images and a running pair of containers, made once for all tests of this folder."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import docker
from deploy import recipe
from deploy.containers import cli as host
from deploy.containers.compose import Compose
from deploy.containers.variables import HEALTH_UID, env_text, variables
from deploy.rehearsal import image as stand_in
from deploy.rehearsal.supervisor import free_port
from tests.support.containers import Build, Images, Stack, health_recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root_image(engine: docker.DockerClient) -> str:
    """A small Debian image with Python."""
    return stand_in.ensure_root()


@pytest.fixture(scope="session")
def base_image(engine: docker.DockerClient, root_image: str) -> str:
    """The stand-in for the ROCm image: vLLM for the CPU, unpatched."""
    return stand_in.ensure()


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build may read, as in the checkout, with wheels for a build without network."""
    folder = tmp_path_factory.mktemp("context")
    for name in (".dockerignore", "LICENSE"):
        shutil.copy2(ROOT / name, folder)
    for name in ("deploy", "docker", "healthcheck", "patches", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "*.whl")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--no-deps", "--dest", str(folder / "docker" / "wheels")),
            *("--requirement", str(ROOT / "healthcheck" / "requirements.lock")),
            *("--requirement", str(ROOT / "healthcheck" / "requirements-grpc.lock")),
        ],
        check=True,
    )
    host.fetch_stacks(folder / "docker" / "wheels" / "server")
    return folder


@pytest.fixture(scope="session")
def build(engine: docker.DockerClient, context: Path) -> Build:
    """Builds a Dockerfile of the product."""
    return Build(context)


@pytest.fixture(scope="session")
def images(build: Build, base_image: str, root_image: str) -> Images:
    """Both images of the product, on stand-in bases, built without network."""
    server = build("docker/Dockerfile", "dspark-rocm/server:test", base_image, "--network", "none")
    health = build(
        "docker/Dockerfile.healthcheck",
        "dspark-rocm/healthcheck:test",
        root_image,
        "--network",
        "none",
    )
    return Images(server=server, health=health, base=base_image, root=root_image)


@pytest.fixture(scope="session")
def starting(
    engine: docker.DockerClient, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Server and health service by the product's compose files, with key and token, not awaited.

    The tests of the images ask for it too: the server loads while they run.
    """
    folder = tmp_path_factory.mktemp("stack")
    folder.chmod(0o755)
    keys = {"API_KEY_FILE": folder / "api-key", "HEALTH_TOKEN_FILE": folder / "token"}
    for path in keys.values():
        path.write_text(secrets.token_hex(16) + "\n")
        if os.geteuid() == 0:
            os.chown(path, HEALTH_UID, HEALTH_UID)
            path.chmod(0o400)
    loaded = recipe.load()
    profile = loaded.profile("rehearsal")
    environ = {
        **{name: str(path) for name, path in keys.items()},
        "COMPOSE_PROJECT_NAME": f"dspark-test-{os.getpid()}",
        "SERVER_IMAGE": images.server,
        "HEALTH_IMAGE": images.health,
        "BASE_IMAGE": images.base,
        "HEALTH_BASE_IMAGE": images.root,
        "REHEARSAL_SITE": str(stand_in.site_packages()),
        "SERVER_PORT": str(free_port()),
        "HEALTH_PORT": str(free_port()),
    }
    values = variables(loaded, profile, environ)
    env_file = folder / "test.env"
    env_file.write_text(env_text(values))
    made = Stack(
        engine,
        Compose(profile, env_file).command(),
        values,
        health_recipe(folder / "recipe.toml"),
    )
    try:
        made.start()
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "5")


@pytest.fixture(scope="session")
def stack(starting: Stack) -> Stack:
    """The same, once `up --wait` says that both are healthy."""
    starting.up()
    return starting
