"""Answers beside each other: two seeds, several at once, prompts of growing length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from healthcheck.judge.answer import ARGMAX_CHANCE
from healthcheck.judge.findings import GRAVITY, Finding, Outcome
from healthcheck.judge.reading import Completion

# DeepSeek V4's indexer picks 512 groups of 4 tokens: in a prompt up to here each of them, be its
# scores right or wrong.
PICKED_TOKENS = 2048
# A right model may miss a needle by sampling: only a second one of the same length is decisive.
MISSES = 2


def differs(first: Completion, second: Completion) -> Finding:
    """Whether two seeds gave two texts of one prompt."""
    if first.tokens != second.tokens:
        return Finding("second seed", Outcome.GOOD)
    # A text that was nearly certain comes again under any seed.
    chance = chance_of(first)
    evidence = {"chance_of_equal_texts": chance}
    if chance is None or chance >= ARGMAX_CHANCE:
        return Finding("second seed", Outcome.UNKNOWN, "sampling.seed_ignored", evidence)
    return Finding("second seed", Outcome.BAD, "sampling.seed_ignored", evidence)


def chance_of(completion: Completion) -> float | None:
    """The probability of a text under sampling, None without logprobs."""
    return math.exp(min(sum(completion.logprobs), 0.0)) if completion.logprobs else None


def ladder(findings: Sequence[Finding], found: Sequence[int], tokens: int) -> tuple[Finding, ...]:
    """The findings about a prompt of so many tokens, its needle seen beside those of the shorter
    prompts, of which each was found.

    What is right in a short prompt and wrong in one of more than PICKED_TOKENS is the choice of
    what attention looks at, not the model.
    """
    return tuple(_climbed(f, found, tokens) if f.check == "needle" else f for f in findings)


def _climbed(needle: Finding, found: Sequence[int], tokens: int) -> Finding:
    if needle.outcome is Outcome.GOOD:
        return replace(needle, evidence={"found_at": [*found, tokens], **needle.evidence})
    sparse = bool(found) and tokens > PICKED_TOKENS
    evidence = {"found_at": list(found), "missed_at": tokens, **needle.evidence}
    return replace(
        needle,
        code="text.needle_missed_past_2048" if sparse else needle.code,
        evidence=evidence,
    )


def together(
    answers: Sequence[tuple[tuple[Finding, ...], Completion | None]],
) -> tuple[Finding, ...]:
    """The findings about several answers that ran at once: of each check the worst, counted.

    No two of them may be the same text, as their prompts and seeds differ.
    """
    worst_of: dict[str, Finding] = {}
    counts: dict[str, int] = {}
    for findings, _ in answers:
        for finding in findings:
            kept = worst_of.get(finding.check)
            if finding.outcome is not Outcome.GOOD:
                counts[finding.check] = counts.get(finding.check, 0) + 1
            if kept is None or GRAVITY[finding.outcome] > GRAVITY[kept.outcome]:
                worst_of[finding.check] = finding
    found = [
        replace(
            f, evidence={"requests": len(answers), "not_good": counts.get(check, 0), **f.evidence}
        )
        for check, f in worst_of.items()
    ]
    completions = [completion for _, completion in answers if completion is not None]
    if len(completions) > 1:
        found.append(_apart(completions))
    return tuple(found)


def _apart(completions: Sequence[Completion]) -> Finding:
    pairs = itertools.combinations(completions, 2)
    same = [f for f in (differs(a, b) for a, b in pairs) if f.outcome is not Outcome.GOOD]
    evidence = {"answers": len(completions), "equal_pairs": len(same)}
    if not same:
        return Finding("apart", Outcome.GOOD, evidence=evidence)
    outcome = max((f.outcome for f in same), key=GRAVITY.__getitem__)
    return Finding("apart", outcome, "text.crossed", evidence)
