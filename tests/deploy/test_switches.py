"""The environment's switches mean the same to every program that reads them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe
from deploy.recipe import switches

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "environ", [{}, {"DSPARK_SPECULATION": "", "DSPARK_PREFLIGHT": "", "DSPARK_GRAPHS": ""}]
)
def test_unset_and_empty_are_the_default(environ: dict[str, str]) -> None:
    """Compose passes an empty value for what nobody set."""
    assert switches.speculation(environ)
    assert not switches.graphs(environ)
    assert switches.preflight(environ) == "on"
    assert switches.recipe_file(environ) == recipe.FILE


@pytest.mark.parametrize(
    "command",
    [
        "deploy plan --profile mi355x",
        "deploy preflight --profile mi355x",
        "deploy containers --profile rehearsal up",
        "healthcheck serve --profile mi355x",
        "healthcheck smoke http://127.0.0.1:1 --profile mi355x",
    ],
)
def test_every_program_refuses_a_switch_that_it_does_not_know(command: str) -> None:
    """One line that names it, before anything is done."""
    ended = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=ROOT,
        env={**os.environ, "DSPARK_SPECULATION": "no"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode in (1, 2)
    (line,) = ended.stderr.splitlines()
    assert "DSPARK_SPECULATION: got 'no'; give on or off" in line
    assert not ended.stdout


def test_a_plan_follows_the_switch() -> None:
    """What `make plan` prints is what the entrypoint would run in the same environment."""

    def planned(**environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "deploy", "plan", "--profile", "mi355x"],
            cwd=ROOT,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )

    chosen, off = planned(DSPARK_GRAPHS="on"), planned(DSPARK_SPECULATION="off").stdout
    assert "FULL_AND_PIECEWISE" in chosen.stdout
    assert "# warning: cudagraph_mode: got 'FULL_AND_PIECEWISE', and on ROCm" in chosen.stderr
    assert "--speculative-config" in chosen.stdout and "--speculative-config" not in off
