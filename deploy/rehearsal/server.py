"""Start the rehearsal's server: check the machine, prepare, and become docker/entrypoint.py."""

import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from deploy import plan, recipe
from deploy.environment import cache_dir
from deploy.rehearsal.environment import AMD, check_arch, check_fault, prepare
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.tree import DISTRIBUTION, find_installed

ENTRYPOINT = Path(__file__).parents[2] / "docker" / "entrypoint.py"

#: The Triton whose interpreter the shim mends.
TRITON_VERSION = "3.9.0"
# Copied sources, the models and vLLM's own caches take about 60 MB; more is left for the logs.
_NEEDED_BYTES = 200_000_000


def serve(name: str, host: str | None, port: int | None, environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the server of a rehearsal's profile.

    ``host`` and ``port`` override the recipe's. Raises RehearsalError before anything is started.
    """
    fault = check_fault(environ.get("REHEARSAL_FAULT"), name)
    arch = check_arch(environ.get("REHEARSAL_ARCH"))
    profile = recipe.load().profile(name)
    check_platform(profile.vllm_version)
    address = host or str(profile.serve["host"]), port or profile.ports.serve
    check_port_free(*address)
    cache = cache_dir(environ)
    check_disk(cache)
    environment = prepare(cache, fault, profile=name, arch=arch)
    print(f"rehearsal: vLLM tree {environment.tree}", file=sys.stderr)
    if name == AMD:
        print(f"rehearsal: AMD classes as on {arch}", file=sys.stderr)
    print(f"rehearsal: fault {fault or 'none'}", file=sys.stderr, flush=True)
    flags = _flags(host, port)
    variables = environment.over(environ) | {"DSPARK_PROFILE": name}
    if environment.lacks:
        # The entrypoint would refuse that tree, and what is to be seen is how vLLM ends.
        print(f"rehearsal: without {environment.lacks}", file=sys.stderr, flush=True)
        made = plan.make(profile, flags, variables)
        os.execve(sys.executable, made.exec_argv(sys.executable), {**variables, **made.env})
    os.execve(sys.executable, [sys.executable, str(ENTRYPOINT), *flags], variables)


def check_platform(vllm_version: str) -> None:
    """Check what the rehearsal's environment must hold. Raises RehearsalError."""
    installed = find_installed()
    if installed.version != vllm_version:
        raise RehearsalError(
            f"{DISTRIBUTION}: {installed.version} is installed, the recipe pins {vllm_version}: "
            "run make rehearsal"
        )
    if importlib.util.find_spec("torch") is None:
        raise RehearsalError("torch: not installed in this environment: run make rehearsal")
    _check_triton()
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise RehearsalError(
            "libnuma.so.1: not found, vLLM's CPU kernels need it: apt-get install libnuma1"
        ) from error


def check_port_free(host: str, port: int) -> None:
    """Raise RehearsalError if ``host``:``port`` cannot be listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError as error:
        raise RehearsalError(f"--host {host}: is no name of a host", exit_code=2) from error
    except OSError as error:
        raise RehearsalError(
            f"port {port} on {host}: {error.strerror}: stop what listens there or give --port"
        ) from error


def check_disk(cache: Path) -> None:
    """Raise RehearsalError if the file system of the cache folder is all but full."""
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < _NEEDED_BYTES:
        raise RehearsalError(
            f"cache folder {cache}: {free // 10**6} MB free, {_NEEDED_BYTES // 10**6} MB needed: "
            "free some disk space or set DSPARK_CACHE"
        )


def _check_triton() -> None:
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != TRITON_VERSION:
        raise RehearsalError(
            f"triton: found {found}, the rehearsal's shim is for {TRITON_VERSION}: "
            "run make rehearsal"
        )


def _flags(host: str | None, port: int | None) -> Sequence[str]:
    flags = []
    if host is not None:
        flags += ["--host", host]
    if port is not None:
        flags += ["--port", str(port)]
    return flags
