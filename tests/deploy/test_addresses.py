"""Listening: one address for both families, and what is left where the kernel has no IPv6."""

import ast
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from deploy import recipe
from deploy.addresses import EVERYWHERE, to_bind
from deploy.preflight.host import Host
from healthcheck.service import app as service
from healthcheck.service.settings import SettingsError

ROOT = Path(__file__).resolve().parents[2]
HERE = ["127.0.0.1", "::1"]


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the interpreter or its kernel cannot make such a socket."""
    monkeypatch.setattr(socket, "has_ipv6", False)


def reaches(listening: socket.socket, address: str) -> bool:
    """Whether a connection from this machine arrives."""
    try:
        with socket.create_connection((address, listening.getsockname()[1]), timeout=5):
            return True
    except OSError:
        return False


def vllm_socket(host: str) -> socket.socket:
    """A socket by vLLM's own code for it, without the rest of its module."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vllm is not installed here: run `make test`")
    file = Path(next(iter(spec.submodule_search_locations))) / "entrypoints/openai/api_server.py"
    (made,) = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "create_server_socket"
    )
    names: dict[str, Any] = {"socket": socket, "is_valid_ipv6_address": lambda host: ":" in host}
    exec(compile(ast.Module([made], []), str(file), "exec"), names)
    return cast("socket.socket", names["create_server_socket"]((host, 0), reuse_port=False))


@pytest.mark.parametrize("address", HERE)
def test_the_health_service_listens_on_both_families(address: str) -> None:
    """On `::` it is reached by IPv4 and by IPv6, whatever the kernel's default for it is."""
    with service.listen(EVERYWHERE, 0) as listening:
        assert reaches(listening, address)


@pytest.mark.parametrize("address", HERE)
def test_vllm_listens_on_both_families(address: str) -> None:
    """Its own socket on the recipe's host is reached by both."""
    with vllm_socket(recipe.load().profile("mi355x").serve["host"]) as listening:
        listening.listen()
        assert reaches(listening, address)


def test_one_family_is_no_other(without_ipv6: None) -> None:
    """Without IPv6 the same setting listens on IPv4; what names an address is left as it is."""
    with service.listen(EVERYWHERE, 0) as listening:
        assert listening.family is socket.AF_INET
        assert reaches(listening, "127.0.0.1") and not reaches(listening, "::1")
    assert [to_bind(host) for host in (*HERE, "gpu-7")] == [*HERE, "gpu-7"]


@pytest.mark.parametrize("address", HERE)
def test_a_port_that_one_family_holds_is_in_use(address: str) -> None:
    """Service and preflight see it, as the server would."""
    with service.listen(address, 0) as taken:
        port = taken.getsockname()[1]
        assert Host().port_free(EVERYWHERE, port) is False
        with pytest.raises(SettingsError, match="in use"):
            service.listen(EVERYWHERE, port)


def plan_of_a_start(tmp_path: Path, has_ipv6: bool) -> str:
    """The host that the entrypoint would serve on, in a process of its own."""
    (tmp_path / "sitecustomize.py").write_text(f"import socket\nsocket.has_ipv6 = {has_ipv6}\n")
    told = "import entrypoint\nargv = entrypoint.make_plan([]).argv\n"
    told += "print(argv[argv.index('--host') + 1])"
    path = os.pathsep.join([str(tmp_path), str(ROOT / "docker")])
    environ = {**os.environ, "PYTHONPATH": path, "DSPARK_PROFILE": "mi355x"}
    command = [sys.executable, "-c", told]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_entrypoint_serves_where_there_is_no_ipv6(tmp_path: Path) -> None:
    """The plan's `::` becomes every IPv4 address there, for vLLM would end at its bind."""
    assert plan_of_a_start(tmp_path, has_ipv6=True) == EVERYWHERE
    assert plan_of_a_start(tmp_path, has_ipv6=False) == "0.0.0.0"
