"""What `make smoke-test` decides to test."""

import pytest

from deploy import smoke
from deploy.recipe import RecipeError


def test_a_named_server_is_tested_as_it_is() -> None:
    """SMOKE_URL wins over everything, and needs the small environment only."""
    chosen = smoke.choose(
        {"SMOKE_URL": "http://gpu:8000", "SMOKE_MODEL": "m", "SMOKE_PROFILE": "mi300x"},
        lambda: True,
    )
    assert chosen.environment == "health"
    assert chosen.first == ()
    assert chosen.arguments[:3] == ["healthcheck", "smoke", "http://gpu:8000"]
    assert chosen.arguments[chosen.arguments.index("--model") + 1] == "m"
    assert chosen.arguments[chosen.arguments.index("--profile") + 1] == "mi300x"


def test_a_gpu_host_with_an_engine_tests_its_containers() -> None:
    """The containers are brought up first, and the health service's verdict is part of the test."""
    chosen = smoke.choose({"SERVER_PORT": "9000"}, lambda: True)
    assert chosen.first == ("deploy.host", "--profile", "mi355x", "up")
    assert "http://127.0.0.1:9000" in chosen.arguments
    assert "--health" in chosen.arguments


def test_any_other_machine_tests_the_rehearsal() -> None:
    """No GPU, no engine: real vLLM on the CPU."""
    chosen = smoke.choose({}, lambda: False)
    assert chosen.environment == "rehearsal"
    assert chosen.arguments[:2] == ["deploy.rehearsal", "smoke"]


def test_an_unknown_profile_is_refused_before_anything_starts() -> None:
    """A misspelt SMOKE_PROFILE is a RecipeError that lists the profiles."""
    with pytest.raises(RecipeError, match="got 'mi999'"):
        smoke.choose({"SMOKE_PROFILE": "mi999"}, lambda: True)
