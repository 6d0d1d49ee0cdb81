"""Building the product's images, and driving the pair of containers that compose starts."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from docker.models.containers import Container

import docker
from deploy import recipe
from tests.support.waiting import until

# Deadlines of what must happen some time; a loaded machine takes minutes for a start.
READY_S = 420.0
CHANGE_S = 180.0

# Judged in seconds instead of the recipe's minutes; the server keeps the recipe's own file.
_BUDGETS = {
    "scrape_interval_s": 1.0,
    "canary_after_s": 4.0,
    "canary_timeout_s": 10.0,
    "readiness_budget_s": 10.0,
    "stall_budget_s": 20.0,
    "dead_after_s": 6.0,
    "evidence_max_age_s": 30.0,
}


@dataclass(frozen=True)
class Images:
    """Names of the product's images and of the bases they stand on."""

    server: str
    health: str
    base: str
    root: str


@dataclass(frozen=True)
class Build:
    """`docker build` over one context folder."""

    context: Path

    def __call__(self, dockerfile: str, tag: str, base: str, *options: str) -> str:
        """Build and return the tag; the builder's output is in the failure."""
        done = self.attempt(dockerfile, tag, base, *options)
        assert done.returncode == 0, done.stdout[-4000:]
        return tag

    def attempt(
        self, dockerfile: str, tag: str, base: str, *options: str
    ) -> subprocess.CompletedProcess[str]:
        """Build, which may fail; all output is in `stdout`."""
        return subprocess.run(
            [
                *("docker", "build", "--progress", "plain"),
                *("--file", str(self.context / dockerfile), "--build-arg", f"BASE_IMAGE={base}"),
                *("--build-arg", f"HEALTH_BASE_IMAGE={base}"),
                *("--tag", tag, *options, str(self.context)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def health_recipe(path: Path) -> Path:
    """The product's recipe with short budgets for the rehearsal, written to `path`."""
    text = recipe.FILE.read_text()
    head, section, tail = text.partition("[profiles.rehearsal.health]\n")
    for name in _BUDGETS:
        tail = re.sub(rf"^{name} = .*\n", "", tail, flags=re.MULTILINE)
    lines = "".join(f"{name} = {value}\n" for name, value in _BUDGETS.items())
    path.write_text(head + section + lines + tail)
    path.chmod(0o644)
    recipe.load(path)
    return path


class Stack:
    """The pair of containers of one compose project."""

    def __init__(
        self,
        engine: docker.DockerClient,
        command: list[str],
        values: dict[str, str],
        health_recipe: Path,
    ) -> None:
        self.engine = engine
        self.values = values
        self.key = Path(values["API_KEY_FILE"]).read_text().strip()
        self.token = Path(values["HEALTH_TOKEN_FILE"]).read_text().strip()
        self.server_url = f"http://127.0.0.1:{values['SERVER_PORT']}"
        self.health_url = f"http://127.0.0.1:{values['HEALTH_PORT']}"
        override = health_recipe.with_name("override.yaml")
        mount = f"{health_recipe}:/opt/dspark-rocm/deploy/recipe.toml:ro"
        override.write_text(json.dumps({"services": {"healthcheck": {"volumes": [mount]}}}))
        self._command = [*command, "--file", str(override)]

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`docker compose` with the files of this stack."""
        return subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, check=False
        )

    def start(self) -> None:
        """`up` without waiting."""
        done = self.compose("up", "--detach")
        assert done.returncode == 0, done.stderr[-2000:]

    def up(self) -> None:
        """`up --wait`: returns when compose says that both are healthy."""
        done = self.compose("up", "--detach", "--wait", "--wait-timeout", f"{READY_S:g}")
        logs = self.compose("logs", "--tail", "40").stdout if done.returncode else ""
        assert done.returncode == 0, f"{done.stderr[-2000:]}\n{logs}"

    def container(self, service: str) -> Container:
        """The container of a service, as the engine knows it now."""
        names = {"label": f"com.docker.compose.project={self.values['COMPOSE_PROJECT_NAME']}"}
        found = self.engine.containers.list(all=True, filters=names)
        return next(c for c in found if c.labels["com.docker.compose.service"] == service)

    def runs(self) -> bool:
        """Whether both containers run."""
        return {self.container(s).status for s in ("server", "healthcheck")} <= {
            *("running", "paused", "restarting")
        }

    def probe(self, path: str) -> tuple[int, str]:
        """Status and text of a probe of the health service."""
        answer = requests.get(f"{self.health_url}{path}?verbose", timeout=10)
        return answer.status_code, answer.text

    def state(self) -> str:
        """The state in one word, asked inside the health container, which needs no network."""
        done = self.container("healthcheck").exec_run(
            ["python3", "-m", "healthcheck", "check", "--for", "ready"]
        )
        return str(done.output.decode().split()[0]) if done.output else "nothing"

    def report(self) -> dict[str, Any]:
        """The health service's report."""
        answer = requests.get(
            f"{self.health_url}/report",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=10,
        )
        answer.raise_for_status()
        report: dict[str, Any] = answer.json()
        return report

    def flights(self) -> str:
        """What `flights` prints in the health service's container."""
        done = self.container("healthcheck").exec_run(["python3", "-m", "healthcheck", "flights"])
        return str(done.output.decode())

    def until_state(self, *states: str, deadline_s: float = CHANGE_S) -> str:
        """Wait for one of the states; the last one seen is in the failure."""
        return until(
            self.state,
            good=lambda s: s in states,
            within_s=deadline_s,
            pause_s=1.0,
            why=lambda: states,
        )

    def engine_process(self) -> str:
        """The pid, in the server's container, of vLLM's engine, once there is one."""
        script = (
            "for p in /proc/[0-9]*; do"
            " if grep -q VLLM::EngineCor $p/comm; then echo ${p#/proc/}; fi; done"
        )

        def seen() -> list[str]:
            told = self.container("server").exec_run(["sh", "-c", script]).output.decode()
            return [pid for pid in told.split() if pid.isdigit()]

        return until(seen)[0]

    def signal_engine(self, name: str, pid: str) -> None:
        """Send a signal to a process of the server's container."""
        done = self.container("server").exec_run(["sh", "-c", f"kill -{name} {pid}"])
        assert done.exit_code == 0, done.output
