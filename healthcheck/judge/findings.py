"""What a check has found, and what several findings come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

QUESTION = "question"  # the check of question.py
MAY_BE_INCONCLUSIVE = frozenset({"sampling", "second seed", "apart", QUESTION})


class Outcome(StrEnum):
    """What a check found; UNKNOWN is not bad."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


# The worse, the higher.
GRAVITY = {Outcome.GOOD: 0, Outcome.UNKNOWN: 1, Outcome.BAD: 2}


class Step(StrEnum):
    """What a generation is for."""

    WARM_UP = "warm-up"
    PROBE = "probe"
    SECOND_SEED = "second-seed"
    TOP_P = "top-p"
    QUESTION = "question"
    LONG = "long"
    AT_ONCE = "at-once"
    EVERY_ENGINE = "every-engine"
    CANARY = "canary"
    RECOVERY = "recovery"
    IDLE = "idle"


@dataclass(frozen=True)
class Finding:
    """One check's result. `code` is a reason of reasons.tsv, empty when good."""

    check: str
    outcome: Outcome
    code: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)


def worst(findings: Sequence[Finding]) -> Outcome:
    """BAD if any check is; UNKNOWN if a check that a pass needs could not be made; else GOOD.

    Sampling mode and second seed may stay inconclusive: a text that is nearly certain comes out
    the same either way. So may the question: not every server chats.
    """
    if any(f.outcome is Outcome.BAD for f in findings):
        return Outcome.BAD
    needed = [f for f in findings if f.check not in MAY_BE_INCONCLUSIVE]
    if not needed or any(f.outcome is Outcome.UNKNOWN for f in needed):
        return Outcome.UNKNOWN
    return Outcome.GOOD


def missed(findings: Sequence[Finding]) -> bool:
    """Whether nothing is bad but that a needle or an answer was missed, which sampling alone can
    do."""
    bad = [f.check for f in findings if f.outcome is Outcome.BAD]
    return bad in (["needle"], [QUESTION])
