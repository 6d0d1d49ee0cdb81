"""`python3 -m deploy accuracy`: become the accuracy test of a server that runs.

Without an address it is the containers of the profile on this machine, whose port and key are
SERVER_PORT and API_KEY_FILE, as `make up` takes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from deploy import environment
from deploy.recipe import Profile
from deploy.validation.smoke import BUILD

WAIT_S = 30.0  # for the server to listen: it is meant to run already
REPORTS = {
    "--json": BUILD / "accuracy-report.json",
    "--html": BUILD / "accuracy-report.html",
}


def arguments(profile: Profile, url: str, environ: Mapping[str, str]) -> list[str]:
    """What follows `python3 -m`."""
    port = environ.get("SERVER_PORT") or profile.ports.serve
    command = ["healthcheck", "accuracy", url or f"http://127.0.0.1:{port}"]
    command += ["--profile", profile.name, "--wait", f"{WAIT_S:.0f}"]
    if environ.get("API_KEY_FILE"):
        command += ["--api-key-file", environ["API_KEY_FILE"]]
    return command + [word for option, path in REPORTS.items() for word in (option, str(path))]


def main(profile: Profile, url: str, environ: Mapping[str, str] = os.environ) -> int:
    """Set up, and exec the test. Raises SetupError."""
    command = arguments(profile, url, environ)
    python = str(environment.ensure("health"))
    print(f"accuracy: {command[2]}", flush=True)
    os.chdir(environment.ROOT)
    os.execv(python, [python, "-m", *command])
