"""The series as data: what the shipped one says, and what a malformed one is refused for."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from patches import series
from patches.errors import SeriesError
from patches.patch import Probe
from tests.support.made_series import MadePatch, sha256, snapshot, write_series
from tests.support.vllm_trees import tree

BEFORE, AFTER = b"a = 1\nb = 2\n", b"a = 1\nb = 3\n"
FILE = "vllm/x.py"
ONE = MadePatch("0001-one.patch", {FILE: (BEFORE, AFTER)})
NO_HASH = "0" * 64
LATER = ["0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]


def _load_with(folder: Path, old: str, new: str) -> None:
    """Load a good series of one patch in which `old` is replaced by `new`."""
    write_series(folder, [ONE])
    path = folder / ONE.name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    series.load(folder)


def test_shipped_series_is_valid_and_says_when_to_go() -> None:
    """The shipped patches load, in order, each with an origin and the release that replaces it."""
    shipped = series.load()
    assert {patch.name[:4]: patch.upstream_since for patch in shipped.patches} == {
        "0001": "0.28.0",
        "0002": "0.29.0",
        "0003": "0.28.0",
        "0004": "0.31.0",
        "0005": "0.32.0",
        "0006": "0.30.0",
        "0007": "0.28.0",
        "0008": "0.28.0",
        "0009": "0.28.0",
    }
    numbers = [patch.name[:4] for patch in shipped.patches]
    assert numbers == sorted(numbers)
    for patch in shipped.patches:
        assert patch.origin.startswith(
            ("upstream, https://github.com/vllm-project/vllm/", "vendor,")
        )
        assert (patch.upstream_url or "").startswith("https://github.com/vllm-project/vllm/")


def test_first_patch_gives_the_file_of_the_next_release() -> None:
    """The patched AMD file is, byte for byte, the one vLLM 0.28.0 ships (PR 51145)."""
    (target,) = series.load().patches[0].targets
    patched = target.diff.apply((tree("0.27.1") / target.path).read_bytes())
    assert patched == (tree("0.28.0") / target.path).read_bytes()
    assert hashlib.sha256(patched).hexdigest() == target.pairs[0].after


@pytest.mark.parametrize("version", ["0.25.1", *LATER])
def test_headers_name_the_releases_they_fit(version: str) -> None:
    """A release is listed beside a before-hash exactly if its file has that hash."""
    for patch in series.load().patches:
        for target in patch.targets:
            path = tree(version) / target.path
            seen = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
            listed = [pair.before for pair in target.pairs if version in pair.releases]
            assert listed == ([seen] if target.pair_from(seen or "") else [])


@pytest.mark.parametrize("version", LATER)
def test_probes_tell_which_release_has_a_change(version: str) -> None:
    """The upstream probe holds in the first release said to carry the change and in later ones."""
    release = tuple(map(int, version.split(".")))
    for patch in series.load().patches:
        since = tuple(map(int, (patch.upstream_since or "").split(".")))
        for target in patch.targets:
            assert target.probe is not None
            holds = target.probe.holds((tree(version) / target.path).read_bytes())
            assert holds == (release >= since), (patch.name, version)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_checkout_that_converts_line_ends_leaves_the_patches(tmp_path: Path) -> None:
    """With git's autocrlf, which would break every hash, the files keep their bytes."""
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(series.FOLDER, here / "patches", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(series.FOLDER.parent / ".gitattributes", here)
    who = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for command in (
        ["init", "--quiet", str(here)],
        ["-C", str(here), "add", "."],
        ["-C", str(here), *who, "commit", "--quiet", "--message", "all"],
        ["-c", "core.autocrlf=true", "clone", "--quiet", str(here), str(there)],
    ):
        subprocess.run(["git", *command], check=True, timeout=60)
    assert snapshot(there / "patches") == snapshot(here / "patches")
    assert series.load(there / "patches").sha256 == series.load().sha256


def test_series_hash_changes_with_any_patch(tmp_path: Path) -> None:
    """Two series whose patches differ in one byte have different hashes."""
    first = series.load(write_series(tmp_path, [ONE])).sha256
    path = tmp_path / ONE.name
    path.write_text(path.read_text().replace("made for a test", "made for a Test"))
    assert series.load(tmp_path).sha256 != first


def test_comments_and_blank_lines_are_allowed(tmp_path: Path) -> None:
    """A series file may hold comments, as quilt's may."""
    write_series(tmp_path, [ONE])
    (tmp_path / "series").write_text(f"# why\n\n{ONE.name}  # because\n")
    assert [patch.name for patch in series.load(tmp_path).patches] == [ONE.name]


def test_description_keeps_its_lines(tmp_path: Path) -> None:
    """Continuation lines lose one space, and ' .' stands for an empty line."""
    write_series(tmp_path, [ONE])
    path = tmp_path / ONE.name
    path.write_text(path.read_text().replace("a test\n", "a test\n because\n .\n  of that\n"))
    assert series.load(tmp_path).patches[0].description == "made for a test\nbecause\n\n of that"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "lists no patch"),
        ("0001-one.patch\n0001-one.patch\n", "line 2: 0001-one.patch is listed twice"),
        ("0001-one.patch\n0002.patch\n", "line 2: 0002.patch does not exist in"),
        ("../0001-one.patch\n", "line 1: '../0001-one.patch' is not the name of a .patch file"),
        ("0001-one.diff\n", "line 1: '0001-one.diff' is not the name of a .patch file"),
    ],
)
def test_bad_series_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """A series file that names what is not there, or names it twice, is refused with its line."""
    write_series(tmp_path, [ONE])
    (tmp_path / "series").write_text(content)
    with pytest.raises(SeriesError) as caught:
        series.load(tmp_path)
    assert message in str(caught.value)


