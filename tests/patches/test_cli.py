"""`python3 -m patches` as a user meets it: exit codes, standard output, and the one line of an error."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patches import faults, series, transaction
from patches.__main__ import main
from tests.support import in_process
from tests.support.made_series import sha256, snapshot
from tests.support.vllm_trees import slim_copy

REPOSITORY = series.FOLDER.parent
SHIPPED = series.load()
STEPS = [(patch, target) for patch in SHIPPED.patches for target in patch.targets]
TARGETS = [target.path for _, target in STEPS]
NAMES = [patch.name for patch, _ in STEPS]
AFTER = [target.pairs[0].after for _, target in STEPS]
NONE_LEFT = "nothing is left: vLLM 0.27.1 has none of the known faults"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return in_process.run(main, *arguments)


def run_bare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program in a Python that has only its standard library."""
    command = [sys.executable, "-I", "-S", "-c", _ENTRY, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


# -I -S hides site-packages, so an import of anything but the standard library fails here.
_ENTRY = f"""
import runpy, sys
sys.path.insert(0, {str(REPOSITORY)!r})
runpy.run_module("patches", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of 0.27.1 that the series touches."""
    return slim_copy("0.27.1", tmp_path / "site-packages", TARGETS)


def test_apply_then_again_then_reverse(root: Path) -> None:
    """Each run says what it did to which file, or that there was nothing to do."""
    first = run_bare("apply", root)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == [
        *(
            f"applied: {name}: {path} is now {after}"
            for name, path, after in zip(NAMES, TARGETS, AFTER, strict=True)
        ),
        NONE_LEFT,
    ]
    again = run("apply", root)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines() == [
        *(
            f"nothing to do: {name}: {path}: carries the patch"
            for name, path in zip(NAMES, TARGETS, strict=True)
        ),
        NONE_LEFT,
    ]
    back = run("apply", root, "--reverse")
    assert back.returncode == 0
    assert [line.split(": ")[:2] for line in back.stdout.splitlines()] == [
        ["removed", name] for name in reversed(NAMES)
    ]
    nothing = run("apply", root, "--reverse")
    assert nothing.returncode == 0
    assert nothing.stdout.startswith(f"nothing to do: {NAMES[0]}: {TARGETS[0]}: not applied\n")


def test_check_changes_nothing_and_says_how_to_mend(root: Path) -> None:
    """On an unpatched tree --check exits 1 with the command that applies, on a patched one 0."""
    before = snapshot(root)
    pending = run("apply", root, "--check")
    assert pending.returncode == 1
    assert pending.stdout.splitlines()[0] == f"pending: {NAMES[0]}: {TARGETS[0]}: not applied yet"
    wrong = [line for line in pending.stdout.splitlines() if line.startswith("still wrong: ")]
    assert len(wrong) == len(faults.of("0.27.1"))
    assert pending.stderr == f"patches: not carried: run: python3 -m patches apply {root}\n"
    assert snapshot(root) == before
    run("apply", root)
    carried = run("apply", root, "--check")
    assert (carried.returncode, carried.stderr) == (0, "")
    assert carried.stdout.splitlines()[0] == f"applied: {NAMES[0]}: {TARGETS[0]}: carries the patch"
    assert carried.stdout.splitlines()[-1] == NONE_LEFT


def test_drift_is_told_with_both_hashes_and_what_it_leaves_wrong(root: Path) -> None:
    """A file that is none of the known ones stops apply: its line, its fault, and the one of the end."""
    path = root / TARGETS[1]
    path.write_bytes(path.read_bytes() + b"\n")
    expected = SHIPPED.patches[1].targets[0].pairs[0].before
    for arguments, outcome in (
        (["apply"], "nothing was changed"),
        (["apply", "--check"], "not carried"),
    ):
        done = run(*arguments, root)
        assert done.returncode == 1
        assert (
            f"drifted: {NAMES[1]}: {TARGETS[1]} of vLLM 0.27.1:"
            f" sha256 {sha256(path.read_bytes())}, expected {expected}:"
            " the patch fits vLLM 0.27.0, 0.27.1" in done.stdout.splitlines()
        )
        assert "still wrong: draft-noise: " in done.stdout
        assert done.stderr == (
            f"patches: {outcome}: 0002 does not fit this vLLM 0.27.1:"
            " use vLLM 0.27.1 as it was released\n"
        )


UNRUN = ("0.26.0", "page-clearing")
"""A fault whose code a release has and does not run, as its files tell it."""

WAY_OUT = "use vLLM 0.27.0 or 0.27.1 with the series, or vLLM 0.32.0 or later, but for gfx942"


@pytest.mark.parametrize(
    ("version", "misfits"),
    [
        ("0.26.0", "0002, 0003, 0004, 0005, 0006, 0008, 0009 do"),
        ("0.28.0", "0002, 0004, 0005, 0006 do"),
        ("0.29.0", "0004, 0005, 0006 do"),
        ("0.30.0", "0004, 0005 do"),
        ("0.31.0", "0005 does"),
    ],
)
def test_a_release_that_fits_in_part_is_told_what_it_has_and_what_is_wrong(
    version: str, misfits: str, tmp_path: Path
) -> None:
    """What is upstream, what does not fit, each fault that is left, and where to go; exit 1."""
    root = slim_copy(version, tmp_path, TARGETS)
    done = run("apply", root)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"patches: nothing was changed: {misfits} not fit this vLLM {version}: {WAY_OUT}\n"
    )
    lines = done.stdout.splitlines()
    assert [line.split(": ")[1] for line in lines if not line.startswith("still wrong")] == NAMES
    wrong = [line.removeprefix("still wrong: ") for line in lines if line.startswith("still wrong")]
    left = [f for f in faults.load() if f.is_in(version) or (version, f.key) == UNRUN]
    assert wrong == [fault.sentence() for fault in left]
    told = json.loads(run("show", root, "--format", "json").stdout)["tree"]["faults"]
    assert [fault["key"] for fault in told] == [fault.key for fault in left]


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_a_release_that_has_every_change_carries_nothing(version: str, tmp_path: Path) -> None:
    """Apply, check and show agree that there is nothing to do, and exit 0; what no patch mends is
    told all the same."""
    root = slim_copy(version, tmp_path, TARGETS)
    for arguments in (["apply"], ["apply", "--check"]):
        done = run(*arguments, root)
        assert (done.returncode, done.stderr) == (0, "")
        assert [line.split(": ")[:2] for line in done.stdout.splitlines()[-2:]] == [
            ["still wrong", "indexer-negative-zero"],
            ["nothing to carry", f"vLLM {version} has every change of the series"],
        ]
    assert run("show", root).stdout.count("still wrong") == 1


