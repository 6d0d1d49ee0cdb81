"""Every reason a verdict can give: its code, what it means, what to do, and whose fault it is.

All of them are data in reasons.tsv.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    """Whose fault a reason is."""

    SERVER = "server"
    MODEL = "model"
    SPECULATION = "speculation"
    CONFIGURATION = "configuration"
    UNKNOWN = "unknown"  # we could not tell
    STATE = "state"  # nobody's: the ordinary course of things


@dataclass(frozen=True)
class Reason:
    """One row of the table."""

    code: str
    kind: Kind
    meaning: str
    remedy: str


def _load() -> Iterator[tuple[str, Reason]]:
    """The rows of reasons.tsv with who says them: a verdict, or a test alone."""
    text = Path(__file__).with_suffix(".tsv").read_text("utf-8")
    rows = [line.split("\t") for line in text.splitlines() if line[0] != "#"]
    for code, kind, said_by, meaning, remedy in rows[1:]:
        yield said_by, Reason(code, Kind(kind), meaning, remedy)


_ROWS = tuple(_load())
REASONS: Mapping[str, Reason] = {r.code: r for said_by, r in _ROWS if said_by == "verdict"}
#: What only the smoke test and the accuracy test say.
SMOKE_REASONS: Mapping[str, Reason] = {r.code: r for said_by, r in _ROWS if said_by == "test"}

# What an answer that is no text at all is called. HIP graphs that replay wrongly give it for the
# whole life of a process, and the next process may be well (ROCm/clr issue 279). A needle that is
# missed past 2,048 tokens only is not among them: that does not change with the process.
GARBAGE = frozenset({
    "numerics.nan", "numerics.not_finite", "numerics.constant",
    "text.empty", "text.one_token", "text.loop", "text.garbage", "text.needle_missed",
    "question.wrong",
})  # fmt: skip


def reason(code: str) -> Reason | None:
    """The row of a code in either table, None for none."""
    return SMOKE_REASONS.get(code) or REASONS.get(code)


def remedy(code: str) -> str:
    """What to do about a code, empty for none."""
    found = reason(code)
    return found.remedy if found else ""


@dataclass(frozen=True)
class Note:
    """A reason as it applies now: its code and one line of detail."""

    code: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise KeyError(self.code)

    @property
    def reason(self) -> Reason:
        """The table's row."""
        return REASONS[self.code]

    def __str__(self) -> str:
        return f"{self.code} ({self.detail})" if self.detail else self.code
