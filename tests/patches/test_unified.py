"""The diff reader and its strict applier, against hand-made diffs, random texts and GNU patch."""

import difflib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patches import unified

BEFORE = b"one\ntwo\nthree\nfour\nfive\n"
DIFF = b"""\
--- a/vllm/x.py
+++ b/vllm/x.py
@@ -2,3 +2,4 @@ some function
 two
-three
+3
+3.5
 four
"""

# Few distinct lines, so that a wrong place often looks right; a lone CR is not a line's end.
texts = st.lists(st.sampled_from(["a", "b", "", "b\rb", "\x0c"]), max_size=12).map(
    lambda lines: "".join(f"{line}\n" for line in lines)
)


def _diff(before: str, after: str, context: int) -> bytes:
    old, new = ([line + "\n" for line in text.split("\n")[:-1]] for text in (before, after))
    return "".join(difflib.unified_diff(old, new, "a/vllm/x", "b/vllm/x", n=context)).encode()


@pytest.mark.parametrize(("content", "fits"), [(b"a\n", True), (b"a\nb\n", False)])
def test_a_change_at_the_end_of_the_file_applies_there_only(content: bytes, fits: bool) -> None:
    """Where no context follows a change the file must end, as GNU patch has it."""
    (diff,) = unified.parse(b"--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n a\n+b\n")
    if fits:
        assert diff.apply(content) == b"a\nb\n"
        assert diff.apply(b"a\nb\n", reverse=True) == content
        return
    with pytest.raises(unified.DiffError, match="line 1 does not fit"):
        diff.apply(content)


@pytest.mark.parametrize(
    "content",
    [
        b"zero\n" + BEFORE,  # GNU patch would find the hunk one line lower
        BEFORE.replace(b"two", b"TWO"),  # and would fuzz this context away
        BEFORE.replace(b"three", b"three "),
        BEFORE.replace(b"\n", b"\r\n"),
        b"",
        b"one\ntwo\n",
    ],
)
def test_shifted_or_altered_content_is_refused(content: bytes) -> None:
    """No offset and no fuzz: a hunk whose exact lines are not at its line number does not apply."""
    (diff,) = unified.parse(DIFF)
    with pytest.raises(unified.DiffError, match=r"the hunk at line 2 does not fit"):
        diff.apply(content)


def test_missing_newline_at_the_end_of_the_file_is_kept() -> None:
    """The marker for a missing last newline holds for the line before it, on either side."""
    text = (
        b"--- a/vllm/x\n+++ b/vllm/x\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
    )
    (diff,) = unified.parse(text)
    assert diff.apply(b"a\nb") == b"a\nc\n"
    assert diff.apply(b"a\nc\n", reverse=True) == b"a\nb"
    with pytest.raises(unified.DiffError):
        diff.apply(b"a\nb\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the patch changes no file"),
        (b"hello\n", r"expected a line that starts with '--- ', saw 'hello'"),
        (b"--- a/vllm/x\n", "the diff ends inside a hunk"),
        (b"--- a/vllm/x\n+++ b/vllm/x\n", "no hunk follows"),
        (b"--- a/vllm/x\n+++ b/vllm/y\n@@ -1 +1 @@\n-a\n+b\n", "vllm/x becomes vllm/y"),
        (b"--- /dev/null\n+++ b/vllm/x\n@@ -0,0 +1 @@\n+a\n", "not create or delete one"),
        (b"--- a/vllm/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "not create or delete one"),
        (b"--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "is not a path below the tree"),
        (b"--- a//x\n+++ b//x\n@@ -1 +1 @@\n-a\n+b\n", "is not a path below the tree"),
        (b"--- a/x\n+++ b/x\n@@ nonsense @@\n", "not a hunk header"),
        (b"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n", "the diff ends inside a hunk"),
        (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n-b\n+c\n", "longer than its header says"),
        (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\ntrailing\n", "saw 'trailing'"),
        (b"--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n\n+b\n", "not a hunk line: ''"),
        (b"old mode 100644\nnew mode 100755\n", "saw 'old mode 100644'"),
        (b"rename from a\nrename to b\n", "saw 'rename from a'"),
    ],
)
def test_anything_but_a_plain_change_is_refused(text: bytes, message: str) -> None:
    """A diff that creates, deletes, renames, escapes the tree or is cut short is not accepted."""
    with pytest.raises(unified.DiffError, match=message):
        unified.parse(text)


@given(before=texts, after=texts, context=st.integers(0, 3))
def test_any_diff_leads_there_and_back(before: str, after: str, context: int) -> None:
    """The diff of any two texts turns the first into the second, and reversed the second back."""
    if before == after:
        return
    (diff,) = unified.parse(_diff(before, after, context))
    assert diff.apply(before.encode()) == after.encode()
    assert diff.apply(after.encode(), reverse=True) == before.encode()


@pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is not installed")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=texts, after=texts, other=texts)
def test_what_applies_here_gnu_patch_applies_alike(
    tmp_path: Path, before: str, after: str, other: str
) -> None:
    """Whatever this applier accepts, `patch --fuzz=0` accepts with the same result."""
    if before == after:
        return
    text = _diff(before, after, 3)
    (diff,) = unified.parse(text)
    for content in {before, other}:
        try:
            expected = diff.apply(content.encode())
        except unified.DiffError:
            continue
        target = tmp_path / "vllm" / "x"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content.encode())
        done = subprocess.run(
            ["patch", "-p1", "--fuzz=0", "--binary", "--batch", "--forward", "--silent"],
            cwd=tmp_path,
            input=text,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        # GNU patch removes a file that a patch empties.
        assert (target.read_bytes() if target.exists() else b"") == expected
