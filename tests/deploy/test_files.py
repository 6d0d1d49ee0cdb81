"""Files that users name: what is read of them, and that a report takes nothing from its place."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.files import SecretError, read_secret, read_text, why_not_writable, write_whole

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("raw", [b"a\r\n", b"\xef\xbb\xbfa\r\n"])
def test_the_mark_of_an_editor_is_no_text(tmp_path: Path, raw: bytes) -> None:
    """A file reads the same with a byte order mark and without."""
    path = tmp_path / "file"
    path.write_bytes(raw)
    assert read_text(path, 100) == "a\r\n"


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Longer than its limit is an error of the system's kind, and /dev/zero ends."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_text(path, 10) == "x" * 10
    for long, limit in ((path, 9), (Path("/dev/zero"), 1000)):
        with pytest.raises(OSError, match="File too large"):
            read_text(long, limit)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"s3cret", "s3cret"),
        (b"s3cret\r\n", "s3cret"),
        (b"\xef\xbb\xbfs3cret\n", "s3cret"),
        (b" \n", ""),
        (b"", ""),
    ],
)
def test_a_secret_is_the_one_word_of_its_file(tmp_path: Path, raw: bytes, word: str) -> None:
    """Line ends and an editor's mark are no part of it; an empty file holds none."""
    path = tmp_path / "key"
    path.write_bytes(raw)
    assert read_secret(path) == word


@pytest.mark.parametrize(
    "raw", [b"two words", b"a\nb", b"a\0b", b"caf\xc3\xa9", b"\xff\xfea\0", b"x" * 5000]
)
def test_what_no_header_can_carry_is_no_secret(tmp_path: Path, raw: bytes) -> None:
    """The refusal says what to write and shows nothing of what is there."""
    path = tmp_path / "key"
    path.write_bytes(raw)
    with pytest.raises(SecretError) as refused:
        read_secret(path)
    assert str(refused.value) == "holds no secret; write one line of ASCII into it"


def test_a_key_file_without_end_is_refused() -> None:
    """/dev/zero is read no further than a secret can be long."""
    with pytest.raises(SecretError):
        read_secret(Path("/dev/zero"))


def test_a_written_file_is_whole_and_alone(tmp_path: Path) -> None:
    """Folders are made, an older file is replaced, nothing unfinished is left."""
    path = tmp_path / "made" / "report"
    for text in ("first", "second"):
        write_whole(path, text)
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    """Text that is not UTF-8 fails, and the report of before is still there, alone."""
    path = tmp_path / "report"
    write_whole(path, "first")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    """`latest.json -> run-7.json` still is a link afterwards."""
    link, target = tmp_path / "latest", tmp_path / "elsewhere" / "report"
    target.parent.mkdir()
    link.symlink_to(target)
    write_whole(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """A pipe where a report goes is not replaced by a file, as a rename would do to /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert why_not_writable(pipe) == ""
        write_whole(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_standard_output_may_be_named() -> None:
    """/dev/stdout takes a report although nobody may make files in /dev."""
    script = (
        "from pathlib import Path; from deploy.files import *; path = Path('/dev/stdout');"
        "print(why_not_writable(path)); write_whole(path, 'text')"
    )
    ran = subprocess.run(
        [sys.executable, "-u", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "\ntext"), ran.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (".", "is a folder"),
        ("file/report", "file is not a folder"),
        ("x" * 300, "File name too long"),
        ("new/report", ""),
    ],
)
def test_what_cannot_be_written_is_known_before(tmp_path: Path, name: str, told: str) -> None:
    """Why, in words that follow the path; empty where nothing speaks against it."""
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path / name).endswith(told)
    assert bool(why_not_writable(tmp_path / name)) == bool(told)