def test_absent_series_file_is_refused(tmp_path: Path) -> None:
    """A folder without a series file is named, with the reason."""
    with pytest.raises(SeriesError, match=r"series: cannot be read: No such file or directory"):
        series.load(tmp_path)


def test_stray_patch_is_refused(tmp_path: Path) -> None:
    """A patch file that the series does not list is an error, not silently left out."""
    write_series(tmp_path, [ONE])
    (tmp_path / "0009-stray.patch").write_text("")
    with pytest.raises(SeriesError, match=r"0009-stray\.patch: not listed in series: add its name"):
        series.load(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("---\n---", "---", "no line '---' ends the header"),
        ("Description", "Deskription", "Deskription: unknown field; known: Description, Origin,"),
        ("X-Target", "X-Targets", "X-Targets: unknown field"),
        ("Origin: vendor", "vendor", "'vendor, https://example.invalid/1' is not a header field"),
        ("Origin: vendor, https://example.invalid/1\n", "", "the field Origin is missing"),
        ("2026-01-02", "2 January", "Last-Update: '2 January' is not a date YYYY-MM-DD"),
        ("Last-Update", "Origin: x\nLast-Update", "Origin: given twice"),
        ("9.0.0, https", "soon, https", "is not 'VERSION, https://...'"),
        ("X-Target: vllm/", "X-Target: /vllm/", "'/vllm/x.py' is not a plain path below vllm/"),
        ("X-Target: vllm/", "X-Target: vllm/../", "is not a plain path below vllm/"),
        ("X-Target: vllm/x", "X-Target: vllm/y", "vllm/y.py is declared but the patch does not"),
        ("X-Target: vllm/x.py\n", "", "X-Sha256 stands before the first X-Target"),
        (" -> ", " to ", "is not 'BEFORE -> AFTER (RELEASES)', two sha256 of 64 hex digits"),
        (" -> ", "0 -> ", "is not 'BEFORE -> AFTER (RELEASES)'"),
        (" (1.0.0)", "", "is not 'BEFORE -> AFTER (RELEASES)'"),
        ("Probe: text", "Probe: smell", "is neither 'class-attribute CLASS.NAME' nor 'text STR"),
        ("Probe: text upstream has it", "Probe: text", "X-Upstream-Probe: 'text' is neither"),
        ("X-Upstream-Probe: text upstream has it\n", "", "vllm/x.py has no X-Upstream-Probe"),
        (
            "X-Upstream-Probe: text",
            "X-Upstream-Probe: text a\nX-Upstream-Probe: text",
            "X-Upstream-Probe: given twice for vllm/x.py",
        ),
        ("---\n---", "X-Target: vllm/x.py\n---\n---", "X-Target: vllm/x.py is declared twice"),
        (f"{sha256(BEFORE)} ->", f"{sha256(AFTER)} ->", "before and after are the same hash"),
        ("+++ b/vllm/x", "+++ b/vllm/y", "vllm/x.py becomes vllm/y.py"),
        ("-b = 2", "*b = 2", "not a hunk line"),
    ],
)
def test_bad_patch_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Each way a patch file can be wrong gives one line with the file, the field and the value."""
    with pytest.raises(SeriesError) as caught:
        _load_with(tmp_path, old, new)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / ONE.name}: ")
    assert "\n" not in str(caught.value)


def test_undeclared_file_is_refused(tmp_path: Path) -> None:
    """A patch body that touches a file without an X-Target is refused."""
    body = "--- a/vllm/other.py\n+++ b/vllm/other.py\n@@ -1 +1 @@\n-a\n+b\n"
    write_series(tmp_path, [ONE])
    (tmp_path / ONE.name).write_text(ONE.text() + body)
    with pytest.raises(SeriesError, match=r"changes vllm/other\.py, which no X-Target declares"):
        series.load(tmp_path)


def test_header_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 give the one line, not a traceback."""
    write_series(tmp_path, [ONE])
    (tmp_path / ONE.name).write_bytes(b"Description: \xff\n---\n")
    with pytest.raises(SeriesError, match=r"the header is not UTF-8 at byte 13"):
        series.load(tmp_path)