@pytest.mark.parametrize(("version", "code"), [("0.26.0", 1), ("0.28.0", 1), ("0.32.0", 0)])
def test_check_on_other_releases(version: str, code: int, tmp_path: Path) -> None:
    """--check names each patch's state; a release that still needs an unfitting patch fails."""
    done = run("apply", slim_copy(version, tmp_path, TARGETS), "--check")
    assert done.returncode == code
    states = [line.split(": ")[:2] for line in done.stdout.splitlines() if ".patch: " in line]
    assert [name for _, name in states] == NAMES
    assert any(state in ("drifted", "missing") for state, _ in states) == bool(code)


def test_interrupted_tree_fails_check_and_show(root: Path) -> None:
    """A journal in the tree makes every reading command fail with the command that mends it."""
    staging = root / "vllm" / transaction.STAGING
    staging.mkdir()
    (staging / "journal.json").write_text("[]")
    for arguments in (["apply", root, "--check"], ["show", root]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"patches: {root}/vllm: an earlier apply was interrupted half-way and has not been"
            f" rolled back: run: python3 -m patches apply {root}\n"
        )
    assert run("apply", root).returncode == 0
    assert run("apply", root, "--check").returncode == 0


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("absent", "does not exist: name the folder that holds vllm/"),
        ("empty", "holds no vllm/ package: name site-packages or a vLLM checkout"),
        ("vllm-1.whl", "is a wheel: unpack it and name the folder that then holds vllm/"),
        ("file", "is a file: unpack it and name the folder that then holds vllm/"),
    ],
)
@pytest.mark.parametrize("command", [["apply"], ["apply", "--check"], ["show"]])
def test_what_is_no_tree_is_misuse(
    command: list[str], name: str, line: str, tmp_path: Path
) -> None:
    """A wrong ROOT is one line and exit code 2, for every command."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "vllm-1.whl").touch()
    (tmp_path / "file").touch()
    done = run(*command, tmp_path / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"patches: {tmp_path / name}: {line}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["apply"], "the following arguments are required: ROOT"),
        (["unapply"], "argument COMMAND: invalid choice: 'unapply'"),
        (["apply", ".", "--check", "--reverse"], "not allowed with argument --check"),
        (["apply", ".", "--fuzz=3"], "unrecognized arguments: --fuzz=3"),
        (["show", "--format", "xml"], "argument --format: invalid choice: 'xml'"),
    ],
)
def test_wrong_command_line_is_misuse(arguments: list[str], line: str) -> None:
    """A command line that cannot be understood exits 2 and says which part."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr.splitlines()[-1]


