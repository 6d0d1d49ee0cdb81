"""`docker/prove.py`, the build step of the image, run on real trees without an engine.

The trees call themselves a vLLM that is not for the CPU, so that vLLM finds no platform at all, as
a ROCm build does on a machine that has no GPU.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import recipe
from deploy.environment import cache_dir
from deploy.rehearsal.tree import publish_tree
from patches import apply, series
from patches.loadcheck.draft import ARCHITECTURE
from tests.support.vllm_trees import link_copy

ROOT = Path(__file__).resolve().parents[2]
ATTRIBUTE = "draft_id_to_target_id"
DEADLINE_S = 550


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of the recipe's release, unpatched, of no platform."""
    made = link_copy(publish_tree(cache_dir(os.environ), patched=False), tmp_path / "tree")
    (identity,) = made.glob("vllm-*.dist-info")
    shutil.rmtree(identity)
    release = recipe.load().vllm.version
    plain = made / f"vllm-{release}.dist-info"
    plain.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n"
    (plain / "METADATA").write_text(metadata)
    return made


@pytest.fixture
def without_first(tmp_path: Path) -> Path:
    """A checkout whose series has lost its first patch, that of PR 51145."""
    checkout = tmp_path / "checkout"
    for name in ("deploy", "docker", "patches"):
        ignored = shutil.ignore_patterns("__pycache__", "*.whl")
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    listed = checkout / "patches" / "series"
    first = series.load().patches[0].name
    listed.write_text(listed.read_text().replace(f"{first}\n", ""))
    (checkout / "patches" / first).unlink()
    return checkout


def run(checkout: Path, tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a checkout against a tree."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def refusal(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a program that refused."""
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (line,) = ended.stderr.splitlines()
    return line


@pytest.mark.real
def test_a_sound_tree_is_loaded_and_the_provenance_says_so(tree: Path, tmp_path: Path) -> None:
    """Without a GPU vLLM loads the patched class; every attribute of the contract was read."""
    written = tmp_path / "provenance.json"
    ended = run(ROOT, tree, "docker/prove.py", str(written))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    proven = json.loads(written.read_text())
    assert proven["tree"]["carried"] is True
    assert proven["audit"]["trees"][0]["gaps"] == []
    reached = proven["load_check"]
    assert (reached["level"], reached["stopped_by"]) == ("loaded", None)
    assert ATTRIBUTE in reached["read"]
    assert reached["read"] == reached["required"]


def test_a_series_without_the_attribute_gives_no_image(
    tree: Path, without_first: Path, tmp_path: Path
) -> None:
    """With patch 0001 gone the build ends with one line that names the attribute; no file."""
    written = tmp_path / "provenance.json"
    told = refusal(run(without_first, tree, "docker/prove.py", str(written)))
    assert told.startswith(f"prove: audit of {ARCHITECTURE} on amd: ")
    assert f"lacks {ATTRIBUTE}" in told
    assert not written.exists()


def test_a_fault_that_no_patch_mends_gives_no_image() -> None:
    """Each fault that is left is named; a tree with none passes."""
    spec = importlib.util.spec_from_file_location("prove", ROOT / "docker" / "prove.py")
    assert spec is not None and spec.loader is not None
    prove = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prove)
    prove.check_faults({"tree": {"faults": []}})
    with pytest.raises(prove.NotProvenError, match=r"^faults: are left .*: one: answers wrongly$"):
        prove.check_faults({"tree": {"faults": [{"key": "one", "symptom": "answers wrongly"}]}})


@pytest.mark.real
def test_the_load_check_finds_the_attribute_by_itself(tree: Path, without_first: Path) -> None:
    """What the audit reads in the sources the running class confirms, in one line."""
    apply.apply(tree, series.load(without_first / "patches"))
    told = refusal(run(ROOT, tree, "-m", "patches", "loadcheck", str(tree)))
    assert f"lacks {ATTRIBUTE}, which vllm/v1/worker/gpu/spec_decode/dspark/" in told


def test_what_the_machine_lacks_lowers_the_level(tree: Path) -> None:
    """A library that is not there is told and is no fault, unless a level is asked for."""
    (tree / "torch.py").write_text("raise OSError('libamdhip64.so.7: cannot open')\n")
    ended = run(ROOT, tree, "-m", "patches", "loadcheck", str(tree), "--format", "json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["level"] == "not imported"
    assert found["stopped_by"] == "OSError: libamdhip64.so.7: cannot open"
    told = refusal(
        run(ROOT, tree, "-m", "patches", "loadcheck", str(tree), "--at-least", "imported")
    )
    assert told.endswith("load check: not imported, asked for imported")


def test_a_patched_file_that_raises_is_the_trees_fault(tree: Path) -> None:
    """An error that comes out of a file of the series fails the check, whatever the machine has."""
    file = tree / "vllm" / "models" / "deepseek_v4" / "amd" / "dspark.py"
    text = file.read_text()
    file.unlink()
    file.write_text(f"undefined_name\n{text}")
    # The first thing that the check imports leads straight to that file.
    (tree / "torch.py").write_text(f"import runpy\nrunpy.run_path({str(file)!r})\n")
    told = refusal(run(ROOT, tree, "-m", "patches", "loadcheck", str(tree)))
    assert told.endswith("NameError: name 'undefined_name' is not defined")
