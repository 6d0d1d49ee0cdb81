"""`python -m deploy smoke`: find what can be tested here, and become the smoke test of it.

SMOKE_URL names a server that runs already. Otherwise the CPU rehearsal is started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy import environment

REPORT = environment.ROOT / "build" / "smoke-report.json"


@dataclass(frozen=True)
class Choice:
    """What is tested: the environment it needs, the module's arguments, and why, in words."""

    environment: str
    arguments: Sequence[str]
    why: str


def choose(environ: Mapping[str, str], report: Path = REPORT) -> Choice:
    """The target of `make smoke-test` on this machine."""
    url = environ.get("SMOKE_URL")
    if url:
        profile = environ.get("SMOKE_PROFILE", "mi355x")
        command = ["healthcheck", "smoke", url, "--profile", profile, "--json", str(report)]
        for name, option in (("SMOKE_MODEL", "--model"), ("SMOKE_API_KEY_FILE", "--api-key-file")):
            if environ.get(name):
                command += [option, environ[name]]
        return Choice("health", command, f"SMOKE_URL is {url}")
    command = ["deploy.rehearsal", "smoke", "--json", str(report)]
    return Choice("rehearsal", command, "SMOKE_URL is not set: the CPU rehearsal")


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Set up, say what is tested, and exec the test; raises SetupError."""
    choice = choose(environ)
    print(f"smoke: {choice.why}", flush=True)
    python = str(environment.ensure(choice.environment))
    os.chdir(environment.ROOT)
    os.execv(python, [python, "-m", *choice.arguments])