def test_show_is_the_provenance(root: Path) -> None:
    """show prints each patch's origin, hashes and end, and what the tree carries, as text or JSON."""
    run("apply", root)
    data = json.loads(run("show", root, "--format", "json").stdout)
    assert data["series"]["sha256"] == SHIPPED.sha256
    assert [patch["remove_when"] for patch in data["series"]["patches"]] == [
        f"the pin reaches vLLM >= {patch.upstream_since}" for patch in SHIPPED.patches
    ]
    assert data["tree"]["vllm_version"] == "0.27.1"
    assert data["tree"]["carried"] is True
    assert [found["seen"] for found in data["tree"]["status"]] == AFTER
    text = run("show", root).stdout
    for expected in (*NAMES, *AFTER, SHIPPED.sha256, "the series is carried", "pull/51145"):
        assert expected in text


def test_output_without_room_hides_nothing_that_was_done(root: Path) -> None:
    """Standard output on a full disk: exit 1 in one line, and the tree carries the series."""
    command = [sys.executable, "-m", "patches", "apply", str(root)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    line = "output: No space left on device; make room or name another file\n"
    assert (done.returncode, done.stderr) == (1, line)
    assert run("apply", root, "--check").returncode == 0


@pytest.mark.parametrize("kind", ["pipe", "device", "beyond any source"])
@pytest.mark.parametrize("words", [["apply"], ["apply", "--check"]], ids=" ".join)
def test_what_is_no_source_file_is_never_read(root: Path, kind: str, words: list[str]) -> None:
    """A pipe, a device or a huge file in the place of a target ends in one line, and at once."""
    target = root / TARGETS[0]
    target.unlink()
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "device":
        target.symlink_to("/dev/zero")
    else:
        with target.open("wb") as file:
            file.truncate(2**40)
    done = run(*words, root)
    assert done.returncode == 1
    assert "cannot be read: is no source file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def copy_program(folder: Path) -> None:
    """What `python3 -m patches show` is run from: the package, and what of `deploy` is below it."""
    for name in ("patches", "deploy/recipe"):
        shutil.copytree(REPOSITORY / name, folder / name)
    for file in (REPOSITORY / "deploy").glob("*.py"):
        shutil.copy2(file, folder / "deploy")


def test_show_says_what_the_build_of_an_image_proved(tmp_path: Path) -> None:
    """A provenance beside the package is shown: audit, level of the load check, what stopped it."""
    copy_program(tmp_path)
    proven = {
        "audit": {"trees": [{"arch": "A", "platform": "amd", "gaps": []}]},
        "load_check": {
            "level": "imported",
            "stopped_by": "OSError: no libamdhip64",
            "class_name": "module.Draft",
            "read": ["forward"],
            "required": ["forward", "model"],
        },
        "image": {"aiter": "0.1.19", "triton": "unknown"},
        "aiter": {"told": "AITER 0.1.19: not met"},
        "compile": {"verdict": "proven", "told": "kernels compiled: 63"},
    }
    (tmp_path / "provenance.json").write_text(json.dumps(proven))
    command = [sys.executable, "-m", "patches", "show"]
    text = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "A on amd: gaps: none" in text
    assert "module.Draft: imported, 1 of 2 attributes read" in text
    assert "no further: OSError: no libamdhip64" in text
    assert "the image  holds aiter 0.1.19, triton unknown" in text
    assert "AITER 0.1.19: not met" in text
    assert "kernels    proven: kernels compiled: 63" in text
    (tmp_path / "provenance.json").write_text("{}")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"patches: {tmp_path}/provenance.json: is not what the build")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "content", ["", "[", "null", '{"audit": {}}', "[" * 100_000], ids=lambda text: text[:9]
)
def test_a_provenance_that_is_none_is_told_in_one_line(tmp_path: Path, content: str) -> None:
    """A file that the build did not write: exit 1, its name, nothing on stdout."""
    copy_program(tmp_path)
    (tmp_path / "provenance.json").write_text(content)
    command = [sys.executable, "-m", "patches", "show"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"patches: {tmp_path}/provenance.json: is not what the build")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["apply", "show"])
def test_a_name_too_long_for_the_system_is_told_in_one_line(command: str) -> None:
    """Exit code 2, as for every ROOT that holds no vLLM."""
    done = run(command, f"/{'x' * 300}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "File name too long: name the folder that holds vllm/" in done.stderr
    assert len(done.stderr.splitlines()) == 1
