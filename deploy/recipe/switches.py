"""The switches of the environment, each read in one place; unset or empty is the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy import recipe
from deploy.recipe import RecipeError

#: How the entrypoint looks at the machine before a start.
PREFLIGHTS = ("on", "warn", "full", "off")
#: How the image's build takes the compile proof.
COMPILE_PROOFS = ("on", "warn", "off")


def speculation(environ: Mapping[str, str]) -> bool:
    """Whether DSPARK_SPECULATION lets the server speculate. Raises RecipeError for another word."""
    return _one_of("DSPARK_SPECULATION", environ.get("DSPARK_SPECULATION"), ("on", "off")) == "on"


def graphs(environ: Mapping[str, str]) -> bool:
    """Whether DSPARK_GRAPHS chooses graphs. Raises RecipeError for another word."""
    return _one_of("DSPARK_GRAPHS", environ.get("DSPARK_GRAPHS"), ("off", "on")) == "on"


def preflight(environ: Mapping[str, str]) -> str:
    """DSPARK_PREFLIGHT, one of PREFLIGHTS. Raises RecipeError for another word."""
    return _one_of("DSPARK_PREFLIGHT", environ.get("DSPARK_PREFLIGHT"), PREFLIGHTS)


def compile_proof(environ: Mapping[str, str]) -> str:
    """COMPILE_PROOF, one of COMPILE_PROOFS. Raises RecipeError for another word."""
    return _one_of("COMPILE_PROOF", environ.get("COMPILE_PROOF"), COMPILE_PROOFS)


def health_url(environ: Mapping[str, str]) -> str:
    """Where the health service beside a server answers: DSPARK_HEALTH_URL, else this host."""
    return environ.get("DSPARK_HEALTH_URL") or "http://127.0.0.1:8080"


def recipe_file(environ: Mapping[str, str]) -> Path:
    """The recipe that DSPARK_RECIPE names, else the one beside this code."""
    return Path(environ.get("DSPARK_RECIPE") or recipe.FILE)


def _one_of(name: str, value: str | None, choices: Sequence[str]) -> str:
    chosen = value or choices[0]
    if chosen not in choices:
        *some, last = choices
        raise RecipeError(f"{name}: got {value!r}; give {', '.join(some)} or {last}")
    return chosen
