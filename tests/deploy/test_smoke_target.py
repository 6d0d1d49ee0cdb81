"""What `make smoke-test` decides to test."""

import os
from pathlib import Path

import pytest

from deploy.recipe import RecipeError
from deploy.validation import smoke


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
    assert chosen.first == ("deploy", "containers", "--profile", "mi355x", "up")
    assert "http://127.0.0.1:9000" in chosen.arguments
    assert "--health" in chosen.arguments


def test_any_other_machine_tests_the_rehearsal() -> None:
    """No GPU, no engine: real vLLM on the CPU."""
    chosen = smoke.choose({}, lambda: False)
    assert chosen.environment == "rehearsal"
    assert chosen.arguments[:4] == ["deploy.rehearsal", "smoke", "--profile", "rehearsal"]


@pytest.mark.parametrize("profile", ["rehearsal", "rehearsal-amd"])
@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_rehearsal_that_is_named_is_tested(profile: str, has_gpu: bool) -> None:
    """SMOKE_PROFILE names one: it is rehearsed, on a host with a card too."""
    chosen = smoke.choose({"SMOKE_PROFILE": profile}, lambda: has_gpu)
    assert chosen.environment == "rehearsal"
    assert chosen.arguments[:4] == ["deploy.rehearsal", "smoke", "--profile", profile]
    assert chosen.why == f"SMOKE_PROFILE is {profile}: the CPU rehearsal"


def test_an_unknown_profile_is_refused_before_anything_starts() -> None:
    """A misspelt SMOKE_PROFILE is a RecipeError that lists the profiles."""
    with pytest.raises(RecipeError, match="got 'mi999'"):
        smoke.choose({"SMOKE_PROFILE": "mi999"}, lambda: True)


@pytest.mark.parametrize(("size", "option"), [("full", "--full"), ("quick", "--quick")])
def test_the_size_reaches_every_target(size: str, option: str) -> None:
    """Whatever is tested, it is tested in full or quickly, and leaves the same three reports."""
    for url, has_gpu in (("http://gpu:8000", False), ("", True), ("", False)):
        environ = {"SMOKE_SIZE": size, "SMOKE_URL": url}
        chosen = smoke.choose(environ, lambda has_gpu=has_gpu: has_gpu)
        assert option in chosen.arguments
        written = [word for word in chosen.arguments if "smoke-report" in word]
        assert [word.rpartition(".")[2] for word in written] == ["json", "xml", "html"]


def test_a_wrong_size_is_refused() -> None:
    """One line with the sizes there are."""
    with pytest.raises(RecipeError, match="SMOKE_SIZE: got 'huge'; it is one of full, quick"):
        smoke.choose({"SMOKE_SIZE": "huge"}, lambda: False)


def test_a_baseline_is_passed_on() -> None:
    """The report without speculation that SMOKE_BASELINE names."""
    chosen = smoke.choose({"SMOKE_URL": "http://a", "SMOKE_BASELINE": "b.json"}, lambda: False)
    assert chosen.arguments[chosen.arguments.index("--baseline") + 1] == "b.json"


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("exit 0", True),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", False),
        ("exec sleep 60", False),
        (None, False),
    ],
    ids=["answers", "refuses", "hangs", "is not there"],
)
def test_only_an_engine_that_answers_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str | None, expected: bool
) -> None:
    """On a host with a card, a client without an engine behind it leaves the rehearsal."""
    kfd, docker = tmp_path / "kfd", tmp_path / "docker"
    kfd.touch()
    if engine is not None:
        docker.write_text(f"#!/bin/sh\n{engine}\n")
        docker.chmod(0o755)
    monkeypatch.setattr(smoke, "KFD", kfd)
    monkeypatch.setattr(smoke, "ENGINE_S", 1.0 if engine == "exec sleep 60" else 60.0)
    usual = os.pathsep.join(["/usr/sbin", "/usr/bin"] if engine else [])
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{usual}")
    assert smoke.gpu_engine() is expected
    monkeypatch.setattr(smoke, "KFD", tmp_path / "none")
    assert not smoke.gpu_engine()


def test_the_key_of_the_containers_is_the_tests_key() -> None:
    """API_KEY_FILE, which `make up` was given, opens the server to the test as well."""
    chosen = smoke.choose({"API_KEY_FILE": "/keys/server"}, lambda: True)
    assert chosen.arguments[chosen.arguments.index("--api-key-file") + 1] == "/keys/server"
