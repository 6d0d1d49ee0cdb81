"""The environment's switches mean the same to every program that reads them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe
from deploy.recipe import RecipeError, switches

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


def test_a_draft_is_switched_off() -> None:
    """`off` is the one word that does."""
    assert not switches.speculation({"DSPARK_SPECULATION": "off"})


def test_another_word_is_refused_with_the_legal_ones() -> None:
    """The variable, the value, the fix: one line."""
    with pytest.raises(RecipeError) as refused:
        switches.speculation({"DSPARK_SPECULATION": "no"})
    assert str(refused.value) == "DSPARK_SPECULATION: got 'no'; give on or off"


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
    by_switch = {**os.environ, "DSPARK_GRAPHS": "on"}
    chosen = subprocess.run(
        [sys.executable, "-m", "deploy", "plan", "--profile", "mi355x"],
        cwd=ROOT,
        env=by_switch,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "FULL_AND_PIECEWISE" in chosen.stdout
    assert "# warning: cudagraph_mode: got 'FULL_AND_PIECEWISE', and on ROCm" in chosen.stderr
    plans = [
        subprocess.run(
            [sys.executable, "-m", "deploy", "plan", "--profile", "mi355x"],
            cwd=ROOT,
            env={**os.environ, "DSPARK_SPECULATION": switch},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for switch in ("off", "on")
    ]
    assert plans[0] != plans[1]
    assert "--speculative-config" not in plans[0]