def test_hashes_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    """A patch that leads back to an earlier hash of the file leaves the file's state unsaid."""
    back = MadePatch("0002-back.patch", {FILE: (AFTER, BEFORE)})
    write_series(tmp_path, [ONE, back])
    with pytest.raises(SeriesError, match=r"0002-back\.patch: X-Sha256: .* also a hash before it"):
        series.load(tmp_path)


def test_one_patch_may_fit_several_releases(tmp_path: Path) -> None:
    """A target may state several pairs, but no before- or after-hash twice."""
    pair = f"X-Sha256: {NO_HASH} -> {'1' * 64} (0.9.0, 0.9.1)\n"
    write_series(tmp_path, [ONE])
    path = tmp_path / ONE.name
    path.write_text(ONE.text().replace("X-Upstream", pair + "X-Upstream"))
    (target,) = series.load(tmp_path).patches[0].targets
    assert [found.releases for found in target.pairs] == [("1.0.0",), ("0.9.0", "0.9.1")]
    path.write_text(ONE.text().replace("X-Upstream", pair + pair + "X-Upstream"))
    with pytest.raises(SeriesError, match=r"vllm/x\.py has the same before-hash twice"):
        series.load(tmp_path)


@pytest.mark.parametrize(
    ("probe", "content", "holds"),
    [
        (Probe("class-attribute", "C.a"), b"class C:\n    a = None\n", True),
        (Probe("class-attribute", "C.a"), b"class C:\n    a: int = 1\n", True),
        (Probe("class-attribute", "C.a"), b"class C:\n    a: int\n", False),
        (Probe("class-attribute", "C.a"), b"class C:\n    # a = None\n    b = 1\n", False),
        (Probe("class-attribute", "C.a"), b"class D:\n    a = None\n", False),
        (Probe("class-attribute", "C.a"), b"class C:\n    def f(self):\n        a = 1\n", False),
        (Probe("class-attribute", "C.a"), b"class C(:\n", False),
        (Probe("text", "a = 1"), b"a = 1", True),
        (Probe("text", "a = 1"), b"a = 2", False),
    ],
)
def test_probe(probe: Probe, content: bytes, holds: bool) -> None:
    """A probe sees an assignment in the class's own body, or the text; not a look-alike."""
    assert probe.holds(content) is holds
