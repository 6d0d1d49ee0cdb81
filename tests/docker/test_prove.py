"""`docker/prove.py`, the build step of the image, run on real trees without an engine.

The trees call themselves a vLLM that is not for the CPU, so that vLLM finds no platform at all, as
a ROCm build does on a machine that has no GPU.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from deploy import recipe
from deploy.environment import cache_dir
from deploy.rehearsal.tree import publish_tree
from patches import apply, series
from patches.faults import Fault
from patches.loadcheck.draft import ARCHITECTURE
from tests.support import vllm_trees
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


@pytest.fixture(scope="module")
def prove() -> Any:
    """The build step as a module."""
    spec = importlib.util.spec_from_file_location("prove", ROOT / "docker" / "prove.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    checkout: Path, tree: Path, *command: str, compile_proof: str = "off"
) -> subprocess.CompletedProcess[str]:
    """Run a program of a checkout against a tree; kernels are compiled by tests of their own."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(tree), "COMPILE_PROOF": compile_proof},
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
    assert proven["image"].keys() == {"aiter", "triton", "torch", "rocm"}
    assert proven["image"]["triton"] == metadata.version("triton")
    assert proven["aiter"]["read_by"]["decode on gfx950"] == ["_flat_paged_mqa_logits_kernel"]
    assert proven["compile"] == {"verdict": "off", "told": "left out by COMPILE_PROOF=off"}


def test_a_series_without_the_attribute_gives_no_image(
    tree: Path, without_first: Path, tmp_path: Path
) -> None:
    """With patch 0001 gone the build ends with one line that names the attribute; no file."""
    written = tmp_path / "provenance.json"
    told = refusal(run(without_first, tree, "docker/prove.py", str(written)))
    assert told.startswith(f"prove: audit of {ARCHITECTURE} on amd: ")
    assert f"lacks {ATTRIBUTE}" in told
    assert not written.exists()


def test_a_fault_that_hits_every_profile_gives_no_image(
    prove: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each fault that is left is named; a tree with none passes, and one that is right for some
    card, with a warning for each profile that it is not for."""
    every = Fault("one", "answers wrongly", "1.0.0", "u", "anything", "refuse")
    pinned = recipe.load()
    prove.check_faults({"tree": {"faults": []}}, pinned)
    assert capsys.readouterr().out == ""
    with pytest.raises(prove.NotProvenError, match=r"^faults: are left .*: one: answers wrongly$"):
        prove.check_faults({"tree": {"faults": [asdict(every)]}}, pinned)
    prove.check_faults({"tree": {"faults": [asdict(replace(every, asks="gfx942"))]}}, pinned)
    warned = re.findall(r"^prove: warning: not for (\S+): one: ", capsys.readouterr().out, re.M)
    cards = {p.name: p.gpu.arch for p in pinned.profiles.values() if p.gpu}
    assert warned == [name for name, arch in cards.items() if arch == "gfx942"]
    assert 0 < len(warned) < len(cards)


def test_kernels_that_cannot_be_compiled_give_no_image_unless_that_is_said(
    prove: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A build that cannot compile is refused in one line that names the way out; with COMPILE_PROOF=
    warn it is taken, and the provenance says what was not proven."""
    (tmp_path / "torch.py").write_text("raise OSError('libamdhip64.so.7: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    given = (vllm_trees.tree("0.27.1"), recipe.load(), series.load())
    with pytest.raises(prove.NotProvenError) as refused:
        prove.compile_kernels(*given, "on")
    first = "gfx950: the process ended with 1: OSError: libamdhip64.so.7: cannot open"
    assert f"the first: {first}; to take the image all the same, build with" in str(refused.value)
    assert str(refused.value).endswith("COMPILE_PROOF=warn")
    accepted = prove.compile_kernels(*given, "warn")
    assert accepted["verdict"] == "not proven"
    assert first in accepted["faults"]
    assert "prove: warning: compile proof: not proven: " in capsys.readouterr().out


def test_where_nothing_can_be_compiled_nothing_is_proven_or_refused(
    prove: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release whose path is not known, and a Python without Triton: unknown, and why."""
    loaded = recipe.load(), series.load()
    unknown = prove.compile_kernels(vllm_trees.tree("0.32.0"), *loaded, "on")
    assert unknown["verdict"] == "unknown"
    assert "vLLM 0.32.0: the kernels that it launches are known of" in unknown["told"]
    monkeypatch.setattr("patches.compile.ask._COMPILERS", ("no_such_package",))
    unknown = prove.compile_kernels(vllm_trees.tree("0.27.1"), *loaded, "on")
    assert unknown["verdict"] == "unknown"
    assert unknown["told"].startswith("compile: no_such_package: not installed for ")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.1.19", "AITER 0.1.19: has 32-bit page offsets, met"),
        ("unknown", "AITER unknown: may have"),
    ],
)
def test_an_aiter_whose_fault_is_met_gives_no_image(prove: Any, version: str, told: str) -> None:
    """A tree without 0004 asks it for the indexer's scores; a version that is not known is none."""
    with pytest.raises(prove.NotProvenError) as refused:
        prove.pages(vllm_trees.tree("0.27.1"), version)
    assert str(refused.value).startswith(told)
    assert "read by _cp_gather_indexer_quant_cache_kernel, deepgemm_fp8" in str(refused.value)
    assert "apply patch 0004 or take AITER 0.1.20" in str(refused.value)


def test_versions_that_the_image_does_not_say_are_unknown(prove: Any, tmp_path: Path) -> None:
    """ROCm's stands in a file of its own."""
    file = tmp_path / "version"
    assert prove.held(file)["rocm"] == "unknown"
    file.write_text("7.2.3-81\n")
    assert prove.held(file)["rocm"] == "7.2.3-81"
    assert prove.held(file)["aiter"] == "unknown"


def test_a_word_that_is_no_way_to_compile_is_refused(tree: Path, tmp_path: Path) -> None:
    """Before anything is applied."""
    provenance = str(tmp_path / "provenance.json")
    ended = run(ROOT, tree, "docker/prove.py", provenance, compile_proof="no")
    assert refusal(ended) == "prove: COMPILE_PROOF: got 'no'; give on, warn or off"
    assert not any(status.carried for status in apply.status(tree, series.load()))


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
