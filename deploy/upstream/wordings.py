"""Which texts of healthcheck/explain/signatures.tsv stand in the sources of a vLLM.

Of a signature only its fixed texts can be looked for. A text that stands in no source may be
composed when it is logged, or be torch's, ROCm's or Python's: of it nothing is said. So two trees
are asked, and what stood in the earlier one and stands no more has lost its line, or its wording.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from healthcheck.explain import signatures

# Where a string goes on: a quote, the end of a line, and the next literal with its prefix.
_JOINT = re.compile(r"""["'][ \t]*\n[ \t]*[rf]{0,2}["']""")


@dataclass(frozen=True)
class Wordings:
    """`gone`: id and text of what stands in the earlier sources only; `kept` of both; `untold` of
    neither."""

    earlier: str
    gone: tuple[tuple[str, str], ...]
    kept: int
    untold: int


def compare(root: Path, earlier_root: Path, earlier: str) -> Wordings:
    """The texts in the tree at `root` and in that of the release `earlier`; both hold ``vllm/``."""
    texts = [(s.id, text) for s in signatures.load() for text in s.literals]
    before, now = (_standing(where, {t for _, t in texts}) for where in (earlier_root, root))
    return Wordings(
        earlier=earlier,
        gone=tuple(each for each in texts if each[1] in before - now),
        kept=sum(text in before & now for _, text in texts),
        untold=sum(text not in before for _, text in texts),
    )


def _standing(root: Path, texts: set[str]) -> set[str]:
    """Those of the texts that a Python file of the package says, also over several lines."""
    found: set[str] = set()
    for path in (root / "vllm").rglob("*.py"):
        source = _JOINT.sub("", path.read_text("utf-8", errors="replace"))
        found |= {text for text in texts - found if text in source}
    return found
