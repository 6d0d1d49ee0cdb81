"""The words of a told command: what its placeholders stand for, and what is said of a wrong one."""

from __future__ import annotations

import re

from deploy import recipe

# Words in capitals that stand for what a reader fills in, and a value that could be it.
PLACEHOLDERS = {
    "A": "a.json",
    "AFTER": "after",
    "B": "b.json",
    "BASE": "base:1",
    "BEFORE": "before",
    "FILE": "file",
    "HEALTH_BASE": "base:2",
    "HOST": "127.0.0.1",
    "JOB": "7",
    "LEVEL": "loaded",
    "LOGFILE": "server.log",
    "NAME": "mi355x",
    "NODE": "node-1",
    "SITE_PACKAGES": "site-packages",
    "TERM": "TERM",
    "TREE": "tree",
    "URL": "http://127.0.0.1:8000",
    "VERSION": recipe.load().vllm.version,
}
# `NAME=...` where any value is meant: one that could be given.
MEANT = {"PROFILE": "mi355x", "SMOKE_PROFILE": "mi355x"}

_PLACEHOLDER = re.compile(r"(?<!\w)[A-Z][A-Z_]*(?![\w=-])(\.\.\.)?")
OPTION = re.compile(r"^(-{1,2}[A-Za-z][\w-]*)(?:=(.*))?$", re.DOTALL)
_HIDDEN = frozenset({"POST", "GET"})


class Wrong(ValueError):
    """The command cannot be run as it stands; the message says why and what to do."""


def filled(word: str) -> str:
    """The word with its placeholders filled in. Raises Wrong for one that is not known."""

    def value(match: re.Match[str]) -> str:
        name = match[0].removesuffix("...")
        if name in _HIDDEN:
            return match[0]
        if name not in PLACEHOLDERS:
            raise Wrong(
                f"{name}: is no placeholder that is known; use one of {', '.join(PLACEHOLDERS)}, or"
                " add it to PLACEHOLDERS in tests/support/told_words.py"
            )
        return PLACEHOLDERS[name]

    return word if re.fullmatch(r"-\w", word) else _PLACEHOLDER.sub(value, word)


def value_of(name: str, value: str) -> str:
    """What a variable is set to, with what stands for it filled in."""
    return MEANT.get(name, "value") if value == "..." else filled(value)
