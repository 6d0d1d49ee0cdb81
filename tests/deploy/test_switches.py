"""The environment's switches mean the same to every program that reads them."""

import os
from collections.abc import Callable

import pytest

from deploy import recipe
from deploy.__main__ import main as deploy
from deploy.recipe import switches
from healthcheck.__main__ import main as healthcheck
from tests.support import in_process


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
    ("main", "command"),
    [
        (deploy, "plan --profile mi355x"),
        (deploy, "preflight --profile mi355x"),
        (deploy, "containers --profile rehearsal up"),
        (healthcheck, "serve --profile mi355x"),
        (healthcheck, "smoke http://127.0.0.1:1 --profile mi355x"),
    ],
)
def test_every_program_refuses_a_switch_that_it_does_not_know(
    main: Callable[[list[str]], int], command: str
) -> None:
    """One line that names it, before anything is done."""
    environ = {**os.environ, "DSPARK_SPECULATION": "no"}
    ended = in_process.run(main, *command.split(), environ=environ)
    assert ended.returncode in (1, 2)
    (line,) = ended.stderr.splitlines()
    assert "DSPARK_SPECULATION: got 'no'; give on or off" in line
    assert not ended.stdout


def test_a_plan_follows_the_switch() -> None:
    """What `make plan` prints is what the entrypoint would run in the same environment."""
    words = ("plan", "--profile", "mi355x")
    chosen = in_process.run(deploy, *words, environ={**os.environ, "DSPARK_GRAPHS": "on"})
    off = in_process.run(deploy, *words, environ={**os.environ, "DSPARK_SPECULATION": "off"})
    assert "FULL_AND_PIECEWISE" in chosen.stdout
    assert "# warning: cudagraph_mode: got 'FULL_AND_PIECEWISE', and on ROCm" in chosen.stderr
    assert "--speculative-config" in chosen.stdout
    assert off.returncode == 0 and "--speculative-config" not in off.stdout
