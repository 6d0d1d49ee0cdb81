"""The command line of the audit: what it opens, refuses, prints and exits with."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from patches.audit.cli import main
from tests.support import audit_trees

ARCH = "DSparkDraftModel"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with one gap: AMD lacks ``wanted``, read under an option."""
    return audit_trees.tree(tmp_path / "tree", "if self.option:\n    self.model.wanted")


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A small tree without a gap."""
    return audit_trees.tree(tmp_path / "clean", "self.model.model")


def wheel_of(tree: Path) -> Path:
    """Pack a tree into a wheel file."""
    wheel = tree.parent / "vllm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(tree.rglob("*.py")):
            archive.write(file, file.relative_to(tree).as_posix())
    return wheel


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Run the command; return the exit code, stdout and stderr."""
    code = main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    return code, out, err


def gaps(out: str) -> list[dict[str, Any]]:
    """The gaps in the JSON output of one tree."""
    (report,) = json.loads(out)["trees"]
    found: list[dict[str, Any]] = report["gaps"]
    return found


def test_a_tree_without_crash_level_gaps_exits_0(
    clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing found is exit code 0 and said in one line."""
    code, out, err = run(capsys, clean)
    assert (code, err) == (0, "")
    assert out == f"{clean}: all on all platforms: 1 compared: no gaps\n"


def test_a_crash_under_a_condition_exits_1(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A conditional crash is a crash; the line says who lacks what, where, when and who has it."""
    code, out, _ = run(capsys, tree)
    assert code == 1
    assert "1 crash-conditional" in out.splitlines()[0]
    (line,) = out.splitlines()[1:]
    assert line.split()[:3] == ["crash-conditional", "amd", f"{ARCH}:"]
    assert line.endswith(
        "vllm.models.tiny.amd.dspark.Draft on amd lacks wanted, used at "
        "vllm/v1/worker/gpu/spec_decode/dspark/speculator.py:20 if self.option; provided on nvidia"
    )


@pytest.mark.parametrize("form", ["folder", "package", "wheel"])
def test_every_form_of_a_tree_is_read(
    form: str, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder that holds vllm, the vllm folder and a wheel give the same gaps."""
    path = {"folder": tree, "package": tree / "vllm", "wheel": wheel_of(tree)}[form]
    code, out, _ = run(capsys, path, "--format", "json")
    assert code == 1
    assert [gap["attribute"] for gap in gaps(out)] == ["wanted"]


def test_another_platform_is_not_looked_at(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--platform leaves out the gaps of the others."""
    assert run(capsys, tree, "--platform", "nvidia")[0] == 0
    assert run(capsys, tree, "--platform", "amd")[0] == 1


def test_only_introduced_gaps_are_shown(
    tree: Path, clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--since leaves out what the old tree has as well."""
    assert run(capsys, tree, "--since", clean)[0] == 1
    assert run(capsys, tree, "--since", tree)[0] == 0


def test_a_gap_is_the_same_when_lines_move(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gap known from the old tree stays known when code above it grows."""
    code = "x = 1\ny = 2\nif self.option:\n    self.model.wanted"
    moved = audit_trees.tree(tmp_path / "moved", code)
    assert run(capsys, moved, "--since", tree)[0] == 0


def test_a_baseline_lets_known_gaps_pass(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gaps of an earlier report do not fail the next run; a new one does."""
    file = tmp_path / "baseline.json"
    file.write_text(run(capsys, tree, "--format", "json")[1])
    assert run(capsys, tree, "--baseline", file)[0] == 0
    worse = audit_trees.tree(
        tmp_path / "worse", "if self.option:\n    self.model.wanted\nself.model.model.wanted"
    )
    code, out, _ = run(capsys, worse, "--baseline", file, "--format", "json")
    assert code == 1
    assert [gap["attribute"] for gap in gaps(out)] == ["model.wanted"]


def test_a_known_missing_feature_that_becomes_a_crash_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline that knows a missing feature does not cover a crash on the same attribute."""
    file = tmp_path / "baseline.json"
    mild = audit_trees.tree(tmp_path / "mild", "getattr(self.model, 'wanted', None)")
    file.write_text(run(capsys, mild, "--format", "json")[1])
    assert run(capsys, mild, "--baseline", file)[0] == 0
    severe = audit_trees.tree(tmp_path / "severe", "self.model.wanted")
    assert run(capsys, severe, "--baseline", file)[0] == 1


def test_a_gap_that_is_gone_is_said(
    tree: Path, clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline that knows more than there is is named, so that it can be cut down."""
    file = tmp_path / "baseline.json"
    file.write_text(run(capsys, tree, "--format", "json")[1])
    code, _, err = run(capsys, clean, "--baseline", file)
    assert code == 0
    assert err.startswith(
        "audit: the baseline knows a gap that is gone: crash|amd|DSparkDraftModel|"
    )


def test_an_explanation_is_given_when_asked(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--explain adds how the read was found; without it the table is one line a gap."""
    plain = run(capsys, tree)[1]
    explained = run(capsys, tree, "--explain")[1]
    assert "get_model(...) returns the draft model" in explained
    assert "get_model" not in plain


def misuses(tmp_path: Path, tree: Path) -> dict[str, tuple[list[object], str]]:
    """Command lines that cannot be carried out, and what the one line on stderr begins with."""
    empty, junk = tmp_path / "empty", tmp_path / "junk.whl"
    keyless, text = tmp_path / "keyless.json", tmp_path / "text.json"
    empty.mkdir()
    junk.write_bytes(b"not a zip")
    keyless.write_text('{"schema": 1, "trees": [{"gaps": [{}]}]}')
    text.write_text("gaps")
    no_report = "not a report of this audit: make one with --format json"
    no = tmp_path / "absent"
    advice = "name a wheel, site-packages or a checkout"
    registry = "vllm/model_executor/models/registry.py"
    return {
        "absent": ([no], f"{no}: does not exist; {advice}"),
        "no vLLM": ([empty], f"{empty}: not a vLLM tree: it has no {registry}; {advice}"),
        "not a wheel": ([junk], f"{junk}: not a readable wheel: "),
        "old tree": ([tree, "--since", no], f"{no}: does not exist; {advice}"),
        "platform": (
            [tree, "--platform", "rocm"],
            "--platform rocm: unknown; use one of nvidia, amd, xpu, cpu, tpu",
        ),
        "architecture": (
            [tree, "--arch", "DSparkDraft"],
            "--arch DSparkDraft: not in this tree's registry; did you mean DSparkDraftModel? "
            "use one of DSparkDraftModel",
        ),
        "no baseline": (
            [tree, "--baseline", no],
            f"--baseline {no}: cannot be read: No such file or directory",
        ),
        "baseline is not JSON": ([tree, "--baseline", text], f"--baseline {text}: {no_report}"),
        "baseline without keys": (
            [tree, "--baseline", keyless],
            f"--baseline {keyless}: {no_report}",
        ),
        "configuration is not JSON": (
            [tree, "--speculative-config", "{"],
            "--speculative-config {: not JSON: ",
        ),
        "configuration is no object": (
            [tree, "--speculative-config", "[]"],
            "--speculative-config []: not a JSON object; give vLLM's own value",
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "absent",
        "no vLLM",
        "not a wheel",
        "old tree",
        "platform",
        "architecture",
        "no baseline",
        "baseline is not JSON",
        "baseline without keys",
        "configuration is not JSON",
        "configuration is no object",
    ],
)
def test_misuse_is_one_line_and_exits_2(
    name: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be carried out names the value seen and the legal ones, and prints no report."""
    argv, expected = misuses(tmp_path, tree)[name]
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith(f"audit: {expected}")
    assert err.count("\n") == 1


def test_a_check_that_would_prove_nothing_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When no speculator is known to drive the architecture, the absolute check does not pass."""
    speculator = tree / "vllm/v1/worker/gpu/spec_decode/dspark/speculator.py"
    speculator.write_text(speculator.read_text().replace("DSparkSpeculator", "RenamedSpeculator"))
    code, _, err = run(capsys, tree, "--arch", ARCH, "--platform", "amd")
    assert code == 2
    assert err.startswith(f"audit: --arch {ARCH}: no speculator of this tree is known to drive it")
    code, out, _ = run(capsys, tree)
    assert code == 0
    assert "note: RenamedSpeculator keeps a draft model" in out


def test_a_class_that_cannot_be_judged_is_said(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class with a base outside the tree passes the absolute check, but with a note."""
    amd = audit_trees.model(bases="Unknown")
    (tree / "vllm/models/tiny/amd/dspark.py").write_text(amd)
    code, out, _ = run(capsys, tree, "--arch", ARCH, "--platform", "amd")
    assert code == 0
    assert f"note: {ARCH} on amd cannot be judged: Draft has a base outside the tree" in out


def test_a_file_that_is_not_python_is_misuse(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source file that cannot be parsed is named instead of being skipped."""
    (tree / "vllm/models/tiny/amd/dspark.py").write_text("class Draft(:\n")
    code, _, err = run(capsys, tree)
    assert code == 2
    assert err.startswith("audit: vllm/models/tiny/amd/dspark.py: cannot be parsed: ")


def test_nothing_of_the_tree_is_imported(tree: Path) -> None:
    """Auditing a tree leaves no module of it loaded and runs none of its code."""
    (tree / "vllm/__init__.py").write_text("raise SystemExit('imported')\n")
    script = (
        "import sys; from patches.audit.cli import main; "
        f"code = main([{str(tree)!r}]); "
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'vllm']; "
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "name", ["x" * 300, "loop", "empty/vllm", "empty"], ids=lambda name: name[:9]
)
def test_a_place_that_cannot_be_looked_into_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A name too long for the system, a link to itself, a file: one line, exit 2."""
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to("loop")
    code, out, err = run(capsys, tmp_path / name)
    assert (code, out) == (2, "")
    assert err.startswith(f"audit: {tmp_path / name}: ")
    assert err.count("\n") == 1


def test_a_source_that_is_a_pipe_is_never_read(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe among the sources, which would be waited for without end: one line, exit 2."""
    (source,) = tree.rglob("speculator.py")
    source.unlink()
    os.mkfifo(source)
    code, out, err = run(capsys, tree)
    assert (code, out) == (2, "")
    assert err == f"audit: {source}: cannot be read: is no source file\n"


def test_json_says_everything(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON form has every field of a gap."""
    (gap,) = gaps(run(capsys, tree, "--format", "json")[1])
    explanation = gap.pop("explanation")
    assert any("get_model" in step for step in explanation)
    assert gap == {
        "severity": "crash-conditional",
        "fails": True,
        "platform": "amd",
        "arch": ARCH,
        "class": "vllm.models.tiny.amd.dspark.Draft",
        "class_where": "vllm/models/tiny/amd/dspark.py:14",
        "attribute": "wanted",
        "reader": "DSparkSpeculator.propose",
        "where": "vllm/v1/worker/gpu/spec_decode/dspark/speculator.py:20",
        "condition": "self.option",
        "providers": ["nvidia"],
        "note": None,
        "key": "crash|amd|DSparkDraftModel|wanted|DSparkSpeculator.propose",
    }


def test_sarif_has_what_the_standard_requires(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The SARIF form holds the required members of 2.1.0 and points at the class and the read."""
    log = json.loads(run(capsys, tree, "--format", "sarif")[1])
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (only,) = log["runs"]
    driver = only["tool"]["driver"]
    assert driver["name"]
    rules = {rule["id"] for rule in driver["rules"]}
    (result,) = only["results"]
    assert result["ruleId"] in rules
    assert result["level"] in {"none", "note", "warning", "error"}
    assert result["message"]["text"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "vllm/models/tiny/amd/dspark.py"
    assert place["physicalLocation"]["region"]["startLine"] == 14
    (related,) = result["relatedLocations"]
    assert related["physicalLocation"]["region"]["startLine"] == 20
    assert related["message"]["text"] == "read by DSparkSpeculator.propose()"
    assert all(isinstance(value, str) for value in result["partialFingerprints"].values())


def test_github_annotations_sit_at_the_class(
    tree: Path, clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each gap is one workflow command; a tree without gaps prints nothing."""
    out = run(capsys, tree, "--format", "github")[1]
    assert out.startswith(
        "::error file=vllm/models/tiny/amd/dspark.py,line=14,"
        "title=crash-conditional%3A amd DSparkDraftModel wanted::"
    )
    assert out.count("\n") == 1
    assert run(capsys, clean, "--format", "github")[1] == ""
