"""Texts of a server, made fit for a terminal, for XML and for HTML."""

from __future__ import annotations

import html
import re
import traceback
from pathlib import Path

# What XML 1.0 may not hold even as a reference, and what a terminal would obey.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """The text with a replacement character for every control character and lone surrogate."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(value: object) -> str:
    """A value as text of an HTML page, cleaned."""
    return html.escape(clean(str(value)))


def fault(error: BaseException) -> str:
    """An error of our own on one line: its type, its message, and where it came up."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return one_line(f"{type(error).__name__}: {error}"[:200]) + at


def one_line(text: str) -> str:
    """The same on one line."""
    return " ".join(clean(text).split())


def short(text: str, width: int = 40) -> str:
    """The beginning of a text, on one line, in quotes."""
    return repr(" ".join(text.split())[:width])
