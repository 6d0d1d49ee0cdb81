"""The load check on every release: the draft is loaded, or what it lacks is named."""

import json
import subprocess
from pathlib import Path

import pytest

from patches import apply, faults, series
from patches.loadcheck.inside import LOADED
from tests.support.vllm_trees import SHA256
from tests.support.whole_trees import whole_tree

ROOT = Path(__file__).resolve().parents[2]
RELEASES = [version for version in SHA256 if version >= "0.26.0"]
ATTRIBUTE = "draft_id_to_target_id"


@pytest.mark.prove
@pytest.mark.parametrize("version", RELEASES)
def test_the_draft_of_a_release_is_loaded(version: str, tmp_path: Path) -> None:
    """With the recipe's own speculative table: patched where the series fits, else as released.

    Only where the draft lacks its attribute it is refused, and by that name.
    """
    root, python = whole_tree(version, tmp_path)
    if version in faults.fitting(series.load()):
        apply.apply(root, series.load())
    command = [str(python), "-m", "patches", "loadcheck", str(root), "--format", "json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    left = {f.key for f in faults.left(version, apply.status(root, series.load()))}
    if "draft-attribute" in left:
        assert ended.returncode == 1
        assert f"lacks {ATTRIBUTE}, which " in ended.stderr
        return
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["level"], found["stopped_by"]) == (LOADED, None)
    assert found["read"] == found["required"] and ATTRIBUTE in found["read"]
