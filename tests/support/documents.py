"""Reads the documents: their code blocks, their inline code, and the commands told in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = ("build", "dist", "mutants", "node_modules")
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part in NOT_OURS or part[0] == "." for part in path.relative_to(ROOT).parts)
)
# What instructs a reader; the changelog tells what was.
GUIDES = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
# Written by programs from tables and measurements.
GENERATED = ("healthcheck/REASONS.md", "healthcheck/FIGURES.md")

SHELL = ("sh", "console")
OTHER = ("json", "mermaid", "text", "toml", "yaml")

_FENCE = re.compile(r"^ *(```+|~~~+) *(\S*)")
_LIST = re.compile(r"^ *([-*+]|\d+[.)]) ")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_SEPARATORS = ("&&", "||", "|", ";", "&")


@dataclass(frozen=True)
class Place:
    """A line of a document."""

    document: Path
    line: int

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Block:
    """A code block; `place` is its first line. An indented block has no language."""

    place: Place
    language: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its lines as a text."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True)
class Span:
    """Inline code, its white space as a reader sees it."""

    place: Place
    text: str


@dataclass(frozen=True)
class Command:
    """A simple command: what is set for it, and its words; pipes and `&&` are taken apart."""

    place: Place
    text: str
    environment: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def blocks(document: Path, text: str | None = None) -> Iterator[Block]:
    """Fenced blocks, and indented ones outside of lists."""
    lines = (document.read_text("utf-8") if text is None else text).splitlines()
    at, in_list = 0, False
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next(
                (n for n in range(at + 1, len(lines)) if lines[n].strip() == fence[1]), len(lines)
            )
            indent = len(lines[at]) - len(lines[at].lstrip())
            inside = tuple(line[min(indent, len(line)) :] for line in lines[at + 1 : end])
            yield Block(Place(document, at + 2), fence[2], inside)
            at = end + 1
            continue
        if _LIST.match(lines[at]):
            in_list = True
        elif lines[at].strip() and not lines[at].startswith(" "):
            in_list = False
        follows_blank = at == 0 or not lines[at - 1].strip()
        if lines[at].startswith("    ") and lines[at].strip() and follows_blank and not in_list:
            rest = range(at, len(lines))
            end = next((n for n in rest if not lines[n].startswith("    ")), len(lines))
            yield Block(Place(document, at + 1), "", tuple(s[4:] for s in lines[at:end]))
            at = end
            continue
        at += 1


def prose(document: Path, text: str | None = None) -> str:
    """The document with its code blocks left blank, line by line."""
    whole = document.read_text("utf-8") if text is None else text
    lines = whole.splitlines()
    for block in blocks(document, whole):
        first = block.place.line - 1
        lines[first : first + len(block.lines)] = [""] * len(block.lines)
        if block.language or (first and _FENCE.match(lines[first - 1])):
            lines[first - 1] = ""
            if first + len(block.lines) < len(lines):
                lines[first + len(block.lines)] = ""
    return "\n".join(lines) + "\n"


def spans(document: Path, text: str | None = None) -> Iterator[Span]:
    """Inline code, in tables too."""
    left = prose(document, text)
    for match in _SPAN.finditer(left):
        shown = " ".join(match[2].replace("\\|", "|").split())
        yield Span(Place(document, left.count("\n", 0, match.start()) + 1), shown)


def commands(document: Path, programs: Collection[str], text: str | None = None) -> list[Command]:
    """Every command told: in shell blocks, and inline where the code begins with a program and has
    more than its name, or holds an option."""
    told: list[Command] = []
    for block in blocks(document, text):
        if block.language in SHELL:
            for number, line in _whole_lines(block):
                told += split(Place(document, block.place.line + number), line)
    for span in spans(document, text):
        words = _words(span.text)
        while words and _ASSIGNMENT.match(words[0]):
            words = words[1:]
        begins = bool(words) and words[0].rpartition("/")[2] in programs and len(words) > 1
        optioned = any(re.match(r"--[a-z]", word) for word in words[1:])
        if begins or (optioned and not span.text.startswith("-")):
            told += split(span.place, span.text)
    return told


def split(place: Place, line: str) -> Iterator[Command]:
    """The simple commands of a shell line, without comments and redirections."""
    words: list[str] = []
    tokens = iter(_words(line))
    for token in tokens:
        if token in _SEPARATORS:
            yield from _simple(place, line, words)
            words = []
        elif token and set(token) <= set("<>&"):
            next(tokens, None)
        else:
            words.append(token)
    yield from _simple(place, line, words)


def _simple(place: Place, line: str, words: list[str]) -> Iterator[Command]:
    given: list[tuple[str, str]] = []
    rest = list(words)
    while rest and (match := _ASSIGNMENT.match(rest[0])):
        given.append((match[1], match[2]))
        rest.pop(0)
    if rest:
        shown = " ".join(line.split())
        yield Command(place, shown, tuple(given), tuple(rest))


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # prose with an apostrophe
        return line.split()


def _whole_lines(block: Block) -> Iterator[tuple[int, str]]:
    """Lines of a shell block with their number, continued ones joined, output left out."""
    begun: tuple[int, str] | None = None
    for number, line in enumerate(block.lines):
        if begun is None and block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        elif begun is not None and block.language == "console":
            line = line.removeprefix("> ")
        first, text = begun or (number, "")
        text += line
        if text.endswith("\\"):
            begun = (first, text[:-1])
            continue
        begun = None
        if text.strip():
            yield first, text
    if begun is not None:
        yield begun
