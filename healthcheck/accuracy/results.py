"""What an accuracy test found: scores, needles, and the JSON that keeps them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from healthcheck.accuracy.score import (
    Score,
    answers_to_tell,
    chance_of_bad,
    sees_below,
    told_from,
)
from healthcheck.smoke.results import Report as SmokeReport

SCHEMA = 1
# Of the smoke test alone; this one does not measure them.
NOT_OURS = frozenset({"acceptance", "reference", "levels", "long_prompts", "speed_up", "cause"})
# GSM8K with and without the experts' clamp (sglang issue 39920).
CLAMPED, UNCLAMPED = 0.936, 0.928


@dataclass(frozen=True)
class Needles:
    """The needles of one length: how many were asked for, found, and found at the first try; how
    long they took together."""

    prompt_tokens: int
    asked: int
    found: int
    found_at_first: int
    seconds: float


@dataclass
class Report(SmokeReport):
    """The rows that every report has, the scores behind them, and the tasks' seed."""

    seed: int = 1
    scores: list[Score] = field(default_factory=list)
    needles: list[Needles] = field(default_factory=list)

    def as_json(self) -> str:
        """The report as JSON text."""
        own = {name: value for name, value in super().as_table().items() if name not in NOT_OURS}
        data = {
            **own,
            "schema": SCHEMA,
            "kind": "accuracy",
            "scores": [_score(score) for score in self.scores],
            "limits": self.limits(),
        }
        return json.dumps(data, indent=2) + "\n"

    def limits(self) -> list[str]:
        """What the scores do not see, reckoned from how many tasks there were."""
        return [*(_sees(score) for score in self.scores if score.answered), *_ALWAYS]


def _score(score: Score) -> dict[str, object]:
    low, high = score.interval
    return {
        "name": score.name,
        "outcome": score.outcome,
        "right": score.right,
        "answered": score.answered,
        "failed": score.failed,
        "rate": score.rate,
        "low": low,
        "high": high,
        "floor": score.floor,
        "source": score.source,
        "sees_below": sees_below(score.answered, score.floor),
    }


def _sees(score: Score) -> str:
    tasks, floor = score.answered, score.floor
    return (
        f"{score.name}: {tasks} tasks call a server bad nine times in ten if it solves "
        f"{sees_below(tasks, floor):.1%} of such, and {chance_of_bad(tasks, floor, floor):.1%} of "
        f"the time if it solves {floor:.0%}. Two runs tell {score.rate:.1%} from "
        f"{told_from(tasks, score.rate):.1%}, nothing closer"
    )


_ALWAYS = (
    "GSM8K alone passes the two worst faults of the pinned vLLM on AMD cards. Its prompts end "
    "before 2,048 tokens, from where on attention chooses (vLLM issue 52109): needles see that",
    f"Experts without their clamp solve {UNCLAMPED:.1%} of GSM8K instead of {CLAMPED:.1%} (sglang "
    f"issue 39920), above its floor. To tell the two apart takes "
    f"{answers_to_tell(CLAMPED, UNCLAMPED):,} answers of each, so no score here is proof against "
    "it: python3 -m patches apply SITE_PACKAGES --check says whether a server has the patch",
)
