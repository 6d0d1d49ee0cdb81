"""The releases beside the default one that have an environment to be rehearsed in."""

import os
import subprocess
from pathlib import Path

from deploy import environment, recipe
from deploy.recipe import release
from deploy.recipe.release import Release

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = recipe.load().vllm.version
LANES = [
    vllm
    for version in release.names()
    if version != DEFAULT and (vllm := release.load(version)).rehearsal
]


def run(
    vllm: Release, *words: str, deadline_s: float, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A program of the release's environment, `python -m WORDS`, which must end well."""
    ended = subprocess.run(
        [str(environment.ensure("rehearsal", vllm)), "-m", *words],
        input=given,
        cwd=ROOT,
        env=environ(vllm),
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended


def environ(vllm: Release) -> dict[str, str]:
    """The environment of a program that is to take this release."""
    return {**os.environ, release.VARIABLE: vllm.version}
