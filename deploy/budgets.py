"""Budgets of the health service that follow what its server is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deploy.recipe import MOST_S, Health, Profile, RecipeError

STEP_TIMEOUT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
# vLLM's own, in seconds (0.27.1, envs.py).
DEFAULT_STEP_TIMEOUT_S = 300


def of(profile: Profile, environ: Mapping[str, str]) -> Health:
    """The profile's budgets beside a server with this environment.

    A stall is told from a slow step by outlasting vLLM's own bound on a step: with a longer bound
    the stall budget grows, by what the recipe's lies above the recipe's. Raises RecipeError.
    """
    health = profile.health
    recipes = step_timeout_s(profile.env)
    longer = step_timeout_s({**profile.env, **environ}) - recipes
    if longer <= 0:
        return health
    return replace(health, stall_budget_s=health.stall_budget_s + longer)


def step_timeout_s(environ: Mapping[str, str]) -> int:
    """vLLM's bound on a step in whole seconds. Raises RecipeError for what is none."""
    seen = environ.get(STEP_TIMEOUT, str(DEFAULT_STEP_TIMEOUT_S))
    try:
        seconds = int(seen)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= MOST_S:
        raise RecipeError(f"{STEP_TIMEOUT}: got {seen!r}; give whole seconds, to {MOST_S:g}")
    return seconds
