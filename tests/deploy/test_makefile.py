"""What a user sets for `make` is a value to all that it runs, and never a command."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("by", ["environment", "command line"])
@pytest.mark.parametrize(
    "value",
    [
        "x; touch {}",
        "x`touch {}`",
        "$(touch {})",
        "$(shell touch {})",
        "$$(touch {})",
        '"; touch {}; "',
        "'; touch {}; '",
        "x\ntouch {}\n",
    ],
)
@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("plan", "PROFILE"),
        ("plan", "PYTHON"),
        ("accuracy", "URL"),
        ("bench", "BENCH"),
        ("watch-upstream", "VERSION"),
    ],
)
def test_no_value_is_run(target: str, name: str, value: str, by: str, tmp_path: Path) -> None:
    """Whatever stands in a variable, nothing of it is run: neither by the shell nor by make."""
    made = tmp_path / "made"
    # A program that prints itself stands in for the Python of `bench`.
    given = {"PYTHON": "echo", name: value.format(made)}
    words = [f"{name}={value}" for name, value in given.items()]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", target, *(words if by == "command line" else [])],
        cwd=ROOT,
        env={**clean, **(given if by == "environment" else {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not made.exists()
    if name == "PROFILE":
        assert done.stdout == f"-m deploy plan --profile {given[name]}\n"


@pytest.mark.parametrize(
    ("words", "profile"),
    [
        (["rehearsal"], "rehearsal"),
        (["rehearsal", "PROFILE=rehearsal-amd"], "rehearsal-amd"),
        (["plan"], "mi355x"),
    ],
)
def test_a_rehearsal_is_of_the_profile_that_is_named(words: list[str], profile: str) -> None:
    """Without PROFILE it is `rehearsal`, everything else mi355x."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PROFILE"))}
    done = subprocess.run(
        ["make", "--just-print", "--print-data-base", *words],
        cwd=ROOT,
        env=clean,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"\nPROFILE := {profile}\n" in done.stdout
