"""Unified diffs, parsed and applied strictly: exact line numbers, exact lines, no fuzz.

GNU patch searches for a hunk's context elsewhere in the file and may ignore some of it. Here a hunk
applies at the line it names or not at all, because the caller has already matched the file's hash.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = b"\\ "  # "\\ No newline at end of file", in whatever language diff spoke
_GIT_NOISE = (b"diff --git ", b"index ")  # carry no change of content or mode


class DiffError(ValueError):
    """The text is not a diff this module accepts, or it does not fit the content."""


@dataclass(frozen=True)
class Hunk:
    """One change. Line numbers count from 1; lines keep their line endings.

    `at_end`: fewer lines of context follow the change than lead to it, because the file ends there.
    """

    old_start: int
    old_lines: tuple[bytes, ...]
    new_start: int
    new_lines: tuple[bytes, ...]
    at_end: bool

    def reversed(self) -> "Hunk":
        """The hunk that undoes this one."""
        return Hunk(self.new_start, self.new_lines, self.old_start, self.old_lines, self.at_end)


@dataclass(frozen=True)
class FileDiff:
    """All hunks of one file, in the order of their lines."""

    path: str
    hunks: tuple[Hunk, ...]

    def apply(self, content: bytes, *, reverse: bool = False) -> bytes:
        """Return `content` with the hunks applied.

        Raises `DiffError` if any line differs from what the hunk expects at that line number, or if
        lines follow where the hunk has the file end, as GNU patch does.
        """
        lines = _split(content)
        result: list[bytes] = []
        taken = 0
        for hunk in (h.reversed() for h in self.hunks) if reverse else self.hunks:
            # "-5,0" names the line after which to insert, any other count the first line itself.
            start = hunk.old_start - 1 if hunk.old_lines else hunk.old_start
            end = start + len(hunk.old_lines)
            result += lines[taken:start]
            new_start = hunk.new_start - 1 if hunk.new_lines else hunk.new_start
            fits = tuple(lines[start:end]) == hunk.old_lines and len(result) == new_start
            if not fits or (hunk.at_end and end < len(lines)):
                raise DiffError(f"{self.path}: the hunk at line {hunk.old_start} does not fit")
            result += hunk.new_lines
            taken = end
        result += lines[taken:]
        return b"".join(result)


def parse(text: bytes) -> tuple[FileDiff, ...]:
    """Read the file sections of a unified diff.

    Raises `DiffError` for anything but changes of existing files below one relative path:
    creations, deletions, renames, mode changes, binary patches and trailing text are refused.
    """
    reader = _Reader(_split(text))
    diffs = tuple(_file_sections(reader))
    if not diffs:
        raise DiffError("the patch changes no file")
    return diffs


class _Reader:
    """Lines with a position, so that errors name the line of the diff."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self.number = 0

    def peek(self) -> bytes | None:
        return self._lines[self.number] if self.number < len(self._lines) else None

    def take(self) -> bytes:
        line = self.peek()
        if line is None:
            raise DiffError("the diff ends inside a hunk")
        self.number += 1
        return line


def _split(content: bytes) -> list[bytes]:
    """Split after each newline and nowhere else (`bytes.splitlines` also splits at a lone CR)."""
    return [line for line in re.split(rb"(?<=\n)", content) if line]


def _file_sections(reader: _Reader) -> Iterator[FileDiff]:
    while (line := reader.peek()) is not None:
        if line.startswith(_GIT_NOISE) or not line.strip():
            reader.take()
            continue
        yield _file_section(reader)


def _file_section(reader: _Reader) -> FileDiff:
    old = _path(reader.take(), b"--- ")
    new = _path(reader.take(), b"+++ ")
    if old != new:
        raise DiffError(f"{old} becomes {new}: a patch may only change existing files in place")
    hunks: list[Hunk] = []
    while (line := reader.peek()) is not None and line.startswith(b"@@"):
        hunks.append(_hunk(reader))
    if not hunks:
        raise DiffError(f"{old}: no hunk follows the file's header")
    return FileDiff(old, tuple(hunks))


def _path(line: bytes, prefix: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    if not line.startswith(prefix):
        raise DiffError(f"expected a line that starts with {prefix.decode()!r}, saw {text!r}")
    name = text[len(prefix) :].split("\t")[0]
    if name == "/dev/null":
        raise DiffError("a patch may only change existing files, not create or delete one")
    _, _, stripped = name.partition("/")  # as patch -p1 does
    parts = PurePosixPath(stripped).parts
    if not parts or ".." in parts or stripped.startswith("/"):
        raise DiffError(f"{name!r} is not a path below the tree")
    return stripped


def _hunk(reader: _Reader) -> Hunk:
    header = reader.take()
    match = _HUNK.match(header)
    if not match:
        raise DiffError(f"not a hunk header: {header.decode('utf-8', 'replace').strip()!r}")
    old_start, old_count, new_start, new_count = (
        int(group) if group is not None else 1 for group in match.groups()
    )
    old: list[bytes] = []
    new: list[bytes] = []
    tags = b""
    while len(old) < old_count or len(new) < new_count:
        tag, text = _hunk_line(reader)
        tags += tag
        if tag in b" -":
            old.append(text)
        if tag in b" +":
            new.append(text)
    if (len(old), len(new)) != (old_count, new_count):
        raise DiffError(f"the hunk at line {old_start} is longer than its header says")
    leading, trailing = (len(tags) - len(rest) for rest in (tags.lstrip(b" "), tags.rstrip(b" ")))
    return Hunk(old_start, tuple(old), new_start, tuple(new), trailing < leading)


def _hunk_line(reader: _Reader) -> tuple[bytes, bytes]:
    line = reader.take()
    tag, text = line[:1], line[1:]
    if tag not in (b" ", b"-", b"+"):
        raise DiffError(f"not a hunk line: {line.decode('utf-8', 'replace').rstrip()!r}")
    following = reader.peek()
    if following is not None and following.startswith(_NO_NEWLINE):
        reader.take()
        text = text.removesuffix(b"\n")
    return tag, text
