"""Budgets of the health service that follow what its server is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deploy.recipe import MOST_S, Health, Profile, RecipeError

STEP_TIMEOUT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
# vLLM's own, in seconds (0.27.1, envs.py).
DEFAULT_STEP_TIMEOUT_S = 300


def of(profile: Profile, environ: Mapping[str, str]) -> Health:
    """The profile's budgets beside a server with this environment.

    A stall is told from a slow step by outlasting vLLM's own bound on a step: with a longer bound
    the stall budget grows, by what the recipe's lies above the recipe's. A start takes at least
    what vLLM waits for its engine, and the gate's first answer. Raises RecipeError.
    """
    health = profile.health
    longer = step_timeout_s({**profile.env, **environ}) - step_timeout_s(profile.env)
    stall_s = health.stall_budget_s + max(longer, 0)
    start_s = health.start_budget_s
    if READY_TIMEOUT in environ:
        start_s = max(start_s, _seconds(READY_TIMEOUT, environ) + health.warmup_timeout_s)
    return replace(health, stall_budget_s=stall_s, start_budget_s=start_s)


def step_timeout_s(environ: Mapping[str, str]) -> int:
    """vLLM's bound on a step in whole seconds. Raises RecipeError for what is none."""
    return _seconds(STEP_TIMEOUT, {STEP_TIMEOUT: str(DEFAULT_STEP_TIMEOUT_S), **environ})


def _seconds(name: str, environ: Mapping[str, str]) -> int:
    """A time-out as vLLM reads it: whole seconds."""
    seen = environ[name]
    try:
        seconds = int(seen)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= MOST_S:
        raise RecipeError(f"{name}: got {seen!r}; give whole seconds, to {MOST_S:g}")
    return seconds
