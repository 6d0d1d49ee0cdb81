"""`python3 -m deploy smoke`: find what can be tested here, and become the smoke test of it.

SMOKE_URL names a server that runs already. Otherwise the compose deployment is started where there
is an MI GPU and a Docker engine, and the CPU rehearsal everywhere else and where SMOKE_PROFILE
names it. SMOKE_SIZE is `full` or `quick`; SMOKE_BASELINE names the report of a server without
speculation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import environment, recipe
from deploy.recipe import RecipeError

BUILD = environment.ROOT / "build"
REPORTS = {
    "--json": BUILD / "smoke-report.json",
    "--junit": BUILD / "smoke-report.xml",
    "--html": BUILD / "smoke-report.html",
}
SIZES = {"full": "--full", "quick": "--quick"}
COMPOSE = environment.ROOT / "deploy" / "compose.yaml"
KFD = Path("/dev/kfd")
DEFAULT_PROFILE, REHEARSAL = "mi355x", "rehearsal"
ENGINE_S = 30.0  # within which an engine answers, or there is none


@dataclass(frozen=True)
class Choice:
    """What is tested: the environment it needs, a command to run first, the test's arguments, and
    why it was chosen, in words."""

    environment: str
    first: Sequence[str]
    arguments: Sequence[str]
    why: str


def choose(environ: Mapping[str, str], has_gpu_engine: Callable[[], bool]) -> Choice:
    """The target of `make smoke-test` on this machine. Raises RecipeError for a wrong setting."""
    size = environ.get("SMOKE_SIZE")
    if size and size not in SIZES:
        raise RecipeError(f"SMOKE_SIZE: got {size!r}; it is one of {', '.join(SIZES)}")
    written = [word for option, path in REPORTS.items() for word in (option, str(path))]
    written += [SIZES[size]] if size else []
    profile = environ.get("SMOKE_PROFILE") or DEFAULT_PROFILE
    smoke = ["healthcheck", "smoke"]
    options = ["--profile", profile, *written]
    if environ.get("SMOKE_BASELINE"):
        options += ["--baseline", environ["SMOKE_BASELINE"]]
    url = environ.get("SMOKE_URL")
    if url:
        for name, option in (("SMOKE_MODEL", "--model"), ("SMOKE_API_KEY_FILE", "--api-key-file")):
            if environ.get(name):
                options += [option, environ[name]]
        return Choice("health", (), [*smoke, url, *options], f"SMOKE_URL is {url}")
    is_rehearsal = recipe.load().profile(profile).is_rehearsal
    if not is_rehearsal and has_gpu_engine():
        ports = recipe.load().profile(profile).ports
        server = f"http://127.0.0.1:{environ.get('SERVER_PORT') or ports.serve}"
        health = f"http://127.0.0.1:{environ.get('HEALTH_PORT') or ports.health}"
        if environ.get("API_KEY_FILE"):
            options += ["--api-key-file", environ["API_KEY_FILE"]]
        return Choice(
            "health",
            ("deploy", "containers", "--profile", profile, "up"),
            [*smoke, server, "--health", health, *options],
            f"an MI GPU and a Docker engine are here: the containers of {profile}",
        )
    why = "no SMOKE_URL, and no MI GPU with a Docker engine: the CPU rehearsal"
    if is_rehearsal:
        why = f"SMOKE_PROFILE is {profile}: the CPU rehearsal"
    rehearsed = profile if is_rehearsal else REHEARSAL
    command = ["deploy.rehearsal", "smoke", "--profile", rehearsed, *written]
    return Choice("rehearsal", (), command, why)


def gpu_engine() -> bool:
    """Whether this host has an MI GPU's device, an engine that answers, and the compose file."""
    docker = shutil.which("docker")
    if not (docker and KFD.exists() and COMPOSE.exists()):
        return False
    try:
        asked = subprocess.run([docker, "version"], capture_output=True, timeout=ENGINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Set up, say what is tested, and exec the test.

    Returns the exit code of what has to run first if that fails; raises SetupError, RecipeError.
    """
    choice = choose(environ, gpu_engine)
    print(f"smoke: {choice.why}", flush=True)
    python = str(environment.ensure(choice.environment))
    os.chdir(environment.ROOT)
    if choice.first:
        code = subprocess.run([sys.executable, "-m", *choice.first], check=False).returncode
        if code:
            return code
    os.execv(python, [python, "-m", *choice.arguments])
