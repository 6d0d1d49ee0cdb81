"""`deploy.rehearsal upgrade --containers` on a real engine: from one release to another and back."""

import os
import subprocess
import sys

import pytest

from deploy import recipe
from tests.support.containers import Build
from tests.support.lanes import LANES

pytestmark = pytest.mark.docker


def test_no_answer_is_lost_on_the_way_and_back(build: Build) -> None:
    """Compose replaces the server under requests; each that was under way at a stop comes whole, and
    what is refused meanwhile is counted."""
    before, after = recipe.load().vllm.version, LANES[-1].version
    command = [sys.executable, "-m", "deploy.rehearsal", "upgrade", "--containers", "yes"]
    ended = subprocess.run(
        command,
        cwd=build.context,
        env={**os.environ, "RELEASE": before},
        capture_output=True,
        text=True,
        timeout=2400,
        check=False,
    )
    told = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert told[-1].startswith(f"roll vLLM {before} to {after} to {before}: ")
    phases = [line[:12].strip() for line in told[-6:-1]]
    assert phases == [before, f"to {after}", after, f"to {before}", before]
