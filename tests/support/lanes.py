"""The releases beside the default one that have an environment to be rehearsed in."""

import os
from pathlib import Path

from deploy import recipe, release
from deploy.release import Release

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = recipe.load().vllm.version
LANES = [
    vllm
    for version in release.names()
    if version != DEFAULT and (vllm := release.load(version)).rehearsal
]


def environ(vllm: Release) -> dict[str, str]:
    """The environment of a program that is to take this release."""
    return {**os.environ, release.VARIABLE: vllm.version}
