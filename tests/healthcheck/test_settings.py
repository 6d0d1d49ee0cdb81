"""What the health service is told to expect."""

import pytest

from healthcheck.service import settings
from healthcheck.service.settings import SettingsError


def test_a_server_without_a_draft_is_not_asked_for_one() -> None:
    """The entrypoint's switch reaches the service, or such a server would never pass the gate."""
    assert settings.make("mi355x").policy.speculates
    assert not settings.make("mi355x", speculation=False).policy.speculates


def test_the_stall_budget_follows_the_servers_bound_on_a_step() -> None:
    """With the server's own variable beside it; a shorter bound leaves the recipe's budget."""
    name = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    recipes = settings.make("mi355x").policy.health.stall_budget_s
    longer = settings.make("mi355x", environ={name: "1800"}).policy.health
    assert longer.stall_budget_s == recipes + 1200
    assert settings.make("mi355x", environ={name: "60"}).policy.health.stall_budget_s == recipes
    with pytest.raises(SettingsError, match=f"{name}: got 'soon'; give whole seconds"):
        settings.make("mi355x", environ={name: "soon"})
